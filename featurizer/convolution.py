"""Scratch of cuDNN's convolutions: the layout conversion of a call in NCHW."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

# Grouped convolutions are computed with this many channels a group at least, or a multiple of it.
_GROUP_CHANNELS: Final = 16
# Images of fewer channels (RGB) are special: small kernels write NCHW themselves, and large ones (AlexNet's 11x11)
# read the image padded to this many.
_IMAGE_CHANNELS: Final = 4
_DIRECT_KERNEL: Final = 3
_UNPADDED_KERNEL: Final = 7
_LAID_OUT_DIMENSIONS: Final = 2


@dataclass(frozen=True, slots=True)
class Geometry:
    """What a convolution's attribute tells."""

    kernel: tuple[int, ...]
    groups: int
    channels_in: int
    channels_out: int
    is_channels_last: bool
    is_copied: bool
    is_transposed: bool = False
    is_dilated: bool = False

    @property
    def is_pointwise(self) -> bool:
        """Tell whether it is a plain matrix product over pixels: cuBLAS-like kernels take either layout."""
        return all(size == 1 for size in self.kernel)

    @property
    def is_depthwise(self) -> bool:
        """Tell whether each group has one channel on a side: torch's own kernels run it in place."""
        return self.groups > 1 and self.groups == min(self.channels_in, self.channels_out)


@lru_cache(maxsize=4096)
def parse_geometry(attribute: str) -> Geometry | None:
    """Read the attribute of a convolution node; None where it is not one, or not well formed."""
    pairs = dict(pair.split("=", 1) for pair in attribute.split(",") if "=" in pair)
    try:
        channels_in, channels_out = (int(count) for count in pairs["channels"].split("x"))
        geometry = Geometry(
            kernel=tuple(int(size) for size in pairs["kernel"].split("x")),
            groups=int(pairs["groups"]),
            channels_in=channels_in,
            channels_out=channels_out,
            is_channels_last=pairs["layout"] == "nhwc",
            is_copied=pairs.get("copied") == "1",
            is_transposed=pairs.get("transposed") == "1",
            is_dilated=any(int(step) > 1 for step in pairs.get("dilation", "1").split("x")),
        )
    except (KeyError, ValueError):
        return None
    counts = (*geometry.kernel, geometry.groups, channels_in, channels_out)
    return geometry if min(counts) > 0 else None


def scratch_bytes(
    geometry: Geometry, read_bytes: Sequence[int], written_bytes: Sequence[int], *, backward: bool
) -> int:
    """Return what one call takes and gives back: copies in NHWC of the image, the weight and the result.

    `read_bytes` are those of image and weight, or of the result's gradient, image and weight in backward;
    `written_bytes` those of the result, or of the gradients. Measured on an H200 (torch 2.11, cuDNN 9.19), fp32 as
    TF32 and bf16: exact to the MiB for most 2-d and 3-d shapes.
    """
    copy = max(read_bytes, default=0) if geometry.is_copied and not backward else 0
    if (
        geometry.is_channels_last
        or geometry.is_pointwise
        or geometry.is_depthwise
        or not read_bytes
        or not written_bytes
    ):
        return copy
    if backward:
        # The data and the weight gradient are two calls, one after the other.
        image = max(read_bytes[1] if len(read_bytes) > 1 else 0, written_bytes[0])
        return int(
            _padded(read_bytes[0], geometry.channels_out, geometry) + _padded(image, geometry.channels_in, geometry)
        )
    image = int(_padded(read_bytes[0], geometry.channels_in, geometry))
    if geometry.channels_in < _IMAGE_CHANNELS and max(geometry.kernel) <= _DIRECT_KERNEL:
        return copy + image
    weight = read_bytes[1] if len(read_bytes) > 1 else 0
    if geometry.is_dilated:  # these kernels write the result as it lies
        return copy + image + weight
    return int(copy + image + weight + _padded(written_bytes[0], geometry.channels_out, geometry))


def compiled_scratch_bytes(
    geometry: Geometry,
    read_bytes: Sequence[int],
    written_bytes: Sequence[int],
    given: Sequence[bool],
    *,
    backward: bool,
) -> int:
    """Return what one call takes in a graph whose convolutions inductor lays out in channels last.

    That goes for images of two dimensions (`convolution` in torch/_inductor/kernel/conv.py); others stay as they lie.
    What the graph is given, images and weights (`given` says which of `read_bytes`), is copied into that layout, and
    cuDNN copies on: groups, and results of fewer than four channels (a transposed convolution that makes RGB), into the
    layout that has kernels for them, and RGB images once more. Read off peaks on an H200 (torch 2.11, cuDNN 9.19).
    """
    in_nchw = replace(geometry, is_channels_last=False)
    if len(geometry.kernel) != _LAID_OUT_DIMENSIONS:
        return scratch_bytes(in_nchw, read_bytes, written_bytes, backward=backward)
    if geometry.is_pointwise:
        return 0
    copies = sum(size for size, is_given in zip(read_bytes, given, strict=True) if is_given)
    makes_few = geometry.is_transposed and geometry.channels_out < _IMAGE_CHANNELS
    if geometry.groups > 1 or makes_few:
        return copies + scratch_bytes(in_nchw, read_bytes, written_bytes, backward=backward)
    reads_few = geometry.channels_in < _IMAGE_CHANNELS and not backward
    return copies + (read_bytes[0] if reads_few and read_bytes else 0)


def _padded(size_bytes: int, channels: int, geometry: Geometry) -> int:
    a_group = max(channels // geometry.groups, 1)
    if geometry.groups > 1:
        unit = _GROUP_CHANNELS
    elif channels < _IMAGE_CHANNELS and max(geometry.kernel) > _UNPADDED_KERNEL:
        unit = _IMAGE_CHANNELS
    else:
        return size_bytes
    return size_bytes * (-(-a_group // unit) * unit) // a_group
