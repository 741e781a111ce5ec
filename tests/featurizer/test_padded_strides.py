"""Attention over an odd number of tokens: probabilities lie in padded strides, and not in place of the scores."""

from __future__ import annotations

from dataclasses import replace

import pytest
from handmade import Sketch
from hypothesis import given, settings
from hypothesis import strategies as st

from peakcast.featurizer.fusion import fused_lifetimes
from peakcast.featurizer.lifetimes import NO_REUSE
from peakcast.featurizer.padded_strides import with_padded_strides
from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.trace import Trace
from peakcast.featurizer.vocabulary import DTYPE_BYTES, INPUT, OUTPUT, TEMPORARY

BMM, AMAX, SUB, CONVOLUTION = "aten.bmm.default", "aten.amax.default", "aten.sub.Tensor", "aten.convolution.default"
BATCH, WIDTH = 24, 64


def attention(tokens: int, last: str = BMM) -> tuple[Trace, GraphSpec, int, int]:
    """Return a region of 24 heads of width 64 in float32, and the storages of scores and probabilities.

    The scores less their largest stand for softmax; `last` reads them with the values.
    """
    sketch = Sketch()
    width_bytes, score_bytes = 4 * BATCH * tokens * WIDTH, 4 * BATCH * tokens * tokens
    query, key, value = (sketch.start(width_bytes, INPUT) for _ in range(3))
    (scores,) = sketch.node(BMM, score_bytes, role=TEMPORARY, reads=[query, key])
    (largest,) = sketch.node(AMAX, 4 * BATCH * tokens, role=TEMPORARY, reads=[scores])
    (weights,) = sketch.node(SUB, score_bytes, role=TEMPORARY, reads=[scores, largest], dies=[scores, largest])
    sketch.node(last, width_bytes, role=OUTPUT, reads=[weights, value], dies=[weights])
    spec = sketch.spec("inductor")
    trace = spec.traces["inductor"]
    trace.region[:] = 0
    trace.numel[:] = trace.storages.bytes[trace.outputs.ids] // 4
    return with_padded_strides(trace, spec.ops, spec.dtypes), spec, scores, weights


@pytest.mark.parametrize(
    ("tokens", "stride"),
    [
        (197, 38816),  # 38,809 elements of a matrix up to whole 32
        (1025, 1025 * 1056),  # rows too: 1,056 for 1,025
        (196, 38432),
    ],
)
def test_long_strides_are_whole_128_bytes(tokens: int, stride: int) -> None:
    """All matrices but the last take their stride; the product's own result lies dense."""
    trace, _, scores, weights = attention(tokens)
    row = 1056 if tokens == 1025 else tokens
    assert trace.storages.bytes[weights] == 4 * (23 * stride + (tokens - 1) * row + tokens)
    assert trace.storages.bytes[scores] == 4 * BATCH * tokens * tokens


@pytest.mark.parametrize("tokens", [128, 192, 31])
def test_what_is_aligned_or_short_lies_dense(tokens: int) -> None:
    """128 x 128 and 192 x 192 are whole multiples of 32; 31 x 31 is no long stride."""
    trace, spec, _, _ = attention(tokens)
    assert trace.storages.bytes.tolist() == spec.traces["inductor"].storages.bytes.tolist()


def test_so_one_does_not_take_the_place_of_the_other() -> None:
    """197 tokens hold scores and probabilities at once, 192 write them over the scores."""
    trace, spec, scores, weights = attention(192)
    assert fused_lifetimes(trace, spec.ops).reuses[weights] == scores
    trace, spec, _, weights = attention(197)
    assert fused_lifetimes(trace, spec.ops).reuses[weights] == NO_REUSE


def test_what_a_convolution_reads_lies_dense() -> None:
    """It would copy it: nothing on the way to it is padded, but past a reduction."""
    trace, spec, _, _ = attention(197, last=CONVOLUTION)
    assert trace.storages.bytes.tolist() == spec.traces["inductor"].storages.bytes.tolist()


def test_what_its_user_sees_lies_dense() -> None:
    """Probabilities that a graph returns: an eager node reads them."""
    _, spec, _, _ = attention(197)
    trace = spec.traces["inductor"]
    trace.region[-1] = -1
    assert with_padded_strides(trace, spec.ops, spec.dtypes).storages.bytes.tolist() == trace.storages.bytes.tolist()


SIZES = st.sampled_from([0, 1, 3, 8, 64, 197, 1025])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(SIZES, SIZES, SIZES), min_size=6, max_size=6), st.sampled_from(["float32", "bfloat16"]))
def test_a_strangers_attention_is_read(sizes: list[tuple[int, int, int]], dtype: str) -> None:
    """Whatever sizes products and reductions have that fit together or do not: no storage gets smaller."""
    bytes_of = [2 * a * b * c for a, b, c in sizes]
    sketch = Sketch()
    query, key, value = (sketch.start(size, INPUT) for size in bytes_of[:3])
    (scores,) = sketch.node(BMM, bytes_of[3], role=TEMPORARY, reads=[query, key])
    (largest,) = sketch.node(AMAX, bytes_of[4], role=TEMPORARY, reads=[scores])
    (weights,) = sketch.node(SUB, bytes_of[3], role=TEMPORARY, reads=[scores, largest], dies=[scores, largest])
    sketch.node(BMM, bytes_of[5], role=OUTPUT, reads=[weights, value], dies=[weights])
    spec = replace(sketch.spec("inductor"), dtypes=(dtype,))
    trace = spec.traces["inductor"]
    trace.region[:] = 0
    trace.numel[:] = trace.storages.bytes[trace.outputs.ids] // DTYPE_BYTES[dtype]
    padded = with_padded_strides(trace, spec.ops, spec.dtypes)
    assert (padded.storages.bytes >= trace.storages.bytes).all()
