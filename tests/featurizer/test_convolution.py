"""Scratch of convolutions is what an H200 took (torch 2.11, cuDNN 9.19) in each layout, for the sizes given here."""

from __future__ import annotations

import dataclasses
from math import prod

import pytest
from handmade import MIB

from peakcast.featurizer.convolution import (
    backward_scratch_bytes,
    contiguous_bytes,
    forward_scratch_bytes,
)
from peakcast.featurizer.convolution_geometry import Geometry, parse_geometry

FLOAT, HALF = 4, 2
ATTRIBUTE = (
    "kernel=3x3,stride=1x1,dilation=1x1,groups=1,transposed=0,channels=64x128,image=224x224,layout=nchw,copied=0"
)
DENSE = Geometry((3, 3), groups=1, channels_in=64, channels_out=64, is_channels_last=False, is_copied=False)

# VGG-16's second convolution: 64 images of 64 x 224 x 224 to as many, weight [64, 64, 3, 3].
VGG_IMAGE_BYTES = 784 * MIB
VGG_WEIGHT_BYTES = 64 * 64 * 9 * FLOAT


def test_vgg_sizes() -> None:
    """The constants above are the products of the dimensions."""
    assert VGG_IMAGE_BYTES == 64 * 64 * 224 * 224 * FLOAT


def forward_bytes(geometry: Geometry, image: int, weight: int, result: int, element_bytes: int = FLOAT) -> int:
    """Return the scratch of a forward call."""
    return forward_scratch_bytes(geometry, [image, weight], [result], element_bytes)


def backward_bytes(geometry: Geometry, *read_bytes: int) -> tuple[int, int]:
    """Return the scratch of the two calls of a backward in float32, on a card of 132 multiprocessors."""
    return backward_scratch_bytes(geometry, read_bytes, FLOAT, 132)


def test_an_attribute_is_read() -> None:
    """What the capture writes comes back as numbers; keys the rule does not need are passed over."""
    expected = Geometry(
        kernel=(3, 3),
        groups=1,
        channels_in=64,
        channels_out=128,
        is_channels_last=False,
        is_copied=False,
        image=(224, 224),
    )
    assert parse_geometry(ATTRIBUTE) == expected
    last = parse_geometry(ATTRIBUTE.replace("nchw", "nhwc"))
    assert last == dataclasses.replace(expected, is_channels_last=True)
    copied = parse_geometry(ATTRIBUTE.replace("copied=0", "copied=1,gradients=110"))
    assert copied == dataclasses.replace(expected, is_copied=True)
    weight_only = parse_geometry(ATTRIBUTE.replace("copied=0", "copied=0,gradients=011"))
    assert weight_only == dataclasses.replace(expected, gives_image=False)
    image_only = parse_geometry(ATTRIBUTE.replace("copied=0", "copied=0,gradients=100"))
    assert image_only == dataclasses.replace(expected, gives_weight=False)
    assert parse_geometry(ATTRIBUTE.replace(",copied=0", "")) == expected
    strided = parse_geometry(ATTRIBUTE.replace("stride=1x1", "stride=1x2"))
    assert strided == dataclasses.replace(expected, is_strided=True, steps=(1, 2))
    unsized = parse_geometry(ATTRIBUTE.replace("image=224x224,", ""))
    assert unsized == dataclasses.replace(expected, image=())
    volume = parse_geometry(ATTRIBUTE.replace("kernel=3x3", "kernel=3x1x2"))
    assert volume == dataclasses.replace(expected, kernel=(3, 1, 2))


@pytest.mark.parametrize(
    "attribute",
    [
        "",
        "kernel",
        "heads=12,causal=1",
        ATTRIBUTE.replace("kernel=3x3,", ""),
        ATTRIBUTE.replace("groups=1,", ""),
        ATTRIBUTE.replace("channels=64x128,", ""),
        ATTRIBUTE.replace("layout=nchw,", ""),
        ATTRIBUTE.replace("kernel=3x3", "kernel="),
        ATTRIBUTE.replace("kernel=3x3", "kernel=3x"),
        ATTRIBUTE.replace("kernel=3x3", "kernel=0x3"),
        ATTRIBUTE.replace("groups=1", "groups=one"),
        ATTRIBUTE.replace("groups=1", "groups=0"),
        ATTRIBUTE.replace("64x128", "64"),
        ATTRIBUTE.replace("64x128", "64x64x64"),
        ATTRIBUTE.replace("64x128", "-64x64"),
        ATTRIBUTE.replace("64x128", "64x0"),
        ATTRIBUTE.replace("image=224x224", "image=0x224"),
        ATTRIBUTE.replace("image=224x224", "image=224x"),
    ],
)
def test_what_is_no_geometry_is_none(attribute: str) -> None:
    """A stranger's attribute, or one of another operator, gives no scratch and no error."""
    assert parse_geometry(attribute) is None


def test_a_dense_convolution_copies_image_weight_and_result() -> None:
    """VGG-16 in NCHW: 784 MiB of image, 784 of result, and the weight."""
    scratch = forward_bytes(DENSE, VGG_IMAGE_BYTES, VGG_WEIGHT_BYTES, VGG_IMAGE_BYTES)
    assert scratch == 784 * MIB + 784 * MIB + VGG_WEIGHT_BYTES


def test_channels_last_needs_no_conversion() -> None:
    """The fast kernels read it as it is, forward and backward; sums in parts are not spared: see below."""
    last = dataclasses.replace(DENSE, is_channels_last=True)
    assert forward_bytes(last, VGG_IMAGE_BYTES, VGG_WEIGHT_BYTES, VGG_IMAGE_BYTES) == 0
    sizes = [VGG_IMAGE_BYTES, VGG_IMAGE_BYTES, VGG_WEIGHT_BYTES]
    assert backward_bytes(last, *sizes) == (0, 44 * VGG_WEIGHT_BYTES)


@pytest.mark.parametrize(
    "geometry",
    [
        dataclasses.replace(DENSE, kernel=(1, 1)),
        dataclasses.replace(DENSE, kernel=(1, 1, 1)),
        dataclasses.replace(DENSE, groups=64),
        dataclasses.replace(DENSE, groups=64, channels_out=128),  # two filters a channel
        dataclasses.replace(DENSE, groups=64, channels_in=128),
    ],
    ids=["1x1", "1x1x1", "depthwise", "multiplier", "reducing"],
)
def test_pointwise_and_depthwise_take_none(geometry: Geometry) -> None:
    """A matrix product over pixels takes either layout; depthwise kernels are torch's own."""
    assert forward_bytes(geometry, MIB, MIB, MIB) == 0
    # 1 MiB of 64 channels has 4,096 pixels; of fewer than 2,048 the weight's gradient is one sum.
    assert backward_bytes(geometry, MIB // 4, MIB, MIB) == (0, 0)


def test_a_strided_kernel_over_few_channels_does_not_copy_the_image() -> None:
    """192 images of 16 x 112 x 112 are 147 MiB, the result of 32 x 56 x 56 is 73.5: weight and result alone."""
    image, weight, result = 192 * 16 * 112 * 112 * FLOAT, 32 * 16 * 9 * FLOAT, 192 * 32 * 56 * 56 * FLOAT
    assert (image, result) == (147 * MIB, 73.5 * MIB)
    narrow = dataclasses.replace(DENSE, channels_in=16, channels_out=32, is_strided=True)
    assert forward_bytes(narrow, image, weight, result) == weight + result
    assert forward_bytes(dataclasses.replace(narrow, channels_in=32, channels_out=16), image, 0, result) == result
    for other in (
        dataclasses.replace(narrow, channels_in=32),
        dataclasses.replace(narrow, is_strided=False),
        dataclasses.replace(narrow, kernel=(4, 4)),
        dataclasses.replace(narrow, kernel=(3, 3, 3)),
        dataclasses.replace(narrow, is_transposed=True),
    ):
        assert forward_bytes(other, image, weight, result) == image + weight + result
    assert forward_bytes(narrow, image, weight, result, HALF) == image + weight + result


def test_a_large_kernel_over_rgb_pads_the_image_to_four_channels() -> None:
    """AlexNet's 11 x 11, batch 512: 294 MiB of image become 392, and the result has 55 x 55 pixels: 378.1 MiB."""
    image, weight, result = 512 * 3 * 224 * 224 * FLOAT, 64 * 3 * 121 * FLOAT, 512 * 64 * 55 * 55 * FLOAT
    assert (image, result) == (294 * MIB, 378.125 * MIB)
    geometry = dataclasses.replace(DENSE, kernel=(11, 11), channels_in=3)
    assert forward_bytes(geometry, image, weight, result) == 392 * MIB + weight * 4 // 3 + result
    # Patches of 14 x 14 are read as they lie, and of 4 x 4 in float32.
    for size, element_bytes in ((14, FLOAT), (14, HALF), (4, FLOAT)):
        patches = dataclasses.replace(geometry, kernel=(size, size))
        assert forward_bytes(patches, image, weight, result, element_bytes) == 0


def test_a_kernel_of_seven_over_rgb_does_not_pad() -> None:
    """ResNet's stem, batch 64: image, weight and 112 x 112 pixels of result, as they are."""
    image, weight, result = 64 * 3 * 224 * 224 * FLOAT, 64 * 3 * 49 * FLOAT, 64 * 64 * 112 * 112 * FLOAT
    geometry = dataclasses.replace(DENSE, kernel=(7, 7), channels_in=3)
    assert forward_bytes(geometry, image, weight, result) == image + weight + result


def test_a_small_kernel_over_rgb_writes_the_result_itself() -> None:
    """VGG's first convolution: the image alone is copied, and nothing in half precision."""
    image, weight = 64 * 3 * 224 * 224 * FLOAT, 64 * 3 * 9 * FLOAT
    geometry = dataclasses.replace(DENSE, channels_in=3)
    assert forward_bytes(geometry, image, weight, VGG_IMAGE_BYTES) == image
    assert forward_bytes(geometry, image // 2, weight // 2, VGG_IMAGE_BYTES // 2, HALF) == 0


@pytest.mark.parametrize(
    ("groups", "element_bytes", "computed"),
    [
        (8, FLOAT, 24),  # 192 channels in 8 groups: 24 are a multiple of 8
        (8, HALF, 32),  # but no power of two
        (12, HALF, 16),
        (24, HALF, 8),
        (48, FLOAT, 8),  # 4 a group are computed as 8, in either type
        (48, HALF, 8),
    ],
)
def test_groups_are_padded(groups: int, element_bytes: int, computed: int) -> None:
    """To multiples of 8 channels in float32, to 8 or a larger power of two in half precision and for many groups."""
    grouped = dataclasses.replace(DENSE, groups=groups, channels_in=192, channels_out=192)
    image, result = 24 * MIB * computed * groups // 192, 48 * MIB * computed * groups // 192
    weight = MIB * (computed * groups) ** 2 // 192**2
    assert forward_bytes(grouped, 24 * MIB, MIB, 48 * MIB, element_bytes) == image + weight + result


def test_small_groups_in_channels_last_make_whole_vectors() -> None:
    """32 groups of 2 channels are computed as 4 in float32, 16 bytes; groups of 4 are read as they lie."""
    small = dataclasses.replace(DENSE, groups=32, channels_in=64, channels_out=64, is_channels_last=True)
    taken = forward_scratch_bytes(small, [49 * MIB, MIB], [12 * MIB], FLOAT, is_laid_out=True)
    assert taken == 2 * 49 * MIB + 4 * MIB + 2 * 12 * MIB
    even = dataclasses.replace(small, channels_in=128, channels_out=128)
    assert forward_scratch_bytes(even, [49 * MIB, MIB], [12 * MIB], FLOAT, is_laid_out=True) == 0


def test_a_stem_in_half_precision_reads_eight_channels() -> None:
    """96 images of 3 x 224 x 224 are 27.5625 MiB, and 73.5 with 8 channels; the result has 64 x 112 x 112: 147 MiB."""
    image, weight, result = 96 * 3 * 224 * 224 * HALF, 64 * 3 * 49 * HALF, 96 * 64 * 112 * 112 * HALF
    stem = dataclasses.replace(DENSE, kernel=(7, 7), channels_in=3, is_strided=True)
    assert forward_bytes(stem, image, weight, result, HALF) == int(73.5 * MIB) + weight * 8 // 3 + 147 * MIB
    # In float32 the image is copied as it is.
    assert forward_bytes(stem, image, weight, result) == image + weight + result


def test_backward_is_two_calls_that_copy_the_gradient_and_the_image() -> None:
    """First the image's gradient, which takes the weight too, then the weight's, which it makes.

    A gradient of 40 MiB in 8,192 channels is of 1,280 pixels: one sum.
    """
    wide = dataclasses.replace(DENSE, channels_out=8192)
    assert backward_bytes(wide, 40 * MIB, 24 * MIB, MIB) == (65 * MIB, 65 * MIB)
    assert backward_scratch_bytes(wide, [20 * MIB, 12 * MIB, MIB], HALF, 132) == (33 * MIB, 33 * MIB)
    # What nobody asks for is not computed: the first layer's image, or weights that do not learn.
    assert backward_bytes(dataclasses.replace(wide, gives_image=False), 40 * MIB, 24 * MIB, MIB) == (0, 65 * MIB)
    assert backward_bytes(dataclasses.replace(wide, gives_weight=False), 40 * MIB, 24 * MIB, MIB) == (65 * MIB, 0)
    # 192 channels in 8 groups are 24 a group: in half precision 32, in the weight too.
    grouped = dataclasses.replace(DENSE, groups=8, channels_in=192, channels_out=8192)
    assert backward_scratch_bytes(grouped, [40 * MIB, 24 * MIB, 3 * MIB], HALF, 132)[0] == (40 + 32 + 4) * MIB


def test_a_gradient_of_few_weights_is_summed_in_parts() -> None:
    """As many as keep 132 multiprocessors busy, each with a block of 64 filters by 256 columns; 1,024 pixels at least.

    VGG-16's second convolution: 64 filters of 64 x 9 = 576 columns are 1 x 3 blocks, so 132 / 3 = 44 parts.
    """
    copies = 2 * VGG_IMAGE_BYTES
    assert backward_bytes(DENSE, VGG_IMAGE_BYTES, VGG_IMAGE_BYTES, VGG_WEIGHT_BYTES) == (
        copies + VGG_WEIGHT_BYTES,
        copies + 44 * VGG_WEIGHT_BYTES,
    )
    # 8 images of 32 x 32 are 8,192 pixels: 8 parts. In 2 MiB of 64 channels.
    assert backward_bytes(DENSE, 2 * MIB, 2 * MIB, VGG_WEIGHT_BYTES)[1] == 4 * MIB + 8 * VGG_WEIGHT_BYTES
    # 1,280 filters of 320 columns are 20 x 2 blocks: 3 parts. 1 x 1 copies nothing.
    pointwise = dataclasses.replace(DENSE, kernel=(1, 1), channels_in=320, channels_out=1280)
    weight_bytes = 1280 * 320 * FLOAT
    assert backward_bytes(pointwise, 20 * MIB, 5 * MIB, weight_bytes) == (0, 3 * weight_bytes)
    # Blocks of 64 by 64 and parts of 2,048 pixels in half precision, but the parts are float32: 1 x 9 blocks here.
    halves = [VGG_IMAGE_BYTES // 2, VGG_IMAGE_BYTES // 2, VGG_WEIGHT_BYTES // 2]
    assert backward_scratch_bytes(DENSE, halves, HALF, 132)[1] == copies // 2 + 14 * VGG_WEIGHT_BYTES


@pytest.mark.parametrize(
    ("channels", "pixels", "images", "element_bytes", "is_imagewise"),
    [
        ((320, 1280), 7, 96, HALF, True),  # MobileNetV2's last
        ((384, 768), 7, 64, HALF, True),  # RepViT's feed-forward, the way out
        ((768, 384), 7, 64, HALF, False),  # and back
        ((640, 224), 28, 32, HALF, True),
        ((512, 1000), 13, 256, HALF, False),  # SqueezeNet's classifier
        ((128, 1024), 7, 128, HALF, False),
        ((192, 320), 7, 64, FLOAT, True),
        ((768, 768), 32, 12, FLOAT, True),  # ConvMixer: 12 weights are 27 MiB, images and gradients 72
        ((512, 1000), 13, 256, FLOAT, False),
    ],
)
def test_pointwise_weights_are_summed_image_by_image(
    channels: tuple[int, int], pixels: int, images: int, element_bytes: int, *, is_imagewise: bool
) -> None:
    """A product for each image, added up afterwards, takes a weight in float32 for each; else both are copied."""
    read, made = channels
    geometry = dataclasses.replace(
        DENSE, kernel=(1, 1), channels_in=read, channels_out=made, image=(pixels, pixels), groups=1
    )
    one = pixels * pixels * images * element_bytes
    taken = backward_scratch_bytes(geometry, [made * one, read * one, read * made * element_bytes], element_bytes, 1)
    expected = images * read * made * FLOAT if is_imagewise else (read + made) * one
    assert taken == (0, expected)


def test_a_linear_layer_as_a_convolution_takes_none() -> None:
    """Images of one pixel are one product, whatever the channels; 64 of them are too few to be summed in parts."""
    head = dataclasses.replace(DENSE, kernel=(1, 1), channels_in=320, channels_out=1280, image=(1, 1))
    sizes = [64 * 1280 * HALF, 64 * 320 * HALF, 320 * 1280 * HALF]
    assert backward_scratch_bytes(head, sizes, HALF, 132) == (0, 0)


def test_an_input_in_neither_layout_is_copied_first() -> None:
    """A slice or a transposed image: torch makes it contiguous, whatever kernel runs; backward reads what it saved."""
    copied = dataclasses.replace(DENSE, is_copied=True)
    assert contiguous_bytes(copied, [24 * MIB, MIB], [24 * MIB], 4) == 24 * MIB
    assert contiguous_bytes(DENSE, [24 * MIB, MIB], [24 * MIB], 4) == 0
    assert forward_bytes(copied, 24 * MIB, MIB, 48 * MIB) == (24 + 1 + 48) * MIB
    assert backward_bytes(copied, 40 * MIB, 24 * MIB, MIB)[0] == (40 + 24 + 1) * MIB


@pytest.mark.parametrize(
    ("channels_of_storage", "pixels_of_result", "copied_channels"),
    [
        (96, 56 * 56, 96),  # all of it
        (96, 50 * 50, 96),  # all of it, without padding
        (512, 56 * 56, 96),  # a part: 85.3 images would fit
        (192, 56 * 56, 96),  # half of it: of 32 images half the pixels could not come
    ],
)
def test_of_a_part_the_part_is_copied(channels_of_storage: int, pixels_of_result: int, copied_channels: int) -> None:
    """16 images of 96 channels, 56 x 56, in bfloat16, split off a storage of more: its other channels stay."""
    attribute = (
        "kernel=7x7,stride=1x1,dilation=1x1,groups=96,transposed=0,channels=96x96,image=56x56,layout=nchw,copied=1"
    )
    geometry = parse_geometry(attribute)
    assert geometry is not None
    read, written = (16 * 2 * size for size in (channels_of_storage * 56 * 56, 96 * pixels_of_result))
    assert contiguous_bytes(geometry, [read], [written], 2) == 16 * copied_channels * 56 * 56 * 2


@pytest.mark.parametrize(("channels_of_storage", "copied_channels"), [(48, 48), (144, 48)])
def test_of_a_part_the_part_is_copied_where_a_stride_halves_it(channels_of_storage: int, copied_channels: int) -> None:
    """16 images of 48 channels, 112 x 112, in float32, a third of a storage: each makes a quarter as many pixels."""
    attribute = (
        "kernel=5x5,stride=2x2,dilation=1x1,groups=48,transposed=0,channels=48x48,image=112x112,layout=nchw,copied=1"
    )
    geometry = parse_geometry(attribute)
    assert geometry is not None
    read, written = 16 * channels_of_storage * 112 * 112 * 4, 16 * 48 * 56 * 56 * 4
    assert contiguous_bytes(geometry, [read], [written], 4) == 16 * copied_channels * 112 * 112 * 4


@pytest.mark.parametrize(
    ("geometry", "result_pixels", "is_written"),
    [
        (dataclasses.replace(DENSE, kernel=(3,), image=(1026,)), 1024, True),  # 192 products: a temporal network
        (dataclasses.replace(DENSE, kernel=(3,), image=(256,)), 254, False),  # 254 values are no whole vectors of four
        (dataclasses.replace(DENSE, kernel=(15,), image=(1024,)), 1024, False),  # 960 products
        (dataclasses.replace(DENSE, kernel=(3, 3, 3)), 1, True),  # 1,728 products: a video ResNet's
        (dataclasses.replace(DENSE, kernel=(3, 3, 3), channels_in=128), 1, False),
        (dataclasses.replace(DENSE, kernel=(3, 7, 7), channels_in=128), 1, True),
        (dataclasses.replace(DENSE, kernel=(3, 3, 3), is_strided=True), 1, False),
    ],
)
def test_sums_of_few_products_are_written_as_they_lie(
    geometry: Geometry, result_pixels: int, *, is_written: bool
) -> None:
    """Sequences and volumes in float32: image and weight are copied, the result is not."""
    image = 96 * geometry.channels_in * prod(geometry.image) * FLOAT
    result = 96 * geometry.channels_out * result_pixels * FLOAT
    copied = image + MIB + (0 if is_written else result)
    assert forward_bytes(geometry, image, MIB, result) == copied
    assert forward_bytes(geometry, image // 2, MIB, result // 2, HALF) == image // 2 + MIB + result // 2


LAST = dataclasses.replace(DENSE, is_channels_last=True)


@pytest.mark.parametrize(
    ("geometry", "expected_mib"),
    [
        (LAST, 0),
        (dataclasses.replace(LAST, kernel=(1, 1)), 0),
        # 24 channels a group are computed as 32, image and result: 32 x 147 / 24 + 32 x 36.75 / 24, and a weight.
        (dataclasses.replace(LAST, groups=2, channels_in=48, channels_out=48), 196 + 16 / 9 + 49),
        (dataclasses.replace(LAST, groups=8), 0),  # 8 are as many as it computes with
        (dataclasses.replace(LAST, groups=16), 0),
        (dataclasses.replace(LAST, groups=64), 0),  # depthwise
        # An RGB image is copied once more; where RGB is made, all is converted.
        (dataclasses.replace(LAST, channels_in=3), 147),
        (dataclasses.replace(LAST, channels_out=3, is_transposed=True), 147 + 1 + 36.75),
        (dataclasses.replace(LAST, channels_out=3), 0),
        # Only images of two dimensions are laid out in channels last.
        (dataclasses.replace(LAST, kernel=(3, 3, 3), channels_in=128), 147 + 1 + 36.75),
        (dataclasses.replace(LAST, kernel=(15,)), 147 + 1 + 36.75),
    ],
)
def test_what_a_compiled_convolution_copies(geometry: Geometry, expected_mib: float) -> None:
    """An image of 147 MiB that the graph made, a weight of 1 MiB, a result of 36.75 MiB."""
    read, written = [147 * MIB, MIB], [int(36.75 * MIB)]
    taken = forward_scratch_bytes(geometry, read, written, FLOAT, is_laid_out=True)
    assert taken == int(expected_mib * MIB)


def test_what_kernels_copy_in_a_compiled_graph() -> None:
    """An RGB image, groups of other than a power of two, and in half precision a few groups of one."""
    stem = dataclasses.replace(LAST, channels_in=3)
    assert forward_scratch_bytes(stem, [8 * MIB, MIB], [MIB], FLOAT, is_laid_out=True) == 8 * MIB
    assert backward_scratch_bytes(LAST, [MIB // 4, 8 * MIB, MIB], FLOAT, 132, is_laid_out=True) == (0, 0)
    # 24 channels of a group to 32.
    grouped = dataclasses.replace(LAST, groups=2, channels_in=48, channels_out=48)
    backward = backward_scratch_bytes(grouped, [3 * MIB // 16, 6 * MIB, 9 * MIB], FLOAT, 132, is_laid_out=True)
    assert backward == (MIB // 4 + 8 * MIB + 16 * MIB, MIB // 4 + 8 * MIB + 16 * MIB)
    paired = dataclasses.replace(LAST, groups=2)
    assert forward_scratch_bytes(paired, [8 * MIB, MIB], [MIB], HALF, is_laid_out=True) == 10 * MIB
    assert forward_scratch_bytes(paired, [8 * MIB, MIB], [MIB], FLOAT, is_laid_out=True) == 0


def test_nodes_without_sizes_take_none() -> None:
    """A trace may name no inputs or outputs, or an unknown type."""
    assert forward_scratch_bytes(DENSE, [], [MIB], FLOAT) == 0
    assert forward_scratch_bytes(DENSE, [MIB], [], FLOAT) == 0
    assert forward_scratch_bytes(DENSE, [], [], FLOAT) == 0
    assert backward_bytes(DENSE) == (0, 0)
    assert backward_bytes(DENSE, MIB, MIB) == (0, 0)
    assert backward_scratch_bytes(DENSE, [MIB, MIB, MIB], 0, 132) == (0, 0)


def test_more_groups_than_channels_are_no_geometry() -> None:
    """A graph may say anything: what no convolution is has no scratch, and nothing is divided by."""
    assert parse_geometry("kernel=3x3,groups=4,channels=2x8,layout=nchw") is None
    assert parse_geometry(f"kernel=3x3,groups={10**30},channels=64x64,layout=nchw") is None


@pytest.mark.parametrize(
    ("dilation", "size", "result_size", "parts"),
    [
        (8, 56, 40, 1),  # its kernel reaches over 16 pixels
        (1, 7, 5, 3),  # a third, without padding
        (1, 14, 14, 3),  # a third, with the usual padding
    ],
)
def test_without_padding_a_result_is_smaller_by_what_its_kernel_reaches_over(
    dilation: int, size: int, result_size: int, parts: int
) -> None:
    """16 images of 64 channels in half precision under a kernel of 3 x 3, out of a storage of as many parts."""
    geometry = dataclasses.replace(DENSE, is_copied=True, image=(size, size), dilation=dilation)
    image, result = (16 * 64 * HALF * side * side for side in (size, result_size))
    assert contiguous_bytes(geometry, [parts * image], [result], HALF) == image
