"""What a convolution's attribute tells of it: kernel, channels, groups, layout."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Final

_LAID_OUT_DIMENSIONS: Final = 2


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of a call's image, weight and result, or of copies of them."""

    image: int
    weight: int
    result: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.image + self.weight + self.result


NOTHING: Final = Sizes(0, 0, 0)


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
    is_strided: bool = False
    gives_image: bool = True  # the gradients that a backward is asked for
    gives_weight: bool = True
    image: tuple[int, ...] = ()  # rows and columns of what is read; empty where an attribute does not tell
    dilation: int = 1  # the largest of its sides
    steps: tuple[int, ...] = ()  # its stride along each side, where it has one

    @property
    def channels_read(self) -> int:
        """Count the channels that each result is made from."""
        return self.channels_in // self.groups

    @property
    def products(self) -> int:
        """Count the products that each result is the sum of."""
        return self.channels_read * prod(self.kernel)

    @property
    def is_pointwise(self) -> bool:
        """Tell whether it is a matrix product over pixels."""
        return all(size == 1 for size in self.kernel)

    @property
    def is_depthwise(self) -> bool:
        """Tell whether each group has one channel on a side: torch's own kernels run it in place."""
        return self.groups > 1 and self.groups == min(self.channels_in, self.channels_out)

    def lies_last(self, *, is_laid_out: bool) -> bool:
        """Tell whether images lie in channels last; in compiled graphs (`is_laid_out`) those of two dimensions do."""
        return self.is_channels_last and (not is_laid_out or len(self.kernel) == _LAID_OUT_DIMENSIONS)

    def image_bytes(self, element_bytes: int) -> int:
        """Return the bytes of one image; 0 where the attribute does not tell its size."""
        return self.channels_in * prod(self.image) * element_bytes if self.image else 0

    def images(self, image_bytes: int, element_bytes: int) -> int:
        """Count the images of a batch; 0 where the attribute does not tell their size."""
        one = self.image_bytes(element_bytes)
        return image_bytes // one if one else 0

    def images_of_part(self, image_bytes: int, result_bytes: int, element_bytes: int) -> int:
        """Count the images of a batch where not all of what is read is theirs; 0 where it is, or nothing tells.

        Without a stride a result is as large as its image, with the usual padding, or smaller by what its kernel
        reaches over, without any. With one it has every such pixel, with the usual padding. Others are not told apart.
        """
        if not self.image or not element_bytes or self.is_transposed:
            return 0
        one = self.channels_out * element_bytes
        if self.is_strided:
            pixels = prod(-(-size // step) for size, step in zip(self.image, self.steps, strict=False))
            images, rest = divmod(result_bytes, one * pixels)
            is_part = not rest and images * self.image_bytes(element_bytes) < image_bytes
            return images if is_part else 0
        reaches = [(size - 1) * self.dilation for size in self.kernel]
        fewest_pixels = prod(max(1, size - reach) for size, reach in zip(self.image, reaches, strict=False))
        images = self.images(image_bytes, element_bytes)
        is_all = images * self.image_bytes(element_bytes) == image_bytes
        if is_all and result_bytes >= images * one * fewest_pixels:
            return 0
        most_pixels = prod(self.image)
        is_unpadded = result_bytes % (one * most_pixels) > 0 and result_bytes % (one * fewest_pixels) == 0
        return -(-result_bytes // (one * (fewest_pixels if is_unpadded else most_pixels)))


@lru_cache(maxsize=4096)
def parse_geometry(attribute: str) -> Geometry | None:
    """Read the attribute of a convolution node; None where it is not one, or not well formed."""
    pairs = dict(pair.split("=", 1) for pair in attribute.split(",") if "=" in pair)
    try:
        stride = tuple(int(step) for step in pairs.get("stride", "1").split("x"))
        channels_in, channels_out = (int(count) for count in pairs["channels"].split("x"))
        geometry = Geometry(
            kernel=tuple(int(size) for size in pairs["kernel"].split("x")),
            groups=int(pairs["groups"]),
            channels_in=channels_in,
            channels_out=channels_out,
            is_channels_last=pairs["layout"] == "nhwc",
            is_copied=pairs.get("copied") == "1",
            is_transposed=pairs.get("transposed") == "1",
            is_strided=max(stride) > 1,
            gives_image=pairs.get("gradients", "11")[:1] != "0",
            gives_weight=pairs.get("gradients", "11")[1:2] != "0",
            image=tuple(int(size) for size in pairs["image"].split("x")) if "image" in pairs else (),
            dilation=max(int(size) for size in pairs.get("dilation", "1").split("x")),
            steps=stride if max(stride) > 1 else (),
        )
    except (KeyError, ValueError):
        return None
    counts = (
        *geometry.kernel,
        *geometry.image,
        *geometry.steps,
        geometry.groups,
        geometry.dilation,
        channels_in,
        channels_out,
    )
    return geometry if min(counts) > 0 and geometry.groups <= min(channels_in, channels_out) else None
