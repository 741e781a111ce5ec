"""Scratch of cuDNN's convolutions: copies in the layout that its kernels read, and partial sums of a weight's gradient.

Read off the scratch of 1,120 random calls of one convolution each on an H200 (torch 2.11, cuDNN 9.19, float32 as TF32
and bfloat16), and off the peaks of whole steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Final

from peakcast.featurizer.convolution_geometry import NOTHING, Geometry, Sizes
from peakcast.featurizer.weight_gradient import weight_gradient_bytes

_HALF_BYTES: Final = 2
_LAID_OUT_DIMENSIONS: Final = 2
_BACKWARD_READS: Final = 3
# Tensor cores read vectors of 16 bytes, so channels are padded to multiples of 8 in half precision and of 4 in float32.
_VECTOR_BYTES: Final = 16
# Those of a group are padded to a power of two, 8 at least; in float32 and NCHW to multiples of 8 below so many groups.
_GROUP_CHANNELS: Final = 8
_MANY_GROUPS: Final = 16
# Images of fewer channels (RGB) are special. In NCHW these kernels read them directly: up to 3 x 3 in half precision,
# from 4 x 4 to below 7 x 7 in float32, and any above 11 x 11, which cut an image into patches.
_IMAGE_CHANNELS: Final = 4
_DIRECT_KERNEL: Final = 3
_LARGE_KERNEL: Final = 7
_PATCH_KERNEL: Final = 11
# In float32, results that are sums of so few products, over so few channels, are read and written as they lie.
_FEW_CHANNELS: Final = 8
_FEW_PRODUCTS: Final = 72
# So are images of so few channels by a 3 x 3 with a stride, or those that it makes few of; but not the result.
_NARROW_CHANNELS: Final = 16
# And 1 x 1 with a stride over no more channels than that.
_POINTWISE_CHANNELS: Final = 64
# In float32 kernels over NHWC write NCHW where a result is the sum of few products: a copy would take longer than it.
# That goes for sequences of whole vectors, and for volumes, whatever the products of a large kernel.
_FEW_SEQUENCE_PRODUCTS: Final = 700
_FEW_VOLUME_PRODUCTS: Final = 1800
_LARGE_VOLUME: Final = 49


def contiguous_bytes(
    geometry: Geometry, read_bytes: Sequence[int], written_bytes: Sequence[int], element_bytes: int
) -> int:
    """Return what torch makes contiguous before a forward call, whatever kernel runs; backward reads what it saved.

    Where a part of a storage is read, a share of its channels for one, the images are counted by the result.
    """
    if not geometry.is_copied or not read_bytes:
        return 0
    all_bytes = max(read_bytes)
    images = geometry.images_of_part(read_bytes[0], written_bytes[0] if written_bytes else 0, element_bytes)
    if not images:
        return all_bytes
    return min(all_bytes, images * geometry.image_bytes(element_bytes))


def forward_scratch_bytes(
    geometry: Geometry,
    read_bytes: Sequence[int],
    written_bytes: Sequence[int],
    element_bytes: int,
    *,
    is_laid_out: bool = False,
) -> int:
    """Return what a forward call takes and gives back: copies in NHWC of the image, the weight and the result.

    `read_bytes` are those of image and weight; `is_laid_out` where inductor lays them out in channels last.
    """
    if not read_bytes or not written_bytes or geometry.is_depthwise:
        return 0
    sizes = Sizes(read_bytes[0], read_bytes[1] if len(read_bytes) > 1 else 0, written_bytes[0])
    copies = _last_copies if geometry.lies_last(is_laid_out=is_laid_out) else _forward_copies
    return copies(geometry, sizes, element_bytes).total


def backward_scratch_bytes(
    geometry: Geometry,
    read_bytes: Sequence[int],
    element_bytes: int,
    multiprocessors: int,
    *,
    is_laid_out: bool = False,
) -> tuple[int, int]:
    """Return what the gradient of the image takes, and then that of the weight: two calls, one after the other.

    `read_bytes` are those of the result's gradient, the image and the weight; both calls copy the first, and the image
    or its gradient. The image's also copies the weight; the weight's is summed in parts, in either layout.
    """
    if len(read_bytes) < _BACKWARD_READS or not element_bytes:
        return 0, 0
    sizes = Sizes(read_bytes[1], read_bytes[2], read_bytes[0])
    lies_last = geometry.lies_last(is_laid_out=is_laid_out)
    copies = (_last_copies if lies_last else _backward_copies)(geometry, sizes, element_bytes)
    # The image's gradient has kernels in channels last where nothing else has.
    of_image = 0 if lies_last and _is_large(geometry, element_bytes) else copies.total
    of_weight = weight_gradient_bytes(geometry, sizes, copies, element_bytes, multiprocessors, lies_last=lies_last)
    return of_image if geometry.gives_image else 0, of_weight if geometry.gives_weight else 0


def _forward_copies(geometry: Geometry, sizes: Sizes, element_bytes: int) -> Sizes:
    """Return what is copied from NCHW, and back."""
    padded = _padded(geometry, sizes, element_bytes)
    is_half = element_bytes == _HALF_BYTES
    if geometry.is_pointwise:
        # Without a stride it is a plain matrix product over pixels: those kernels take either layout.
        is_read = geometry.is_strided and (is_half or geometry.channels_in > _POINTWISE_CHANNELS)
        return _pixels(geometry, sizes, padded) if is_read else NOTHING
    if geometry.channels_in < _IMAGE_CHANNELS and not geometry.is_transposed:
        return _image_copies(geometry, sizes, padded, is_half=is_half)
    if is_half:
        return padded
    if geometry.is_transposed:
        return NOTHING if _makes_image(geometry, element_bytes) else padded
    if geometry.channels_in <= _FEW_CHANNELS and geometry.products <= _FEW_PRODUCTS:
        return NOTHING
    if _is_narrow(geometry):
        return replace(padded, image=0)
    return replace(padded, result=0) if _writes_itself(geometry, sizes, element_bytes) else padded


def _image_copies(geometry: Geometry, sizes: Sizes, padded: Sizes, *, is_half: bool) -> Sizes:
    """Return what a first layer over RGB copies from NCHW, and back."""
    size = max(geometry.kernel)
    if size <= _DIRECT_KERNEL:
        return NOTHING if is_half else Sizes(sizes.image, 0, 0)
    is_direct = size > _PATCH_KERNEL or (size < _LARGE_KERNEL and not is_half)
    return NOTHING if is_direct else padded


def _backward_copies(geometry: Geometry, sizes: Sizes, element_bytes: int) -> Sizes:
    """Return what is copied from NCHW for a gradient, and back."""
    if geometry.is_depthwise or (geometry.is_pointwise and not geometry.is_strided):
        return NOTHING
    if _makes_image(geometry, element_bytes):
        return NOTHING
    padded = _padded(geometry, sizes, element_bytes)
    return _pixels(geometry, sizes, padded) if geometry.is_pointwise else padded


def _last_copies(geometry: Geometry, sizes: Sizes, element_bytes: int) -> Sizes:
    """Return what is copied where images lie in channels last: what has no whole vectors, or no kernel there."""
    if geometry.is_depthwise or geometry.is_pointwise:
        return NOTHING
    padded = _padded(geometry, sizes, element_bytes, lies_last=True)
    is_half = element_bytes == _HALF_BYTES
    if geometry.groups > 1:
        is_few = is_half and geometry.groups < _MANY_GROUPS and geometry.channels_read > _GROUP_CHANNELS
        return padded if padded != sizes or is_few else NOTHING
    if _makes_image(geometry, element_bytes):
        return sizes
    if geometry.channels_in < _IMAGE_CHANNELS:
        return Sizes(sizes.image, 0, 0)
    if _is_large(geometry, element_bytes):
        return padded if len(geometry.kernel) > _LAID_OUT_DIMENSIONS else replace(padded, result=0)
    image = padded.image if padded.image > sizes.image else 0
    result = padded.result if padded.result > sizes.result else 0
    return Sizes(image, padded.weight if image or result else 0, result)


def _makes_image(geometry: Geometry, element_bytes: int) -> bool:
    """Tell whether a transposed convolution makes RGB in float32: its kernels read and write NCHW."""
    return geometry.is_transposed and geometry.channels_out < _IMAGE_CHANNELS and element_bytes > _HALF_BYTES


def _is_narrow(geometry: Geometry) -> bool:
    """Tell whether it is one of the first layers of a small network: 3 x 3 with a stride, over few channels."""
    has_kernel = len(geometry.kernel) == _LAID_OUT_DIMENSIONS and max(geometry.kernel) == _DIRECT_KERNEL
    is_few = min(geometry.channels_in, geometry.channels_out) <= _NARROW_CHANNELS
    return geometry.groups == 1 and has_kernel and geometry.is_strided and is_few


def _writes_itself(geometry: Geometry, sizes: Sizes, element_bytes: int) -> bool:
    """Tell whether a kernel of float32 over NHWC writes NCHW."""
    dimensions = len(geometry.kernel)
    if dimensions > _LAID_OUT_DIMENSIONS:
        is_few = geometry.products < _FEW_VOLUME_PRODUCTS or prod(geometry.kernel) >= _LARGE_VOLUME
        return not geometry.is_strided and is_few
    images = geometry.images(sizes.image, element_bytes)
    is_whole = images > 0 and sizes.result // (geometry.channels_out * images) % _VECTOR_BYTES == 0
    return dimensions < _LAID_OUT_DIMENSIONS and is_whole and geometry.products < _FEW_SEQUENCE_PRODUCTS


def _is_large(geometry: Geometry, element_bytes: int) -> bool:
    """Tell whether float32 has no kernel in channels last for one so large."""
    is_dense = geometry.groups == 1 and geometry.channels_in >= _IMAGE_CHANNELS
    return is_dense and element_bytes > _HALF_BYTES and max(geometry.kernel) >= _LARGE_KERNEL


def _pixels(geometry: Geometry, sizes: Sizes, padded: Sizes) -> Sizes:
    """Return the copies of 1 x 1: its weight is the same in either layout, its groups are not padded."""
    return replace(padded if geometry.groups == 1 else sizes, weight=0)


def _padded(geometry: Geometry, sizes: Sizes, element_bytes: int, *, lies_last: bool = False) -> Sizes:
    """Return the bytes of copies whose channels are padded to what the kernels compute with."""
    read, made = geometry.channels_read, max(geometry.channels_out // geometry.groups, 1)
    padded_read, padded_made = (
        _padded_channels(geometry, count, element_bytes, lies_last=lies_last) for count in (read, made)
    )
    return Sizes(
        sizes.image * padded_read // read,
        sizes.weight * padded_read * padded_made // (read * made),
        sizes.result * padded_made // made,
    )


def _padded_channels(geometry: Geometry, count: int, element_bytes: int, *, lies_last: bool) -> int:
    """Return how many channels, of a group where there are groups, so many are computed with."""
    if geometry.groups > 1:
        is_multiple = element_bytes > _HALF_BYTES and geometry.groups < _MANY_GROUPS and not lies_last
        if lies_last and count < _GROUP_CHANNELS:
            unit = 1 if element_bytes <= _HALF_BYTES else _VECTOR_BYTES // element_bytes
        else:
            unit = _GROUP_CHANNELS if is_multiple else max(1 << (count - 1).bit_length(), _GROUP_CHANNELS)
    elif element_bytes > _HALF_BYTES and count < _IMAGE_CHANNELS and max(geometry.kernel) <= _LARGE_KERNEL:
        unit = count if not geometry.is_transposed else _IMAGE_CHANNELS
    else:
        unit = _VECTOR_BYTES // max(element_bytes, 1)
    return -(-count // unit) * unit
