"""From parsed JSON to columns: what has the wrong type is refused here, what has the wrong value in `validation`."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import numpy as np
import orjson
from numpy.typing import DTypeLike, NDArray

from peakcast.featurizer.limits import Limits, SpecError, show
from peakcast.featurizer.polynomials import MAX_FACTORS, Polynomial, Symbol
from peakcast.featurizer.trace import Csr, Storages, Trace
from peakcast.featurizer.validation import check_length, check_limit

_NODE_KEYS = ("phase", "op", "rank", "numel", "dtype", "device", "inputs", "outputs", "storages")
_NODE_OPTIONAL = ("line", "region", "attribute", "branches", "numel_poly", "replayed", "compiled_again")
_STORAGE_KEYS = ("bytes", "device", "role", "born", "died")


def read_trace(value: object, path: str, limits: Limits, depth: int = 0) -> Trace:
    """Return the trace of a JSON object; SpecError names the first key, type or integer that cannot be one."""
    row = read_object(value, path, _NODE_KEYS, _NODE_OPTIONAL)
    most = limits.max_nodes
    phase = _integers(row["phase"], np.uint8, f"{path}.phase", most)
    missing = np.full(len(phase), -1, np.int32)
    missing.setflags(write=False)
    attribute = _integers(row["attribute"], np.int32, f"{path}.attribute", most) if "attribute" in row else missing
    check_length(len(attribute), len(phase), f"{path}.attribute")  # a Trace takes an empty one for a missing one
    return Trace(
        phase=phase,
        op=_integers(row["op"], np.int32, f"{path}.op", most),
        rank=_integers(row["rank"], np.uint8, f"{path}.rank", most),
        numel=_integers(row["numel"], np.int64, f"{path}.numel", most),
        dtype=_integers(row["dtype"], np.uint8, f"{path}.dtype", most),
        device=_integers(row["device"], np.uint8, f"{path}.device", most),
        line=_integers(row["line"], np.int32, f"{path}.line", most) if "line" in row else missing,
        region=_integers(row["region"], np.int32, f"{path}.region", most) if "region" in row else missing,
        attribute=attribute,
        inputs=_csr(row["inputs"], f"{path}.inputs", limits),
        outputs=_csr(row["outputs"], f"{path}.outputs", limits),
        storages=_storages(row["storages"], f"{path}.storages", limits),
        branches=_branches(row["branches"], f"{path}.branches", limits, depth) if "branches" in row else (),
        numel_poly=_polynomials(row["numel_poly"], f"{path}.numel_poly", most) if "numel_poly" in row else (),
        replayed=_boolean(row.get("replayed", False), f"{path}.replayed"),
        compiled_again=_integer(row.get("compiled_again", -1), f"{path}.compiled_again"),
    )


def read_symbols(value: object, path: str, limits: Limits) -> dict[str, Symbol]:
    """Return the symbols of a JSON object {name: {hint, min, max}}."""
    if not isinstance(value, dict):
        raise wrong_type(value, path, "an object of symbols")
    check_limit(len(value), limits.max_symbols, path, "symbols")
    symbols = {}
    for name, row in value.items():
        at = child(path, name)
        bounds = read_object(row, at, ("hint", "min", "max"))
        symbols[name] = Symbol(**{key: _integer(bounds[key], f"{at}.{key}") for key in ("hint", "min", "max")})
    return symbols


def read_object(value: object, path: str, keys: Iterable[str], optional: Iterable[str] = ()) -> dict[str, Any]:
    """Return an object that has all of `keys` and nothing besides `optional`."""
    required = tuple(keys)
    allowed = (*required, *optional)
    if not isinstance(value, dict):
        raise wrong_type(value, path, f"an object with the keys {', '.join(allowed)}")
    for key in required:
        if key not in value:
            raise SpecError("missing_key", path, f"has no key {key!r}; it must have {', '.join(required)}")
    if len(value) > len(required):
        for key in value:
            if key not in allowed:
                raise SpecError("unknown_key", path, f"has an unknown key {show(key)}; allowed: {', '.join(allowed)}")
    return value


def child(path: str, key: object) -> str:
    """Return the JSON path of a member whose name a stranger chose."""
    return f"{path}[{show(key)}]"


def read_strings(value: object, path: str, limit: int) -> tuple[str, ...]:
    """Return an array of at most `limit` strings."""
    if not isinstance(value, list):
        raise wrong_type(value, path, "an array of strings")
    check_limit(len(value), limit, path, "entries")
    if not set(map(type, value)) <= {str}:
        i, bad = next((i, v) for i, v in enumerate(value) if type(v) is not str)
        raise wrong_type(bad, f"{path}[{i}]", "a string")
    return tuple(value)


def wrong_type(value: object, path: str, allowed: str) -> SpecError:
    """Return the error for a value of another JSON type."""
    return SpecError("wrong_type", path, f"is {show(value)}; allowed: {allowed}")


def _boolean(value: object, path: str) -> bool:
    if type(value) is not bool:
        raise wrong_type(value, path, "true or false")
    return value


def _integer(value: object, path: str) -> int:
    if type(value) is not int:
        raise wrong_type(value, path, "an integer")
    return value


def _integers(value: object, dtype: DTypeLike, path: str, limit: int) -> NDArray[Any]:
    """Return an array of integers as a read-only column, refusing floats, bools and what `dtype` cannot hold."""
    if not isinstance(value, list):
        raise wrong_type(value, path, "an array of integers")
    check_limit(len(value), limit, path, "entries")
    kind = np.dtype(dtype)
    try:
        # struct checks every range by itself, and is three times as fast as np.array. It takes true for 1: written as
        # JSON, which costs a fifth of a look at each type, true and false are what has an "e".
        column = np.frombuffer(struct.pack(f"={len(value)}{_STRUCT_CODES[kind]}", *value), kind)
        is_plain = b"e" not in orjson.dumps(value, option=orjson.OPT_PASSTHROUGH_SUBCLASS)
    except (struct.error, orjson.JSONEncodeError):
        is_plain = False
    if not is_plain:
        raise _not_integers(value, kind, path)
    return column


def _not_integers(value: list[Any], kind: np.dtype[Any], path: str) -> SpecError:
    """Return the error for the first entry that is no integer; where all are, for the first that `kind` cannot hold."""
    for i, entry in enumerate(value):
        if type(entry) is not int:
            return wrong_type(entry, f"{path}[{i}]", "an integer")
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    i, bad = next((i, entry) for i, entry in enumerate(value) if not low <= entry <= high)
    return SpecError("out_of_range", f"{path}[{i}]", f"is {show(bad)}; allowed at most: {low} to {high}")


_STRUCT_CODES = {np.dtype(np.uint8): "B", np.dtype(np.int32): "i", np.dtype(np.int64): "q"}


def _csr(value: object, path: str, limits: Limits) -> Csr:
    row = read_object(value, path, ("offsets", "ids"))
    return Csr(
        offsets=_integers(row["offsets"], np.int32, f"{path}.offsets", limits.max_nodes + 1),
        ids=_integers(row["ids"], np.int32, f"{path}.ids", limits.max_edges),
    )


def _storages(value: object, path: str, limits: Limits) -> Storages:
    row = read_object(value, path, _STORAGE_KEYS, ("bytes_poly",))
    most = limits.max_storages
    return Storages(
        bytes=_integers(row["bytes"], np.int64, f"{path}.bytes", most),
        device=_integers(row["device"], np.uint8, f"{path}.device", most),
        role=_integers(row["role"], np.uint8, f"{path}.role", most),
        born=_integers(row["born"], np.int32, f"{path}.born", most),
        died=_integers(row["died"], np.int32, f"{path}.died", most),
        bytes_poly=_polynomials(row["bytes_poly"], f"{path}.bytes_poly", most) if "bytes_poly" in row else (),
    )


def _branches(value: object, path: str, limits: Limits, depth: int) -> tuple[tuple[int, tuple[Trace, ...]], ...]:
    if not isinstance(value, list):
        raise wrong_type(value, path, "an array of [node, [trace, ...]]")
    if value and depth >= limits.max_depth:
        problem = f"branches nest deeper than the allowed {limits.max_depth} levels"
        raise SpecError("limit_exceeded", path, problem)
    check_limit(len(value), limits.max_nodes, path, "entries")
    branches = []
    for i, pair in enumerate(value):
        at = f"{path}[{i}]"
        if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[1], list):
            raise wrong_type(pair, at, "[node, [trace, ...]]")
        node = _integer(pair[0], f"{at}[0]")
        traces = (read_trace(t, f"{at}[1][{j}]", limits, depth + 1) for j, t in enumerate(pair[1]))
        branches.append((node, tuple(traces)))
    return tuple(branches)


def _polynomials(value: object, path: str, limit: int) -> tuple[Polynomial | None, ...]:
    if not isinstance(value, list):
        raise wrong_type(value, path, "an array of polynomials")
    check_limit(len(value), limit, path, "entries")
    return tuple(None if row is None else _polynomial(row, f"{path}[{i}]") for i, row in enumerate(value))


def _polynomial(value: object, path: str) -> Polynomial:
    if not isinstance(value, list):
        raise wrong_type(value, path, "null or [[coefficient, [[symbol, power], ...]], ...]")
    terms = []
    for i, term in enumerate(value):
        at = f"{path}[{i}]"
        if not isinstance(term, list) or len(term) != 2 or not isinstance(term[1], list):
            raise wrong_type(term, at, "[coefficient, [[symbol, power], ...]]")
        check_limit(len(term[1]), MAX_FACTORS, at, "factors in a term")
        factors = []
        for j, factor in enumerate(term[1]):
            if not isinstance(factor, list) or len(factor) != 2 or type(factor[0]) is not str:
                raise wrong_type(factor, f"{at}[1][{j}]", "[symbol, power]")
            factors.append((factor[0], _integer(factor[1], f"{at}[1][{j}][1]")))
        terms.append((_integer(term[0], f"{at}[0]"), tuple(factors)))
    return tuple(terms)
