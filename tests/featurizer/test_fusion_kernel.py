"""The compiled loops of the fusion rules decide what the Python rules decide, which have tests of their own."""

from __future__ import annotations

import lzma
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fusing import IN_CHANNELS_LAST
from hypothesis import given, settings
from strategies import graph_specs, programs

from peakcast.featurizer import compiled, fusion
from peakcast.featurizer.fusion import fused_lifetimes
from peakcast.featurizer.lifetimes import NO_REUSE, Lifetimes
from peakcast.featurizer.memory_order import MOST_LOOKS, Buffer, Program
from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.trace import Int64, Trace

pytest.importorskip("numba", reason="numba is not installed: the rules run in Python")


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> Iterator[None]:
    assert compiled.load()
    yield
    compiled.unload()


@pytest.fixture(scope="module")
def gpt2_small(data: Path) -> GraphSpec:
    """Return GPT-2 small as captured."""
    return GraphSpec.from_json(lzma.decompress((data / "gpt2_small.json.xz").read_bytes()))


def in_python(trace: Trace, ops: tuple[str, ...], attributes: tuple[str, ...]) -> Lifetimes:
    """Return the lifetimes without the compiled loops."""
    compiled.unload()
    try:
        return fused_lifetimes(trace, ops, attributes)
    finally:
        compiled.load()


def check_same(trace: Trace, ops: tuple[str, ...], attributes: tuple[str, ...]) -> Lifetimes:
    """Check that both give the same lifetimes, and return them."""
    found, expected = fused_lifetimes(trace, ops, attributes), in_python(trace, ops, attributes)
    for name in ("born", "died", "reuses", "time"):
        ours, theirs = getattr(found, name), getattr(expected, name)
        assert (ours is None) == (theirs is None)
        assert ours is None or (ours.dtype == theirs.dtype and ours.tolist() == theirs.tolist()), name
    return found


@given(programs())
@settings(max_examples=150)
def test_programs(program: tuple[tuple[str, ...], Trace]) -> None:
    """Births, deaths, takeovers and times agree on steps that could run."""
    ops, trace = program
    trace.attribute[:] = 0
    check_same(trace, ops, (IN_CHANNELS_LAST,))


@given(graph_specs())
@settings(max_examples=100)
def test_traces_that_make_no_sense(spec: GraphSpec) -> None:
    """So they do whatever a valid document says."""
    for trace in spec.traces.values():
        check_same(trace, spec.ops, spec.attributes)


def test_a_captured_graph(gpt2_small: GraphSpec) -> None:
    """So they do for GPT-2 on thousands of nodes, where kernels move and buffers change hands."""
    trace = gpt2_small.traces["inductor"]
    found = check_same(trace, gpt2_small.ops, gpt2_small.attributes)
    assert found.time is not None
    assert (found.time != np.arange(len(trace))).any()
    assert (found.reuses != NO_REUSE).sum() > 100


def test_a_graph_of_too_many_kernels_keeps_its_order(gpt2_small: GraphSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit neither moves a kernel or pools a buffer; in-place takeovers remain."""
    limits = list(fusion._LIMITS)
    limits[fusion._LIMITS.index(fusion.MOST_REORDERED)] = 0
    monkeypatch.setattr(fusion, "_LIMITS", tuple(limits))
    monkeypatch.setattr(fusion, "MOST_REORDERED", 0)
    trace = gpt2_small.traces["inductor"]
    found = check_same(trace, gpt2_small.ops, gpt2_small.attributes)
    assert found.time is not None
    assert found.time.tolist() == list(range(len(trace)))
    assert (found.reuses != NO_REUSE).any()


def random_program(seed: int, *, has_rings: bool) -> Program:
    """Return a program of up to 60 kernels: outputs, buffers that were given, some of no bytes, writes in turn."""
    rng = random.Random(seed)
    count = rng.randint(1, 60)
    buffers = []
    for _ in range(rng.randint(0, 3 * count)):
        maker = rng.choice([None, *range(count)])
        first = 0 if maker is None or (has_rings and rng.random() < 0.2) else maker + 1
        readers = {rng.randrange(first, count) for _ in range(rng.choice([0, 1, 1, 2, 5]))} if first < count else set()
        size_bytes = rng.choice([0, 1, 2, 512, rng.randrange(10**6)])
        buffers.append(Buffer(size_bytes, maker, readers - {maker}, is_output=rng.random() < 0.2))
    after = {kernel: {rng.randrange(kernel)} for kernel in range(1, count) if rng.random() < 0.2}
    return Program(count, buffers, after)


def int64(values: list[int]) -> Int64:
    """Return a column."""
    return np.array(values, np.int64)


@pytest.mark.parametrize("has_rings", [False, True])
def test_orders(*, has_rings: bool) -> None:
    """The cheapest order and what lives in it agree on 300 random programs; each of the orders wins some of them."""
    from peakcast.featurizer.memory_order_kernel import best_order

    winners = set()
    for seed in range(300):
        program = random_program(seed, has_rings=has_rings)
        reads = [(reader, number) for number, buffer in enumerate(program.buffers) for reader in buffer.readers]
        turns = [(other, kernel) for kernel, before in enumerate(program.predecessors) for other in before]
        order, live_bytes = best_order(
            program.count,
            int64([buffer.bytes for buffer in program.buffers]),
            int64([-1 if buffer.maker is None else buffer.maker for buffer in program.buffers]),
            int64([buffer.is_output for buffer in program.buffers]),
            *(int64([pair[side] for pair in reads]) for side in (0, 1)),
            *(int64([pair[side] for pair in turns]) for side in (0, 1)),
            MOST_LOOKS,
        )
        assert order.tolist() == program.best_order()
        assert live_bytes.tolist() == program.live_bytes(order.tolist())
        orders = [list(range(program.count)), program.least_peak_first(), program.breadth_first()]
        orders.append(program.smallest_first())
        winners.add(orders.index(order.tolist()))
    assert winners == {0, 1, 2, 3}
