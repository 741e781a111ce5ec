"""Scratch of single calls is what an H200 took for them (torch 2.11.0+cu130, cuDNN 9.19), in forward and backward.

Each line is one convolution that ran alone: the bytes beyond what the call returns, of the result, of the image's
gradient and of the weight's. A workspace comes in blocks of 512 bytes, one for each copy, which the rules leave out.
"""

from __future__ import annotations

from math import prod

import pytest

from peakcast.featurizer.convolution import backward_scratch_bytes, forward_scratch_bytes
from peakcast.featurizer.convolution_geometry import parse_geometry

BLOCKS_BYTES = 3 * 512
H200_MULTIPROCESSORS = 132


def simulated(line: str) -> tuple[int, int, int]:
    """Return what the rules say of a line: type, layout, batch, channels, groups, image, kernel, stride, result."""
    kind, layout, batch, channels, groups, image, kernel, stride, result = line.split()
    transposed = kind.endswith("T")
    element_bytes = 2 if kind.startswith("bf16") else 4
    geometry = parse_geometry(
        f"kernel={kernel},stride={stride},dilation=1,groups={groups},transposed={int(transposed)},"
        f"channels={channels},image={image},layout={layout},copied=0"
    )
    assert geometry is not None
    pixels_read, pixels_made = (prod(int(size) for size in sizes.split("x")) for sizes in (image, result))
    read = int(batch) * geometry.channels_in * pixels_read * element_bytes
    made = int(batch) * geometry.channels_out * pixels_made * element_bytes
    weight = geometry.channels_out * geometry.products * element_bytes
    forward = forward_scratch_bytes(geometry, [read, weight], [made], element_bytes)
    backward = backward_scratch_bytes(geometry, [made, read, weight], element_bytes, H200_MULTIPROCESSORS)
    return forward, *backward


@pytest.mark.parametrize(
    ("line", "measured"),
    [
        # Image, weight and result are copied: 4 x 672 x 49, 1536 x 672 x 9 and 4 x 1536 x 49 values of 2 bytes.
        ("bf16 nchw 4 672x1536 1 7x7 3x3 1 7x7", (19_445_248, 19_445_248, 19_445_248)),
        ("fp32 nchw 64 112x224 1 8x8 3x3 2 4x4", (3_656_192, 3_656_192, 3_656_192)),
        ("bf16 nchw 64 640x256 1 1500 5 1 1500", (173_670_912, 173_670_912, 173_670_912)),
        ("fp32 nchw 2 192x240 1 8x56x56 3x3x3 2 4x28x28", (49_533_440, 49_533_440, 49_533_440)),
        ("bf16T nchw 32 1152x672 1 56x56 2x2 2 112x112", (776_897_024, 776_897_024, 776_897_024)),
        # 12 channels are padded to 16, in either layout; in channels last alone the rest is not copied.
        ("bf16 nchw 1 320x12 1 16x7x7 3x3x3 2 8x4x4", (782_848, 782_848, 782_848)),
        ("bf16 nhwc 64 1024x21 1 8x8 3x3 2 4x4", (492_032, 492_032, 492_032)),
        # 16 channels a group are a power of two.
        ("bf16 nchw 8 512x512 32 4x4 3x3 1 4x4", (410_112, 410_112, 410_112)),
        # 1 x 1 with a stride: image and result.
        ("bf16 nchw 16 3072x640 1 14x14 1x1 2 7x7", (20_271_616, 20_271_616, 20_271_616)),
        ("fp32 nchw 16 2048x1024 1 16x16 1x1 2 8x8", (37_749_248, 37_749_248, 37_749_248)),
        # 1 x 1 without: a weight in float32 for each of 32, 16, 64 and 32 images.
        ("bf16 nchw 32 640x224 1 28x28 1x1 1 28x28", (0, 0, 18_350_080)),
        ("bf16 nchw 16 12x768 1 7x7 1x1 1 7x7", (0, 0, 589_824)),
        ("fp32 nchw 64 192x320 1 7x7 1x1 1 7x7", (0, 0, 15_728_640)),
        ("fp32 nchw 32 192x256 1 4x56x56 1x1x1 1 4x56x56", (512, 512, 6_291_968)),
        # Depthwise in channels last: eight weights in float32 for each image, 40 channels as 64.
        ("bf16 nhwc 128 768x768 768 28x28 5x5 2 14x14", (0, 0, 78_643_200)),
        ("bf16 nhwc 32 40x40 40 28x28 3x3 1 28x28", (0, 0, 589_824)),
    ],
)
def test_a_call_takes_what_was_measured(line: str, measured: tuple[int, int, int]) -> None:
    """Forward, the gradient of the image and that of the weight, each to the block."""
    for taken, expected in zip(simulated(line), measured, strict=True):
        assert 0 <= expected - taken <= BLOCKS_BYTES


@pytest.mark.parametrize(
    ("line", "measured"),
    [
        # Written as they lie: image and weight alone.
        ("fp32 nchw 64 128x8 1 16000 5 1 16000", 524_308_992),
        ("fp32 nchw 16 96x1280 1 500 3 1 500", 4_547_072),
        ("fp32 nchw 16 384x32 1 4x14x14 3x1x1 1 4x14x14", 19_415_552),
        # 4,095 values are no whole vectors, and 3 x 240 products too many.
        ("fp32 nchw 1 80x672 1 4096 2 1 4095", 12_748_800),
        ("fp32 nchw 2 240x672 1 1500 3 1 1500", 12_879_872),
        # Few products over few channels need no copies, nor does RGB by 3 x 3 in half precision.
        ("fp32 nchw 128 8x128 1 8x8 3x3 1 8x8", 0),
        ("bf16 nchw 64 3x128 1 64x64 3x3 2 32x32", 0),
        # 24 channels a group are computed as 32, and the weight's on both sides.
        ("fp32 nchw 32 768x768 32 14x14 3x3 1 14x14", 52_560_384),
        # Larger kernels over RGB read 8 channels in half precision; 1 x 1 in channels last needs nothing.
        ("bf16 nchw 8 3x112 1 112x112 7x7 2 56x56", 7_313_408),
        ("fp32 nhwc 64 192x64 1 4x56x56 1x1x1 1 4x56x56", 0),
        # Float32 has no kernel in channels last for 7 x 7: image and weight are copied.
        ("fp32 nhwc 4 1024x192 1 8x8 7x7 1 8x8", 39_584_256),
    ],
)
def test_a_forward_call_takes_what_was_measured(line: str, measured: int) -> None:
    """What the other call or other engines take beyond is not asked for here."""
    assert 0 <= measured - simulated(line)[0] <= BLOCKS_BYTES
