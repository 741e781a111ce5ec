"""Whatever comes over the wire, the only error is a SpecError that says what was wrong and what is allowed."""

from __future__ import annotations

import contextlib
import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import graph_specs

from peakcast.featurizer.limits import Limits
from peakcast.featurizer.spec import GraphSpec, SpecError

VALID: dict[str, Any] = {
    "schema": 1,
    "ops": ["aten.mm.default", "higher_order.cond"],
    "dtypes": ["float32"],
    "symbols": {"batch": {"hint": 4, "min": 1, "max": 64}},
    "captured_with": {"torch": "2.13.0"},
    "lines": ["net.py:7"],
    "attributes": ["kernel=3x3,groups=1", "heads=12"],
    "traces": {
        "eager": {
            "phase": [0, 0],
            "op": [0, 1],
            "rank": [2, 2],
            "numel": [24, 24],
            "dtype": [0, 0],
            "device": [1, 1],
            "line": [0, -1],
            "region": [-1, 0],
            "attribute": [-1, 1],
            "inputs": {"offsets": [0, 1, 2], "ids": [0, 1]},
            "outputs": {"offsets": [0, 1, 2], "ids": [1, 1]},
            "storages": {"bytes": [64, 96], "device": [1, 1], "role": [2, 7], "born": [-1, 0], "died": [1, -1]},
            "numel_poly": [[[6, [["batch", 1]]]], None],
        }
    },
}
EMPTY: dict[str, Any] = {
    "phase": [],
    "op": [],
    "rank": [],
    "numel": [],
    "dtype": [],
    "device": [],
    "inputs": {"offsets": [0], "ids": []},
    "outputs": {"offsets": [0], "ids": []},
    "storages": {"bytes": [], "device": [], "role": [], "born": [], "died": []},
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """Return the valid document with one member set; `...` removes it."""
    document = copy.deepcopy(VALID)
    at: Any = document
    *parents, last = [int(key) if key.isdigit() else key for key in path.split("/")]
    for key in parents:
        at = at[key]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return document


def nested(levels: int) -> dict[str, Any]:
    """Return a trace of one node with conds nested `levels` deep."""
    trace = copy.deepcopy(EMPTY)
    for _ in range(levels):
        outer = copy.deepcopy(VALID["traces"]["eager"])
        del outer["line"]
        outer["branches"] = [[1, [trace]]]
        trace = outer
    return trace


T = "traces/eager"
CASES: list[tuple[str, Any, str | None, str, str]] = [
    # path, value, code, JSON path, words of the message
    ("schema", ..., "missing_key", "$", "'schema'"),
    ("schema", 2, "unsupported_schema", "$.schema", "is 2; allowed: 1"),
    ("schema", True, "unsupported_schema", "$.schema", "True"),
    ("extra", 1, "unknown_key", "$", "'extra'; allowed: schema, ops"),
    ("ops", {}, "wrong_type", "$.ops", "an array of strings"),
    ("ops/1", 7, "wrong_type", "$.ops[1]", "is 7; allowed: a string"),
    ("ops/1", "aten mm", "invalid_name", "$.ops[1]", "printable ASCII"),
    ("ops/1", "aten.mm\n", "invalid_name", "$.ops[1]", "'aten.mm\\n'"),
    ("ops/1", "x" * 201, "invalid_name", "$.ops[1]", "at most 200"),
    ("ops/1", "aten.mm.default", "inconsistent", "$.ops[1]", "twice"),
    ("dtypes/0", "torch.float32", "invalid_name", "$.dtypes[0]", "bfloat16"),
    ("lines/0", None, "wrong_type", "$.lines[0]", "a string"),
    ("lines/0", "x" * 1001, "limit_exceeded", "$.lines[0]", "1001 characters; allowed: 1000"),
    ("lines/0", "\ud800", "wrong_type", "$.lines[0]", "surrogate"),
    ("attributes", "heads=12", "wrong_type", "$.attributes", "an array of strings"),
    ("attributes/0", 3, "wrong_type", "$.attributes[0]", "is 3; allowed: a string"),
    ("attributes/0", "", "invalid_name", "$.attributes[0]", "attribute (printable ASCII without spaces)"),
    ("attributes/0", "kernel=3 x 3", "invalid_name", "$.attributes[0]", "'kernel=3 x 3'; allowed: a attribute"),
    ("attributes/0", "kernel=\u00b3", "invalid_name", "$.attributes[0]", "printable ASCII"),
    ("attributes/0", "x" * 201, "invalid_name", "$.attributes[0]", "at most 200"),
    ("attributes/0", "heads=12", "inconsistent", "$.attributes[1]", "twice"),
    ("attributes", ["heads=12"], "out_of_range", "$.traces.eager.attribute[1]", "is 1; allowed: -1 to 0"),
    ("attributes", ..., "out_of_range", "$.traces.eager.attribute[1]", "is 1; allowed: -1 to -1"),
    ("captured_with", [], "wrong_type", "$.captured_with", "an object"),
    ("captured_with/torch", 2.13, "wrong_type", "$.captured_with['torch']", "is 2.13"),
    ("symbols", [], "wrong_type", "$.symbols", "an object"),
    ("symbols/a-b", {"hint": 1, "min": 1, "max": 1}, "invalid_name", "$.symbols[1]", "'a-b'"),
    ("symbols/batch/max", ..., "missing_key", "$.symbols['batch']", "'max'"),
    ("symbols/batch/hint", 1.0, "wrong_type", "$.symbols['batch'].hint", "an integer"),
    ("symbols/batch/hint", 65, "out_of_range", "$.symbols['batch']", "min <= hint"),
    ("symbols/batch/max", 10**5000, "out_of_range", "$.symbols['batch']", "an integer of 16610 bits"),
    ("traces", {}, "missing_key", "$.traces", "at least one plan"),
    ("traces", [], "wrong_type", "$.traces", "an object"),
    ("traces/fast", EMPTY, "invalid_name", "$.traces['fast']", "eager:checkpoint"),
    ("traces/inductor:budget=0.50", EMPTY, "invalid_name", "$.traces['inductor:budget=0.50']", "budget=0.5'"),
    (f"{T}", None, "wrong_type", "$.traces.eager", "is None"),
    (f"{T}/op", ..., "missing_key", "$.traces.eager", "'op'"),
    (f"{T}/ops", [], "unknown_key", "$.traces.eager", "'ops'"),
    (f"{T}/op", "01", "wrong_type", "$.traces.eager.op", "'01'; allowed: an array of integers"),
    (f"{T}/op", [0], "wrong_length", "$.traces.eager.op", "1 entries; allowed: 2"),
    (f"{T}/op/1", 2, "out_of_range", "$.traces.eager.op[1]", "is 2; allowed: 0 to 1"),
    (f"{T}/op/0", -1, "out_of_range", "$.traces.eager.op[0]", "is -1; allowed: 0 to 1"),
    (f"{T}/op/1", 1.0, "wrong_type", "$.traces.eager.op[1]", "is 1.0; allowed: an integer"),
    (f"{T}/op/1", True, "wrong_type", "$.traces.eager.op[1]", "is True"),
    (f"{T}/op/1", False, "wrong_type", "$.traces.eager.op[1]", "is False"),
    (f"{T}/op/1", np.int64(1), "wrong_type", "$.traces.eager.op[1]", "a int64"),
    (f"{T}/op/1", None, "wrong_type", "$.traces.eager.op[1]", "is None"),
    (f"{T}/op/1", [1], "wrong_type", "$.traces.eager.op[1]", "an array of 1"),
    (f"{T}/op/1", "1", "wrong_type", "$.traces.eager.op[1]", "'1'"),
    (f"{T}/op/1", 2**31, "out_of_range", "$.traces.eager.op[1]", "2147483648"),
    (f"{T}/phase/0", 4, "out_of_range", "$.traces.eager.phase[0]", "0 to 3"),
    (f"{T}/phase/0", 256, "out_of_range", "$.traces.eager.phase[0]", "0 to 255"),
    (f"{T}/rank/0", 65, "out_of_range", "$.traces.eager.rank[0]", "0 to 64"),
    (f"{T}/dtype/0", 1, "out_of_range", "$.traces.eager.dtype[0]", "0 to 0"),
    (f"{T}/device/0", 3, "out_of_range", "$.traces.eager.device[0]", "0 to 2"),
    (f"{T}/numel/0", -1, "out_of_range", "$.traces.eager.numel[0]", "is -1"),
    (f"{T}/numel/0", 2**63, "out_of_range", "$.traces.eager.numel[0]", "9223372036854775808"),
    (f"{T}/numel/0", 10**5000, "out_of_range", "$.traces.eager.numel[0]", "16610 bits"),
    (f"{T}/numel/0", float("nan"), "wrong_type", "$.traces.eager.numel[0]", "nan"),
    (f"{T}/line/0", 1, "out_of_range", "$.traces.eager.line[0]", "-1 to 0"),
    (f"{T}/region/0", 2, "out_of_range", "$.traces.eager.region[0]", "-1 to 1"),
    (f"{T}/inputs/offsets", [0, 1], "wrong_length", "$.traces.eager.inputs.offsets", "allowed: 3"),
    (f"{T}/inputs/offsets", [0, 2, 1], "out_of_range", "$.traces.eager.inputs.offsets", "to the 2 ids"),
    (f"{T}/inputs/offsets", [1, 1, 2], "out_of_range", "$.traces.eager.inputs.offsets", "from 0"),
    (f"{T}/inputs/offsets/1", 3, "out_of_range", "$.traces.eager.inputs.offsets[1]", "0 to 2"),
    (f"{T}/inputs/ids/1", 2, "out_of_range", "$.traces.eager.inputs.ids[1]", "is 2; allowed: 0 to 1"),
    (f"{T}/attribute", ..., None, "", ""),
    (f"{T}/attribute", [], "wrong_length", "$.traces.eager.attribute", "allowed: 2"),
    (f"{T}/attribute", {}, "wrong_type", "$.traces.eager.attribute", "an array of integers"),
    (f"{T}/attribute", [0], "wrong_length", "$.traces.eager.attribute", "has 1 entries; allowed: 2"),
    (f"{T}/attribute/0", -2, "out_of_range", "$.traces.eager.attribute[0]", "is -2; allowed: -1 to 1"),
    (f"{T}/attribute/0", 2, "out_of_range", "$.traces.eager.attribute[0]", "is 2; allowed: -1 to 1"),
    (f"{T}/attribute/0", 0.0, "wrong_type", "$.traces.eager.attribute[0]", "an integer"),
    (f"{T}/outputs", [0], "wrong_type", "$.traces.eager.outputs", "offsets, ids"),
    (f"{T}/storages/bytes/0", 2**45 + 1, "out_of_range", "$.traces.eager.storages.bytes[0]", "35184372088832"),
    (f"{T}/storages/role", [0], "wrong_length", "$.traces.eager.storages.role", "allowed: 2"),
    (f"{T}/storages/born/0", 2, "out_of_range", "$.traces.eager.storages.born[0]", "-1 to 1"),
    (f"{T}/storages/born/0", -2, "out_of_range", "$.traces.eager.storages.born[0]", "is -2"),
    (f"{T}/storages/born/1", 1, None, "", ""),
    (f"{T}/storages/died/0", 2, "out_of_range", "$.traces.eager.storages.died[0]", "-1 to 1"),
    (f"{T}/branches", [[0, []]], "wrong_length", "$.traces.eager.branches[0]", "at least one"),
    (f"{T}/branches", [[2, [EMPTY]]], "out_of_range", "$.traces.eager.branches[0]", "nodes 0 to 1"),
    (f"{T}/branches", [[1, [EMPTY]], [1, [EMPTY]]], "out_of_range", "$.traces.eager.branches[1]", "each once"),
    (f"{T}/branches", [[1, EMPTY]], "wrong_type", "$.traces.eager.branches[0]", "[node, [trace, ...]]"),
    (f"{T}/branches", [[1, [7]]], "wrong_type", "$.traces.eager.branches[0][1][0]", "is 7"),
    (f"{T}", nested(4), None, "", ""),
    (f"{T}", nested(5), "limit_exceeded", "branches[0][1][0].branches", "deeper than the allowed 4"),
    (f"{T}/numel_poly", [None], "wrong_length", "$.traces.eager.numel_poly", "allowed: 2"),
    (f"{T}/numel_poly/1", [[1, [["length", 1]]]], "invalid_name", "$.traces.eager.numel_poly[1]", "'length'"),
    (f"{T}/numel_poly/1", [[1, [["batch", 5]]]], "out_of_range", "$.traces.eager.numel_poly[1]", "1 to 4"),
    (f"{T}/numel_poly/1", [[1, [["batch", 1]]]], "inconsistent", "$.traces.eager.numel_poly[1]", "is 4"),
    (f"{T}/numel_poly/1", [[1, [["batch", 1]] * 5]], "limit_exceeded", "numel_poly[1][0]", "allowed: 4"),
    (f"{T}/numel_poly/1", [[-1, []]], "out_of_range", "$.traces.eager.numel_poly[1]", "is -1"),
    (f"{T}/numel_poly/1", [[2**64, []]], "out_of_range", "$.traces.eager.numel_poly[1]", "below 2^63"),
    (f"{T}/numel_poly/1", "batch*6", "wrong_type", "$.traces.eager.numel_poly[1]", "[symbol, power]"),
    (f"{T}/numel_poly/1", [[1.5, []]], "wrong_type", "$.traces.eager.numel_poly[1][0][0]", "1.5"),
]


@pytest.mark.parametrize(
    ("path", "value", "code", "where", "words"), CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)]
)
def test_each_fault_is_named(path: str, value: Any, code: str | None, where: str, words: str) -> None:
    """Each kind of fault has its code, the path of the value, and a message with what is allowed."""
    if code is None:
        GraphSpec.from_json(changed(path, value))
        return
    with pytest.raises(SpecError) as caught:
        GraphSpec.from_json(changed(path, value))
    assert caught.value.code == code
    assert where in caught.value.path
    assert words in str(caught.value)
    assert len(str(caught.value)) < 500


def test_death_before_birth_is_named() -> None:
    """A storage that dies before it is born is a contradiction."""
    document = changed("traces/eager/storages/born/0", 1)
    document["traces"]["eager"]["storages"]["died"][0] = 0
    with pytest.raises(SpecError, match="dies at node 0, before it is born at node 1") as caught:
        GraphSpec.from_json(document)
    assert caught.value.code == "inconsistent"


TEXTS: list[tuple[bytes | str, str]] = [
    (b"", "invalid_json"),
    (b"{", "invalid_json"),
    (b"\xff\xfe", "invalid_json"),
    (b'{"schema": NaN}', "invalid_json"),
    (b"[" * 100_000, "invalid_json"),
    (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "invalid_json"),
    ("\ud800", "invalid_json"),
    (b"[]", "wrong_type"),
    (b"null", "wrong_type"),
    (b"1e999", "invalid_json"),
    (b"{}", "missing_key"),
    (b"[" * 2_000_001, "limit_exceeded"),
    (b" " * ((32 << 20) + 1), "limit_exceeded"),
]


@pytest.mark.parametrize(("text", "code"), TEXTS, ids=[str(i) for i in range(len(TEXTS))])
def test_text_that_is_no_document(text: bytes | str, code: str) -> None:
    """Text that is no JSON object, nests without end or is too large is refused before anything is built from it."""
    with pytest.raises(SpecError) as caught:
        GraphSpec.from_json(text)
    assert caught.value.code in {code, "wrong_type"}


@pytest.mark.parametrize("document", [None, 3, [], object(), {1: 2}, {"schema": 1, 2: 3}])
def test_object_that_is_no_document(document: Any) -> None:
    """Python values that are no JSON object are refused likewise."""
    with pytest.raises(SpecError):
        GraphSpec.from_json(document)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (Limits(max_nodes=1), "2 entries; allowed: 1"),
        (Limits(max_storages=1), "2 entries; allowed: 1"),
        (Limits(max_edges=3), "4 inputs and outputs in the document; allowed: 3"),
        (Limits(max_ops=1), "2 entries; allowed: 1"),
        (Limits(max_traces=0), "1 traces; allowed: 0"),
        (Limits(max_symbols=0), "1 symbols; allowed: 0"),
        (Limits(max_terms=0), "1 polynomial terms in the document; allowed: 0"),
        (Limits(max_json_bytes=100), "bytes of JSON; allowed: 100"),
        (Limits(max_containers=10), "arrays and objects; allowed: 10"),
    ],
)
def test_limits_are_the_callers(limits: Limits, words: str) -> None:
    """Each limit holds, and its message gives the count and the limit."""
    with pytest.raises(SpecError, match=words) as caught:
        GraphSpec.from_json(orjson.dumps(VALID), limits)
    assert caught.value.code == "limit_exceeded"


def test_nodes_count_over_all_traces() -> None:
    """Two traces of two nodes are four nodes: a document cannot split itself past the limit."""
    document = changed("traces/inductor", VALID["traces"]["eager"])
    with pytest.raises(SpecError, match="4 nodes in the document; allowed: 3"):
        GraphSpec.from_json(document, Limits(max_nodes=3))


def test_error_travels_between_processes() -> None:
    """A SpecError keeps code, path and message when it is pickled."""
    error = SpecError("out_of_range", "$.ops", "is 3")
    back = pickle.loads(pickle.dumps(error))  # noqa: S301  # our own bytes
    assert (back.code, back.path, str(back)) == ("out_of_range", "$.ops", "$.ops: is 3")


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers(-(2**70), 2**70) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def paths(value: Any) -> list[tuple[Any, ...]]:
    """Return the way to every member of a document, the first elements of long arrays only."""
    members: Any = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    return [(key, *rest) for key, inner in members for rest in [(), *paths(inner)]]


def accepted(call: Callable[[], GraphSpec]) -> None:
    """Run a call that must give a usable spec or a SpecError."""
    with contextlib.suppress(SpecError):
        spec = call()
        assert GraphSpec.from_json(spec.to_json()).graph_id == spec.graph_id


@given(graph_specs(), st.data())
def test_mutated_documents_never_crash(spec: GraphSpec, data: st.DataObject) -> None:
    """Replace, remove or duplicate any members of a valid document: the answer is a spec or a SpecError."""
    document = spec.to_dict()
    for _ in range(data.draw(st.integers(1, 3))):
        *parents, last = data.draw(st.sampled_from(paths(document)))
        at: Any = document
        for key in parents:
            at = at[key]
        kind = data.draw(st.sampled_from(["replace", "remove", "duplicate", "number"]))
        if kind == "remove":
            del at[last]
        elif kind == "duplicate" and isinstance(at, list):
            at.append(copy.deepcopy(at[last]))
        elif kind == "number":
            at[last] = data.draw(st.sampled_from([-2, -1, 0, 1, 255, 256, 2**31, 2**63, 2**64, 10**400, 1.0, 1e308]))
        else:
            at[last] = data.draw(JSON)
        if not paths(document):
            break
    accepted(lambda: GraphSpec.from_json(document))
    with contextlib.suppress(TypeError):  # what JSON cannot hold, such as integers of 400 digits
        text = orjson.dumps(document)
        accepted(lambda: GraphSpec.from_json(text))


@given(graph_specs(), st.data())
def test_damaged_bytes_never_crash(spec: GraphSpec, data: st.DataObject) -> None:
    """Cut the bytes short, flip one or put some in: the answer is a spec or a SpecError."""
    text = bytearray(spec.to_json())
    at = data.draw(st.integers(0, len(text) - 1))
    kind = data.draw(st.sampled_from(["cut", "flip", "insert"]))
    if kind == "cut":
        del text[at:]
    elif kind == "flip":
        text[at] ^= data.draw(st.integers(1, 255))
    else:
        text[at:at] = data.draw(st.binary(min_size=1, max_size=8))
    accepted(lambda: GraphSpec.from_json(bytes(text)))


@given(JSON | st.fixed_dictionaries({}, optional=dict.fromkeys(VALID, JSON)))
def test_random_json_never_crashes(value: Any) -> None:
    """Any JSON value at all is answered by SpecError."""
    with pytest.raises(SpecError):
        GraphSpec.from_json(value)


@given(st.binary(max_size=64) | st.text(max_size=64))
def test_random_text_never_crashes(text: bytes | str) -> None:
    """Any bytes or text at all are answered by SpecError."""
    with pytest.raises(SpecError):
        GraphSpec.from_json(text)
