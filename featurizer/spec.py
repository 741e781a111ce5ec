"""GraphSpec 1, the wire format: what one captured step does, under each plan, as columns of integers."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import InitVar, dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, Self

import numpy as np
import orjson

from peakcast.featurizer.limits import DEFAULT_LIMITS, Limits, SpecError, show
from peakcast.featurizer.plans import parse_plan
from peakcast.featurizer.polynomials import Symbol, SymbolError, choose_values, evaluate_column
from peakcast.featurizer.reading import child, read_object, read_strings, read_symbols, read_trace, wrong_type
from peakcast.featurizer.trace import Trace
from peakcast.featurizer.validation import Tables, TraceChecker, check_limit, check_symbol
from peakcast.featurizer.writing import SCHEMA, document_of

__all__ = ["SCHEMA", "GraphSpec", "Limits", "SpecError", "Symbol"]

_KEYS: Final = ("schema", "ops", "dtypes", "traces")
_OPTIONAL: Final = ("symbols", "captured_with", "lines", "attributes")
# What never blocks a name that torch prints: `aten.add_.Tensor`, `higher_order.cond`, `mylib::op.default`.
_OP_NAME: Final = re.compile(r"[!-~]+")
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_EMPTY: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, eq=False, kw_only=True)
class GraphSpec:
    """One captured step: a trace for each plan, and the tables its codes point into.

    Every instance is valid: building one checks all columns against each other and against `limits`, in time linear
    in their length, and raises SpecError. Columns and mappings are not to be changed afterwards.
    """

    ops: tuple[str, ...]  # `str(OpOverload)`, e.g. "aten.mm.default"
    dtypes: tuple[str, ...]  # torch's names without "torch.", e.g. "bfloat16"
    traces: Mapping[str, Trace]  # by plan name, see `parse_plan`
    symbols: Mapping[str, Symbol] = field(default_factory=dict)
    captured_with: Mapping[str, str] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    # What sizes alone do not tell of a node, e.g. "kernel=3x3,groups=1,layout=nchw" of a convolution.
    attributes: tuple[str, ...] = ()
    limits: InitVar[Limits] = DEFAULT_LIMITS
    _limits: Limits = field(init=False, repr=False)

    def __post_init__(self, limits: Limits) -> None:
        object.__setattr__(self, "ops", tuple(self.ops))
        object.__setattr__(self, "dtypes", tuple(self.dtypes))
        object.__setattr__(self, "lines", tuple(self.lines))
        object.__setattr__(self, "attributes", tuple(self.attributes))
        for name in ("traces", "symbols", "captured_with"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
        object.__setattr__(self, "_limits", limits)
        _check_tables(self, limits)
        tables = Tables(len(self.ops), len(self.dtypes), len(self.lines), len(self.attributes))
        checker = TraceChecker(limits, tables, self.symbols)
        for plan, trace in self.traces.items():
            checker.check(trace, f"$.traces.{plan}")
            for name, told in (("replayed", trace.replayed), ("compiled_again", trace.compiled_again >= 0)):
                if told and not parse_plan(plan).compiled:
                    problem = f"is said of plan {plan}, which no compiler runs; allowed: compiled plans"
                    raise SpecError("inconsistent", f"$.traces.{plan}.{name}", problem)

    @classmethod
    def from_json(cls, document: bytes | str | dict[str, Any], limits: Limits = DEFAULT_LIMITS) -> Self:
        """Return the spec of a JSON text, or of the object parsed from one.

        Raises SpecError and nothing else, whatever the document holds. Keys that are not known are refused, since a
        column that was misspelt would otherwise be lost in silence.
        """
        parsed = document if isinstance(document, dict) else _parse(document, limits)
        schema = parsed.get("schema", SCHEMA)
        if type(schema) is not int or schema != SCHEMA:
            raise SpecError("unsupported_schema", "$.schema", f"is {show(schema)}; allowed: {SCHEMA}")
        row = read_object(parsed, "$", _KEYS, _OPTIONAL)
        if not isinstance(row["traces"], dict):
            raise wrong_type(row["traces"], "$.traces", "an object of traces by plan name")
        check_limit(len(row["traces"]), limits.max_traces, "$.traces", "traces")
        for plan in row["traces"]:
            _check_plan(plan)
        captured_with = row.get("captured_with", {})
        if not isinstance(captured_with, dict):
            raise wrong_type(captured_with, "$.captured_with", "an object of strings")
        return cls(
            ops=read_strings(row["ops"], "$.ops", limits.max_ops),
            dtypes=read_strings(row["dtypes"], "$.dtypes", limits.max_dtypes),
            traces={plan: read_trace(trace, f"$.traces.{plan}", limits) for plan, trace in row["traces"].items()},
            symbols=read_symbols(row["symbols"], "$.symbols", limits) if "symbols" in row else {},
            captured_with=captured_with,
            lines=read_strings(row["lines"], "$.lines", limits.max_lines) if "lines" in row else (),
            attributes=read_strings(row["attributes"], "$.attributes", limits.max_ops) if "attributes" in row else (),
            limits=limits,
        )

    def to_json(self) -> bytes:
        """Return the document as JSON, the same bytes for equal specs."""
        return orjson.dumps(document_of(self), option=orjson.OPT_SERIALIZE_NUMPY)

    def to_dict(self) -> dict[str, Any]:
        """Return the document as an object of plain lists, strings and integers."""
        document: dict[str, Any] = orjson.loads(self.to_json())
        return document

    @cached_property
    def graph_id(self) -> str:
        """Return the sha256 (hex) of what the step does: the canonical JSON without lines, line and captured_with."""
        document = document_of(self, anonymous=True)
        canonical = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_SORT_KEYS)
        return hashlib.sha256(canonical).hexdigest()

    def with_ops(self, *names: str) -> GraphSpec:
        """Return the spec with more operators in its table. Its traces, which name none of them, stay as they are."""
        more = object.__new__(GraphSpec)
        more.__dict__.update(self.__dict__, ops=(*self.ops, *(name for name in names if name not in self.ops)))
        more.__dict__.pop("graph_id", None)
        return more

    def redacted(self) -> GraphSpec:
        """Return the spec without source lines; its graph_id is the same."""
        traces = {plan: _without_lines(trace) for plan, trace in self.traces.items()}
        return replace(self, lines=(), traces=traces, limits=self._limits)

    def at(self, symbols: Mapping[str, int]) -> GraphSpec:
        """Return the spec with every size that varies computed for the given values; others stay at their hints.

        Raises SymbolError for an unknown symbol, a value outside its `min` and `max`, and a size that is negative or
        too large. The result keeps the symbols, with the values as new hints.
        """
        values = choose_values(self.symbols, symbols)
        if all(values[name] == symbol.hint for name, symbol in self.symbols.items()):
            return self
        limits = self._limits
        try:
            traces = {plan: _trace_at(trace, values, f"$.traces.{plan}", limits) for plan, trace in self.traces.items()}
        except SpecError as error:
            raise SymbolError(error.code, error.path, error.problem) from None
        hints = {name: replace(symbol, hint=values[name]) for name, symbol in self.symbols.items()}
        return replace(self, symbols=hints, traces=traces, limits=limits)

    @property
    def plans(self) -> tuple[str, ...]:
        """Return the plans that have a trace of their own."""
        return tuple(self.traces)

    def __eq__(self, other: object) -> bool:
        return self.to_json() == other.to_json() if isinstance(other, GraphSpec) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.graph_id)

    def __reduce__(self) -> tuple[Callable[..., GraphSpec], tuple[bytes, Limits]]:
        return GraphSpec.from_json, (self.to_json(), self._limits)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{plan}: {len(trace)} nodes" for plan, trace in self.traces.items())
        return f"<GraphSpec {self.graph_id[:12]} {sizes}>"


def walk(trace: Trace) -> Iterator[Trace]:
    """Yield a trace and the traces of all its branches, outer first."""
    yield trace
    for _, branches in trace.branches:
        for branch in branches:
            yield from walk(branch)


def _parse(document: bytes | str, limits: Limits) -> dict[str, Any]:
    if not isinstance(document, bytes | bytearray | str):
        raise wrong_type(document, "$", "JSON text as bytes or str, or an object")
    check_limit(len(document), limits.max_json_bytes, "$", "bytes of JSON")
    check_limit(_containers(document), limits.max_containers, "$", "arrays and objects")
    try:
        parsed = orjson.loads(document)  # refuses NaN, invalid UTF-8 and more than 1,024 levels
    except orjson.JSONDecodeError as error:
        raise SpecError("invalid_json", "$", f"is not JSON: {error}; allowed: one JSON object") from None
    if not isinstance(parsed, dict):
        raise wrong_type(parsed, "$", f"an object with the keys {', '.join((*_KEYS, *_OPTIONAL))}")
    return parsed


def _containers(document: bytes | bytearray | str) -> int:
    if isinstance(document, str):
        return document.count("[") + document.count("{")
    return document.count(b"[") + document.count(b"{")


def _check_tables(spec: GraphSpec, limits: Limits) -> None:
    check_limit(len(spec.ops), limits.max_ops, "$.ops", "op names")
    check_limit(len(spec.dtypes), limits.max_dtypes, "$.dtypes", "dtypes")
    check_limit(len(spec.lines), limits.max_lines, "$.lines", "lines")
    check_limit(len(spec.attributes), limits.max_ops, "$.attributes", "attributes")
    check_limit(len(spec.traces), limits.max_traces, "$.traces", "traces")
    check_limit(len(spec.captured_with), limits.max_captured_with, "$.captured_with", "entries")
    check_limit(len(spec.symbols), limits.max_symbols, "$.symbols", "symbols")
    if not spec.traces:
        raise SpecError("missing_key", "$.traces", "is empty; allowed: at least one plan")
    _check_names(spec.ops, _OP_NAME, "$.ops", "op name (printable ASCII without spaces)", limits)
    _check_names(spec.dtypes, _IDENTIFIER, "$.dtypes", "dtype name such as 'bfloat16'", limits)
    _check_names(spec.attributes, _OP_NAME, "$.attributes", "attribute (printable ASCII without spaces)", limits)
    for plan in spec.traces:
        _check_plan(plan)
    _check_names(tuple(spec.symbols), _IDENTIFIER, "$.symbols", "symbol name such as 'batch'", limits)
    for name, symbol in spec.symbols.items():
        check_symbol(symbol, child("$.symbols", name))
    for i, line in enumerate(spec.lines):
        _check_text(line, f"$.lines[{i}]", limits.max_line_characters)
    for key, value in spec.captured_with.items():
        _check_text(key, child("$.captured_with", key), limits.max_name_characters)
        _check_text(value, child("$.captured_with", key), limits.max_name_characters)


def _check_names(names: tuple[object, ...], pattern: re.Pattern[str], path: str, what: str, limits: Limits) -> None:
    for i, name in enumerate(names):
        if not isinstance(name, str) or len(name) > limits.max_name_characters or not pattern.fullmatch(name):
            problem = f"is {show(name)}; allowed: a {what} of at most {limits.max_name_characters} characters"
            raise SpecError("invalid_name", f"{path}[{i}]", problem)
    if len(set(names)) != len(names):
        i = next(i for i, name in enumerate(names) if name in names[:i])
        raise SpecError("inconsistent", f"{path}[{i}]", f"{show(names[i])} is in the table twice; allowed: once")


def _check_plan(plan: object) -> None:
    at = child("$.traces", plan)
    if not isinstance(plan, str):
        raise wrong_type(plan, at, "a plan name")
    try:
        canonical = parse_plan(plan).name
    except ValueError as error:
        raise SpecError("invalid_name", at, str(error)) from None
    if canonical != plan:
        raise SpecError("invalid_name", at, f"is not how the plan is written; allowed: {canonical!r}")


def _check_text(text: object, path: str, limit: int) -> None:
    if not isinstance(text, str):
        raise wrong_type(text, path, "a string")
    check_limit(len(text), limit, path, "characters")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise SpecError("wrong_type", path, "holds half of a surrogate pair; allowed: valid Unicode") from None


def _without_lines(trace: Trace) -> Trace:
    branches = tuple((node, tuple(map(_without_lines, traces))) for node, traces in trace.branches)
    return replace(trace, line=np.full(len(trace), -1, np.int32), branches=branches)


def _trace_at(trace: Trace, values: Mapping[str, int], path: str, limits: Limits) -> Trace:
    numel, storages = trace.numel, trace.storages
    if trace.numel_poly:
        limit, at = limits.max_numel, f"{path}.numel_poly"
        numel = np.array(evaluate_column(trace.numel_poly, numel.tolist(), values, limit=limit, path=at), np.int64)
    if storages.bytes_poly:
        limit, at = limits.max_storage_bytes, f"{path}.storages.bytes_poly"
        rows = evaluate_column(storages.bytes_poly, storages.bytes.tolist(), values, limit=limit, path=at)
        storages = replace(storages, bytes=np.array(rows, np.int64))
    branches = tuple(
        (node, tuple(_trace_at(b, values, f"{path}.branches[{i}][1][{j}]", limits) for j, b in enumerate(traces)))
        for i, (node, traces) in enumerate(trace.branches)
    )
    return replace(trace, numel=numel, storages=storages, branches=branches)
