"""GraphSpec survives the wire unchanged and knows a graph by what it does."""

from __future__ import annotations

import hashlib
import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import graph_specs

from peakcast.featurizer.limits import Limits
from peakcast.featurizer.spec import GraphSpec, SpecError, Symbol, walk
from peakcast.featurizer.trace import Csr, Storages, Trace


def two_nodes(**changes: Any) -> Trace:
    """Y = x @ w, then relu in place: storages x, w, y."""
    columns: dict[str, Any] = {
        "phase": np.array([0, 0], np.uint8),
        "op": np.array([0, 1], np.int32),
        "rank": np.array([2, 2], np.uint8),
        "numel": np.array([24, 24], np.int64),
        "dtype": np.array([0, 0], np.uint8),
        "device": np.array([1, 1], np.uint8),
        "line": np.array([0, -1], np.int32),
        "region": np.array([-1, -1], np.int32),
        "inputs": Csr(np.array([0, 2, 3], np.int32), np.array([0, 1, 2], np.int32)),
        "outputs": Csr(np.array([0, 1, 2], np.int32), np.array([2, 2], np.int32)),
        "storages": Storages(
            bytes=np.array([64, 96, 96], np.int64),
            device=np.array([1, 1, 1], np.uint8),
            role=np.array([2, 0, 7], np.uint8),
            born=np.array([-1, -1, 0], np.int32),
            died=np.array([-1, -1, 1], np.int32),
        ),
    }
    return Trace(**(columns | changes))


def spec_of(trace: Trace, **changes: Any) -> GraphSpec:
    """Return the spec of one eager trace."""
    fields: dict[str, Any] = {
        "ops": ("aten.mm.default", "aten.relu_.default"),
        "dtypes": ("float32",),
        "lines": ("net.py:7 y = x @ w",),
        "traces": {"eager": trace},
    }
    return GraphSpec(**(fields | changes))


def equal_columns(a: Any, b: Any) -> bool:
    """Compare traces column by column, dtype included."""
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, Trace | Storages | Csr):
        return all(equal_columns(getattr(a, name), getattr(b, name)) for name in a.__slots__)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(equal_columns, a, b))
    return bool(a == b)


def test_document_is_the_one_of_the_contract() -> None:
    """The JSON holds the columns under the names of the dataclass fields, and leaves out what is empty."""
    document = json.loads(spec_of(two_nodes()).to_json())
    assert document == {
        "schema": 1,
        "ops": ["aten.mm.default", "aten.relu_.default"],
        "dtypes": ["float32"],
        "captured_with": {},
        "lines": ["net.py:7 y = x @ w"],
        "traces": {
            "eager": {
                "phase": [0, 0],
                "op": [0, 1],
                "rank": [2, 2],
                "numel": [24, 24],
                "dtype": [0, 0],
                "device": [1, 1],
                "inputs": {"offsets": [0, 2, 3], "ids": [0, 1, 2]},
                "outputs": {"offsets": [0, 1, 2], "ids": [2, 2]},
                "storages": {
                    "bytes": [64, 96, 96],
                    "device": [1, 1, 1],
                    "role": [2, 0, 7],
                    "born": [-1, -1, 0],
                    "died": [-1, -1, 1],
                },
                "line": [0, -1],
            }
        },
    }


def test_graph_id_is_the_hash_of_the_canonical_json() -> None:
    """Anybody can compute graph_id: sorted keys, no spaces, without lines, line and captured_with."""
    spec = spec_of(two_nodes(), captured_with={"torch": "2.13.0"})
    document = spec.to_dict()
    del document["lines"], document["captured_with"], document["traces"]["eager"]["line"]
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    assert spec.graph_id == hashlib.sha256(canonical).hexdigest()


@given(graph_specs())
def test_round_trip(spec: GraphSpec) -> None:
    """Bytes to spec to bytes is the identity, and every column comes back as it was."""
    document = spec.to_json()
    back = GraphSpec.from_json(document)
    assert back.to_json() == document
    assert back == spec
    assert back.graph_id == spec.graph_id
    assert GraphSpec.from_json(spec.to_dict()).to_json() == document
    assert GraphSpec.from_json(document.decode()).to_json() == document
    assert (back.ops, back.dtypes, back.lines) == (spec.ops, spec.dtypes, spec.lines)
    assert back.attributes == spec.attributes
    assert back.symbols == spec.symbols
    assert back.captured_with == spec.captured_with
    assert back.plans == spec.plans
    for plan, trace in spec.traces.items():
        assert equal_columns(back.traces[plan], trace)


def shuffled(value: Any, random: Any) -> Any:
    """Return the document with the keys of every object in another order."""
    if isinstance(value, dict):
        keys = list(value)
        random.shuffle(keys)
        return {key: shuffled(value[key], random) for key in keys}
    return [shuffled(v, random) for v in value] if isinstance(value, list) else value


@given(graph_specs(), st.randoms(use_true_random=False))
def test_graph_id_does_not_depend_on_key_order_or_lines(spec: GraphSpec, random: Any) -> None:
    """The same graph sent with other key order, without lines or from another torch has the same id."""
    document = shuffled(spec.to_dict(), random)
    assert GraphSpec.from_json(document).graph_id == spec.graph_id
    assert spec.redacted().graph_id == spec.graph_id
    document["captured_with"] = {"torch": "9.9"}
    assert GraphSpec.from_json(document).graph_id == spec.graph_id


@given(graph_specs())
def test_redacted_tells_no_source(spec: GraphSpec) -> None:
    """A redacted spec holds no line, at any depth, and is a valid document."""
    redacted = GraphSpec.from_json(spec.redacted().to_json())
    assert redacted.lines == ()
    for trace in redacted.traces.values():
        assert all((inner.line == -1).all() for inner in walk(trace))


def test_absent_columns_get_their_defaults() -> None:
    """Line and region may be absent; every entry is then -1."""
    document = spec_of(two_nodes()).redacted().to_dict()
    assert "line" not in document["traces"]["eager"]
    assert "region" not in document["traces"]["eager"]
    trace = GraphSpec.from_json(document).traces["eager"]
    assert trace.line.tolist() == trace.region.tolist() == [-1, -1]


def test_graph_id_depends_on_what_the_step_does() -> None:
    """A single byte more in one storage is another graph."""
    document = spec_of(two_nodes()).to_dict()
    document["traces"]["eager"]["storages"]["bytes"][0] += 1
    assert GraphSpec.from_json(document).graph_id != spec_of(two_nodes()).graph_id


def convolved(attributes: tuple[str, ...], column: list[int]) -> GraphSpec:
    """Return the spec of the two nodes with these attributes."""
    return spec_of(two_nodes(attribute=np.array(column, np.int32)), attributes=attributes)


def test_attributes_are_part_of_the_document() -> None:
    """Table and column are written and read; where there are none, neither stands in the document."""
    spec = convolved(("kernel=3x3", "kernel=1x1"), [1, -1])
    document = spec.to_dict()
    assert document["attributes"] == ["kernel=3x3", "kernel=1x1"]
    assert document["traces"]["eager"]["attribute"] == [1, -1]
    assert GraphSpec.from_json(document).traces["eager"].attribute.tolist() == [1, -1]
    bare = spec_of(two_nodes())
    assert not {"attributes", "attribute"} & {*bare.to_dict(), *bare.to_dict()["traces"]["eager"]}
    assert GraphSpec.from_json(bare.to_json()).traces["eager"].attribute.tolist() == [-1, -1]


def test_graph_id_depends_on_attributes() -> None:
    """A convolution of another geometry is another graph, and so is the same on another node; lines are not."""
    specs = [
        spec_of(two_nodes()),
        convolved(("kernel=3x3",), [0, -1]),
        convolved(("kernel=3x3",), [-1, 0]),
        convolved(("kernel=1x1",), [0, -1]),
    ]
    assert len({spec.graph_id for spec in specs}) == len(specs)
    assert specs[1].redacted().graph_id == specs[1].graph_id
    assert specs[1].redacted().attributes == ("kernel=3x3",)


def test_spec_travels_between_processes() -> None:
    """A spec is pickled as its JSON, so that joblib workers can take it."""
    spec = spec_of(two_nodes())
    assert pickle.loads(pickle.dumps(spec)) == spec  # noqa: S301  # our own bytes


def test_own_limits_last_through_derived_specs() -> None:
    """A spec accepted under wider limits can be redacted under them."""
    wide = Limits(max_rank=200)
    trace = two_nodes(rank=np.array([100, 2], np.uint8))
    with pytest.raises(SpecError, match="rank"):
        spec_of(trace)
    assert spec_of(trace, limits=wide).redacted().traces["eager"].rank[0] == 100


def symbolic() -> GraphSpec:
    """Y has 6 * batch elements of 4 bytes, captured at batch 4; w does not vary."""
    trace = two_nodes(numel_poly=(((6, (("batch", 1),)),), ((6, (("batch", 1),)),)))
    s = trace.storages
    y = ((24, (("batch", 1),)),)
    storages = Storages(s.bytes, s.device, s.role, s.born, s.died, bytes_poly=(((16, (("batch", 1),)),), None, y))
    trace = two_nodes(numel_poly=trace.numel_poly, storages=storages)
    return spec_of(trace, symbols={"batch": Symbol(hint=4, min=1, max=1 << 32)})


def test_sizes_at_another_batch() -> None:
    """`at` computes what varies with the batch and leaves the weight alone."""
    trace = symbolic().at({"batch": 16}).traces["eager"]
    assert trace.numel.tolist() == [96, 96]
    assert trace.storages.bytes.tolist() == [256, 96, 384]
    assert symbolic().at({}).graph_id == symbolic().graph_id
    assert symbolic().at({"batch": 16}).at({"batch": 4}) == symbolic()


@pytest.mark.parametrize(
    ("values", "code", "words"),
    [
        ({"batch": 0}, "out_of_range", "from 1 to"),
        ({"batch": (1 << 32) + 1}, "out_of_range", "from 1 to"),
        ({"batch": 1.5}, "out_of_range", "1.5 is not an integer"),
        ({"batch": True}, "out_of_range", "True is not an integer"),
        ({"length": 8}, "invalid_name", "it has batch"),
    ],
)
def test_symbols_keep_to_their_range(values: Any, code: str, words: str) -> None:
    """A value outside min and max, of another type or of no symbol is refused with what is allowed."""
    with pytest.raises(SpecError, match=words) as caught:
        symbolic().at(values)
    assert caught.value.code == code


def test_sizes_do_not_overflow() -> None:
    """A size beyond what a storage may have is an error, never a wrapped integer."""
    term = (1 << 40, (("batch", 4),))  # 2^40 at batch 1, 2^168 at batch 2^32
    trace = two_nodes(numel=np.array([1 << 40, 24], np.int64), numel_poly=((term,), None))
    spec = spec_of(trace, symbols={"batch": Symbol(hint=1, min=1, max=1 << 32)})
    for batch in (6, 1 << 32):
        with pytest.raises(SpecError, match="numel_poly") as caught:
            spec.at({"batch": batch})
        assert caught.value.code == "out_of_range"
    assert spec.at({"batch": 5}).traces["eager"].numel[0] == 625 << 40


@given(graph_specs(), st.data())
def test_every_size_at_every_value_is_its_polynomial(spec: GraphSpec, data: st.DataObject) -> None:
    """At any allowed values each size is what the polynomial gives, computed here term by term."""
    values = {name: data.draw(st.integers(s.min, s.max)) for name, s in spec.symbols.items()}
    for plan, trace in spec.at(values).traces.items():
        for row, polynomial in enumerate(trace.storages.bytes_poly):
            expected = spec.traces[plan].storages.bytes[row]
            if polynomial is not None:
                (factor, ((name, power),)), (constant, _) = polynomial
                expected = factor * values[name] ** power + constant
            assert trace.storages.bytes[row] == expected
