"""Products of odd sizes are tried padded while inductor compiles: both factors, their padded copies, the result."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from fusing import EXP, MM
from handmade import Sketch

from peakcast.featurizer.pad_trials import padding_trial
from peakcast.featurizer.trace import Trace
from peakcast.featurizer.vocabulary import INPUT, PARAMETER

PAD = "aten.constant_pad_nd.default"


def product(rows: int, inner: int, columns: int, *, element: int = 4, region: int = 0) -> tuple[Trace, tuple[str, ...]]:
    """Return a step that multiplies [rows, inner] by [inner, columns]."""
    sketch = Sketch()
    x, weight = sketch.start(rows * inner * element, INPUT), sketch.start(inner * columns * element, PARAMETER)
    sketch.node(MM, rows * columns * element, reads=[x, weight])
    trace = sketch.trace()
    trace.region[:] = region
    trace.numel[:] = rows * columns
    return trace, tuple(sketch.ops)


def test_an_odd_vocabulary_is_padded_in_weight_and_logits() -> None:
    """50,257 columns of float32 are padded to 50,260: the weight is copied, the activation is not."""
    trace, ops = product(4096, 768, 50257)
    assert padding_trial(trace, ops, ("float32",)) == (
        4 * 4096 * 768,
        4 * 768 * 50257,
        4 * 768 * 50260,
        4 * 4096 * 50260,
    )


def test_in_half_precision_multiples_of_eight_are_aligned() -> None:
    """30,524 is a multiple of four, not of eight: padded in bfloat16 to 30,528, and not in float32."""
    trace, ops = product(4096, 768, 30524, element=2)
    assert padding_trial(trace, ops, ("bfloat16",))[-1] == 2 * 4096 * 30528
    trace, ops = product(4096, 768, 30524)
    assert padding_trial(trace, ops, ("float32",)) == ()


def test_what_waits_for_memory_is_tried_too() -> None:
    """Four rows compute little for each element that is read; without clock rates inductor cannot tell."""
    trace, ops = product(4, 768, 50257)
    assert padding_trial(trace, ops, ("float32",))[-1] == 4 * 4 * 50260


def test_a_replayed_product_is_tried_as_well() -> None:
    """It is in no region, and reads last what its result is written to."""
    sketch = Sketch()
    x, weight = sketch.start(4 * 4096 * 768, INPUT), sketch.start(4 * 768 * 50257, PARAMETER)
    (logits,) = sketch.node("inductor.kernel", 4 * 4096 * 50257, reads=[x])
    sketch.node("aten.mm.out", reads=[x, weight, logits], writes=[logits])
    trace = replace(sketch.trace(), replayed=True)
    trace.numel[:] = 4096 * 50257
    expected = padding_trial(*product(4096, 768, 50257), ("float32",))
    assert padding_trial(trace, tuple(sketch.ops), ("float32",)) == expected


def test_what_runs_eagerly_is_not_tried() -> None:
    """An eager product is nobody's to pad."""
    trace, ops = product(4096, 768, 50257, region=-1)
    assert padding_trial(trace, ops, ("float32",)) == ()


def test_a_factor_that_is_part_of_a_larger_tensor_does_not_tell() -> None:
    """The elements are those of no product: no guess."""
    trace, ops = product(4096, 768, 50257)
    trace.storages.bytes[0] += 4 * 768
    assert padding_trial(trace, ops, ("float32",)) == ()


def test_where_the_graph_is_padded_already_the_trial_had_both() -> None:
    """The weight before and after padding, and the padded result."""
    sketch = Sketch()
    x, weight = sketch.start(4 * 64 * 100, INPUT), sketch.start(4 * 100 * 7, PARAMETER)
    (padded,) = sketch.node(PAD, 4 * 100 * 8, reads=[weight])
    (result,) = sketch.node(MM, 4 * 64 * 8, reads=[x, padded])
    sketch.node(EXP, 4, reads=[result])
    trace = sketch.trace()
    trace.region[:] = 0
    trace.numel[:] = np.array([100 * 8, 64 * 8, 1])
    assert padding_trial(trace, tuple(sketch.ops), ("float32",)) == (4 * 6400, 4 * 700, 4 * 800, 4 * 512)
