"""Scratch of cuDNN's convolutions: the layout conversion of a call in NCHW, and partial sums of a weight's gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Final

# Grouped convolutions are computed with a multiple of this many channels a group; where inductor laid the images out,
# of twice as many.
_GROUP_CHANNELS: Final = 8
# Images of fewer channels (RGB) are special: small kernels write NCHW themselves, and large ones (AlexNet's 11x11)
# read the image padded to this many.
_IMAGE_CHANNELS: Final = 4
_DIRECT_KERNEL: Final = 3
_UNPADDED_KERNEL: Final = 7
# In half precision a stem of 7 x 7 reads vectors of 16 bytes.
_HALF_IMAGE_CHANNELS: Final = 8
_HALF_BYTES: Final = 2
# Strided kernels over images that come or go with so few channels read NCHW themselves, in float32.
_NARROW_CHANNELS: Final = 16
_LAID_OUT_DIMENSIONS: Final = 2
_BACKWARD_READS: Final = 3
# A weight's gradient: the block that one multiprocessor sums, the fewest pixels worth a part, and the parts' type.
# Read off the reserved bytes of trainings on an H200 (cuDNN 9.19): no other sizes fit them as well.
_BLOCK_FILTERS: Final = 64
_BLOCK_COLUMNS: Final = 256
_LEAST_PIXELS: Final = 1024
_PARTIAL_SUM_BYTES: Final = 4


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
    is_strided: bool = False
    gives_image: bool = True  # the gradients that a backward is asked for
    gives_weight: bool = True

    @property
    def is_pointwise(self) -> bool:
        """Tell whether it is a plain matrix product over pixels: cuBLAS-like kernels take either layout."""
        return all(size == 1 for size in self.kernel)

    @property
    def is_depthwise(self) -> bool:
        """Tell whether each group has one channel on a side: torch's own kernels run it in place."""
        return self.groups > 1 and self.groups == min(self.channels_in, self.channels_out)

    @property
    def is_stem(self) -> bool:
        """Tell whether it is the first layer of a network over RGB, with the 7 x 7 and stride of ResNet's."""
        return self.channels_in < _IMAGE_CHANNELS and max(self.kernel) == _UNPADDED_KERNEL and self.is_strided

    @property
    def is_narrow(self) -> bool:
        """Tell whether it is one of the first layers of a small network: 3 x 3 with a stride, over few channels."""
        is_dense = self.groups == 1 and not self.is_transposed and self.channels_in >= _IMAGE_CHANNELS
        has_kernel = len(self.kernel) == _LAID_OUT_DIMENSIONS and max(self.kernel) == _DIRECT_KERNEL
        return (
            is_dense and has_kernel and self.is_strided and min(self.channels_in, self.channels_out) <= _NARROW_CHANNELS
        )

    def converts(self, *, is_laid_out: bool) -> bool:
        """Tell whether cuDNN copies what it reads into its own layout, and what it makes back from there.

        It does so for NCHW. Where inductor laid images of two dimensions out in channels last (`is_laid_out`) the
        others still lie as they did, and for groups and results of fewer than four channels (a transposed convolution
        that makes RGB) only another layout has kernels. Read off peaks on an H200 (torch 2.11, cuDNN 9.19).
        """
        if self.is_pointwise or self.is_depthwise:
            return False
        if not is_laid_out:
            return not self.is_channels_last
        makes_few = self.is_transposed and self.channels_out < _IMAGE_CHANNELS
        return len(self.kernel) != _LAID_OUT_DIMENSIONS or self.groups > 1 or makes_few


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
            is_strided=any(int(step) > 1 for step in pairs.get("stride", "1").split("x")),
            gives_image=pairs.get("gradients", "11")[:1] != "0",
            gives_weight=pairs.get("gradients", "11")[1:2] != "0",
        )
    except (KeyError, ValueError):
        return None
    counts = (*geometry.kernel, geometry.groups, channels_in, channels_out)
    return geometry if min(counts) > 0 else None


def forward_scratch_bytes(
    geometry: Geometry,
    read_bytes: Sequence[int],
    written_bytes: Sequence[int],
    given: Sequence[bool] | None,
    element_bytes: int,
) -> int:
    """Return what a forward call takes and gives back: copies in NHWC of the image, the weight and the result.

    `read_bytes` are those of image and weight. `given` is set in a graph whose convolutions inductor lays out in
    channels last, and says which of them the graph did not make. Measured on an H200 (torch 2.11, cuDNN 9.19), fp32 as
    TF32 and bf16: exact to the MiB for most 2-d and 3-d shapes.
    """
    is_laid_out = given is not None
    copy = max(read_bytes, default=0) if geometry.is_copied else 0
    copy += _laid_out_bytes(geometry, read_bytes, given)
    if not read_bytes or not written_bytes:
        return copy
    reads_few = geometry.channels_in < _IMAGE_CHANNELS
    if not geometry.converts(is_laid_out=is_laid_out):
        return copy + (read_bytes[0] if is_laid_out and reads_few and not geometry.is_pointwise else 0)
    image = _padded(read_bytes[0], geometry.channels_in, geometry, element_bytes, is_laid_out=is_laid_out)
    if reads_few and max(geometry.kernel) <= _DIRECT_KERNEL:
        return copy + image
    if element_bytes == _HALF_BYTES and geometry.is_stem:
        image = image // geometry.channels_in * _HALF_IMAGE_CHANNELS
    elif element_bytes > _HALF_BYTES and geometry.is_narrow and not is_laid_out:
        image = 0
    weight = read_bytes[1] if len(read_bytes) > 1 else 0
    if geometry.is_dilated:  # these kernels write the result as it lies
        return copy + image + weight
    result = _padded(written_bytes[0], geometry.channels_out, geometry, element_bytes, is_laid_out=is_laid_out)
    return copy + image + weight + result


def backward_scratch_bytes(
    geometry: Geometry,
    read_bytes: Sequence[int],
    given: Sequence[bool] | None,
    element_bytes: int,
    multiprocessors: int,
) -> tuple[int, int]:
    """Return what the gradient of the image takes, and then that of the weight: two calls, one after the other.

    `read_bytes` are those of the result's gradient, the image and the weight; both calls copy the first, and the image
    or its gradient. The image's also copies the weight; the weight's is summed in parts, in either layout. `given` as
    in forward.
    """
    of_image = of_weight = _laid_out_bytes(geometry, read_bytes, given)
    if len(read_bytes) >= _BACKWARD_READS and element_bytes and not geometry.is_depthwise:
        gradient, image, weight = read_bytes[:_BACKWARD_READS]
        parts = _weight_gradient_parts(geometry, gradient // (geometry.channels_out * element_bytes), multiprocessors)
        sums = parts * weight // element_bytes * _PARTIAL_SUM_BYTES
        is_laid_out = given is not None
        if geometry.converts(is_laid_out=is_laid_out):
            copies = _padded(gradient, geometry.channels_out, geometry, element_bytes, is_laid_out=is_laid_out)
            copies += _padded(image, geometry.channels_in, geometry, element_bytes, is_laid_out=is_laid_out)
            of_image += copies + weight
            of_weight += copies + sums
        elif parts > 1:
            of_weight += sums
    return of_image if geometry.gives_image else 0, of_weight if geometry.gives_weight else 0


@lru_cache(maxsize=4096)
def _weight_gradient_parts(geometry: Geometry, pixels: int, multiprocessors: int) -> int:
    """Return in how many parts a weight's gradient is summed over the pixels of all results.

    It is a product of few rows and columns over very many pixels. Its blocks of 64 filters by 256 columns would leave
    most of the card idle: so each sums over a share of the pixels, as many shares as multiprocessors have room for.
    """
    columns = geometry.channels_in // geometry.groups * prod(geometry.kernel)
    blocks = -(-geometry.channels_out // _BLOCK_FILTERS) * -(-columns // _BLOCK_COLUMNS)
    return max(min(multiprocessors // max(blocks, 1), pixels // _LEAST_PIXELS), 1)


def _laid_out_bytes(geometry: Geometry, read_bytes: Sequence[int], given: Sequence[bool] | None) -> int:
    """Return the copies of images and weights that a graph is given into the layout that inductor chose.

    That goes for images of two dimensions (`convolution` in torch/_inductor/kernel/conv.py); others stay as they lie.
    """
    if given is None or len(geometry.kernel) != _LAID_OUT_DIMENSIONS or geometry.is_pointwise:
        return 0
    return sum(size for size, is_given in zip(read_bytes, given, strict=True) if is_given)


def _padded(size_bytes: int, channels: int, geometry: Geometry, element_bytes: int, *, is_laid_out: bool) -> int:
    """Return the bytes of a copy, whose channels are padded to what the kernels compute with."""
    a_group = max(channels // geometry.groups, 1)
    if geometry.groups > 1:
        unit = _GROUP_CHANNELS
        if is_laid_out:
            unit *= 2
        elif element_bytes == _HALF_BYTES:  # powers of two
            unit = max(unit, 1 << (a_group - 1).bit_length())
    elif channels < _IMAGE_CHANNELS and max(geometry.kernel) > _UNPADDED_KERNEL:
        unit = _IMAGE_CHANNELS
    else:
        return size_bytes
    return size_bytes * (-(-a_group // unit) * unit) // a_group
