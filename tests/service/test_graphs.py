"""The cache of graphs by id."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from peakcast.featurizer.spec import GraphSpec
from peakcast.service.examples import example_request
from peakcast.service.graphs import _OVERHEAD_BYTES, GraphCache, graph_bytes


def spec_of(nodes: int, **captured_with: str) -> GraphSpec:
    """Return a graph with one more storage of `nodes` bytes, so that its id differs from every other."""
    document = example_request()["graph"]
    document["traces"]["eager"]["storages"]["bytes"][0] += nodes
    return GraphSpec.from_json({**document, "captured_with": captured_with})


def test_the_columns_are_what_a_graph_weighs() -> None:
    """The size counts every column: 3 of one byte, 3 of four, one of eight a node, and the tables."""
    spec = spec_of(0).redacted()
    columns = 0
    for trace in spec.traces.values():
        count, storages = len(trace), len(trace.storages)
        edges = len(trace.inputs.ids) + len(trace.outputs.ids)
        columns += count * (4 * 1 + 3 * 4 + 8) + 4 * (2 * (count + 1) + edges) + storages * (8 + 1 + 1 + 4 + 4)
    # `sys.getsizeof` of an ASCII text is 49 bytes and one for each character.
    names = sum(49 - 8 + len(name) for name in (*spec.ops, *spec.dtypes))
    assert columns + names <= graph_bytes(spec) <= columns + names + 64 * (len(spec.ops) + len(spec.dtypes))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40))
def test_the_least_recently_used_graph_goes_first(order: list[int]) -> None:
    """Room for three graphs holds the last three different ones, and never more bytes than allowed."""
    one_bytes = graph_bytes(spec_of(0).redacted()) + _OVERHEAD_BYTES
    cache = GraphCache(3 * one_bytes)
    for name in order:
        cache.put(spec_of(name))
        assert cache.size_bytes <= 3 * one_bytes
    last = list(dict.fromkeys(reversed(order)))
    for position, name in enumerate(last):
        assert (cache.get(spec_of(name).graph_id) is not None) == (position < 3)


def test_a_cache_of_no_bytes_keeps_nothing() -> None:
    """With 0 bytes every graph is used once and forgotten."""
    cache = GraphCache(0)
    held = cache.put(spec_of(1))
    assert held.spec.graph_id == spec_of(1).graph_id
    assert cache.get(spec_of(1).graph_id) is None


def test_source_lines_are_not_kept() -> None:
    """The held graph has neither lines nor indices into them."""
    document = example_request()["graph"]
    document["lines"] = ["train.py:6"]
    for trace in document["traces"].values():
        trace["line"] = [0] * len(trace["phase"])
    held = GraphCache(1 << 20).put(GraphSpec.from_json(document))
    assert held.spec.lines == ()
    assert set(held.spec.traces["eager"].line.tolist()) == {-1}


def test_the_same_graph_captured_otherwise_takes_the_others_place() -> None:
    """`captured_with` is no part of the id: the graph sent last is the one held, and its answers start anew."""
    cache = GraphCache(1 << 20)
    first, second = spec_of(1, torch="2.11.0"), spec_of(1, torch="2.13.0")
    assert first.graph_id == second.graph_id
    kept = cache.put(first)
    assert cache.put(replace(first, limits=first._limits)) is kept
    assert cache.put(second) is not kept
    assert cache.get(first.graph_id, {"torch": "2.11.0"}) is None
    assert cache.get(first.graph_id, {"torch": "2.13.0"}) is not None
    assert cache.count == 1
