"""Scratch of cuDNN's gradient of a convolution's weight: copies in another layout, and partial sums."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Final

from peakcast.featurizer.convolution_geometry import Geometry, Sizes

# The block that one multiprocessor sums, and the fewest pixels worth a part, in float32 and in half precision: no other
# sizes fit the scratch of single calls on an H200 (cuDNN 9.19) as well.
_BLOCK_FILTERS: Final = 64
_BLOCK_COLUMNS: Final = {4: 256, 2: 64}
_LEAST_PIXELS: Final = {4: 1024, 2: 2048}
_PARTIAL_SUM_BYTES: Final = 4
# Depthwise in channels last: the sums of each image, and the channels that a block computes.
_DEPTHWISE_PARTS: Final = 8
_DEPTHWISE_CHANNELS: Final = 32
# 1 x 1 in NCHW is a product for each image, all added up afterwards. In half precision where it makes more channels of
# no more than so many, for no more images than that, or has few weights and enough pixels; in float32 where it has few
# weights, or copies would be more. Else images and gradients are copied. Whole steps show where: with this rule the
# peaks of MobileNetV2, EfficientNet, RepViT, NF-RegNet and ShViT are exact, which were up to 6 % low.
_EXPANDED_CHANNELS: Final = 384
_EXPANDED_IMAGES: Final = 100
_FEW_WEIGHTS: Final = {4: 80_000, 2: 150_000}
_FEWEST_PIXELS: Final = 64


def weight_gradient_bytes(
    geometry: Geometry, sizes: Sizes, copies: Sizes, element_bytes: int, multiprocessors: int, *, lies_last: bool
) -> int:
    """Return what the gradient of a weight takes beyond it.

    `sizes` are those of image, weight and result, `copies` what the call copies of them in another layout.
    """
    if geometry.is_depthwise:
        return _depthwise_bytes(geometry, sizes, element_bytes) if lies_last else 0
    pixels = sizes.result // (geometry.channels_out * element_bytes)
    parts = _parts(geometry.channels_out, geometry.products, pixels, element_bytes, multiprocessors)
    weight = max(copies.weight, sizes.weight) // element_bytes * _PARTIAL_SUM_BYTES
    sums = parts * weight if parts > 1 else 0
    if geometry.is_pointwise and not geometry.is_strided and not lies_last and geometry.groups == 1:
        return _pointwise_bytes(geometry, sizes, sums, weight, element_bytes)
    return copies.image + copies.result + max(copies.weight, sums)


def _pointwise_bytes(geometry: Geometry, sizes: Sizes, sums: int, weight: int, element_bytes: int) -> int:
    """Return what 1 x 1 in NCHW takes: a product for each image, added up afterwards, or copies in channels last."""
    pixels = prod(geometry.image)
    if not geometry.image or pixels == 1:  # a linear layer
        return sums
    # The image may be a part of its storage; the result is as large as it is.
    made = sizes.result // (geometry.channels_out * pixels * element_bytes)
    images = min(geometry.images(sizes.image, element_bytes), made)
    imagewise = images * weight if images > 1 else sums
    copied = sizes.image + sizes.result + sums
    has_few = geometry.channels_in * geometry.channels_out < _FEW_WEIGHTS.get(element_bytes, 0)
    if element_bytes == _PARTIAL_SUM_BYTES:
        is_imagewise = has_few or imagewise < copied
    else:
        expands = geometry.channels_in < geometry.channels_out and geometry.channels_in <= _EXPANDED_CHANNELS
        is_imagewise = (expands and images <= _EXPANDED_IMAGES) or (has_few and pixels >= _FEWEST_PIXELS)
    return imagewise if is_imagewise else copied


def _depthwise_bytes(geometry: Geometry, sizes: Sizes, element_bytes: int) -> int:
    """Return what a depthwise kernel in channels last takes in half precision: eight sums for each image."""
    if element_bytes == _PARTIAL_SUM_BYTES or geometry.channels_in != geometry.channels_out:
        return 0
    channels = -(-geometry.channels_out // _DEPTHWISE_CHANNELS) * _DEPTHWISE_CHANNELS
    parts = _DEPTHWISE_PARTS * geometry.images(sizes.image, element_bytes)
    return parts * channels * prod(geometry.kernel) * _PARTIAL_SUM_BYTES


@lru_cache(maxsize=4096)
def _parts(filters: int, columns: int, pixels: int, element_bytes: int, multiprocessors: int) -> int:
    """Return in how many parts a weight's gradient is summed over the pixels of all results.

    It is a product of few rows and columns over very many pixels. Its blocks would leave most of the card idle: so each
    sums over a share of the pixels, as many shares as multiprocessors have room for.
    """
    width, least = _BLOCK_COLUMNS.get(element_bytes, 256), _LEAST_PIXELS.get(element_bytes, 1024)
    blocks = -(-filters // _BLOCK_FILTERS) * -(-columns // width)
    return max(min(multiprocessors // max(blocks, 1), pixels // least), 1)
