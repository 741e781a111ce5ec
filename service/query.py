"""What `POST /predict` asks, apart from the graph: checked by pydantic. The graph itself is checked by GraphSpec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Generic, Protocol, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from peakcast.featurizer.limits import Limits, SpecError
from peakcast.featurizer.plans import parse_plan
from peakcast.featurizer.polynomials import MAX_SYMBOL_VALUE, SymbolError
from peakcast.featurizer.run import LARGEST_RISK, LEAST_RISK, DeviceSpec, RunSpec
from peakcast.featurizer.spec import GraphSpec
from peakcast.models.asked import RunMismatchError, settled_run
from peakcast.service.errors import ErrorCode, ServiceError, json_kind

_SHOWN_CHARACTERS = 80
# What pydantic says in words of Python.
_IN_JSON_TERMS = {
    **dict.fromkeys(("tuple_type", "list_type"), "Input should be a list"),
    **dict.fromkeys(
        ("model_type", "model_attributes_type", "dict_type", "dict_attributes_type"), "Input should be an object"
    ),
    "too_short": "the list is too short",
    "too_long": "the list or object is too long",
}


def _checked_plan(name: str) -> str:
    parse_plan(name)
    return name


PlanName = Annotated[str, Field(max_length=64), AfterValidator(_checked_plan)]


class PredictQuery(BaseModel):
    """Ask for one graph: `graph_id` of one sent before, or `graph` beside this."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    graph_id: str | None = Field(
        default=None,
        pattern="^[0-9a-f]{64}$",
        description="a graph sent before; answers 404 `graph_unknown` if not held",
    )
    captured_with: dict[str, str] | None = Field(
        default=None,
        max_length=64,
        description="with graph_id: the graph's own; a held graph captured otherwise is not the one asked for",
    )
    run: RunSpec | None = Field(
        default=None, description="the run the graph was captured from; each field left out: as it says"
    )
    device: DeviceSpec = Field(default_factory=DeviceSpec, description="the card; left out: an empty H200")
    plans: tuple[PlanName, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=32,
        description="plans to predict; left out: those the graph has traces of",
    )
    symbols: dict[str, Annotated[int, Field(strict=True, ge=0, le=MAX_SYMBOL_VALUE)]] | None = Field(
        default=None,
        max_length=16,
        description="values for the graph's symbols, such as batch; left out: as captured",
    )
    risk: float = Field(
        default=0.01,
        strict=True,
        ge=LEAST_RISK,
        le=LARGEST_RISK,
        description="how often the upper bound may be exceeded",
    )


class OfOneGraph(Protocol):
    """A query that may name a graph in place of the one beside it."""

    @property
    def graph_id(self) -> str | None: ...  # noqa: D102 - see the class


Query = TypeVar("Query", bound=OfOneGraph)


@dataclass(frozen=True, slots=True)
class Asked(Generic[Query]):
    """One parsed request: the query, and the graph's JSON document where it was sent."""

    query: Query
    graph: Any = None


def read_query(body: dict[str, Any], kind: type[Query]) -> Asked[Query]:
    """Split a parsed body into a query of a kind, which is a pydantic model, and the graph document.

    Raises:
        ServiceError: INVALID_REQUEST with the path of the first wrong value.
    """
    assert issubclass(kind, BaseModel)
    graph = body.pop("graph", None)
    try:
        query = kind.model_validate(body)
    except ValidationError as error:
        raise invalid(ErrorCode.INVALID_REQUEST, error, allowed_in=kind) from None
    check_one_graph(graph, query.graph_id)
    return Asked(query, graph)


def check_one_graph(graph: object, graph_id: str | None) -> None:
    """Refuse a request that has both a graph and a graph's id, or neither.

    Raises:
        ServiceError: INVALID_REQUEST.
    """
    if (graph is None) == (graph_id is None):
        which = "both" if graph is not None else "neither"
        raise ServiceError(
            ErrorCode.INVALID_REQUEST, f"send either `graph` or `graph_id`: this request has {which}", path="graph"
        )


def read_graph(document: object, limits: Limits) -> GraphSpec:
    """Return the graph of its JSON document.

    Raises:
        ServiceError: INVALID_GRAPH.
    """
    try:
        return GraphSpec.from_json(document, limits)  # type: ignore[arg-type]  # it says so itself
    except SpecError as error:
        raise invalid_graph(error) from None


def settle(spec: GraphSpec, run: RunSpec | None) -> RunSpec:
    """Return the run with what was left out as the graph was captured.

    Raises:
        ServiceError: INVALID_GRAPH.
    """
    try:
        return settled_run(spec, run)
    except ValidationError as error:
        raise invalid(ErrorCode.INVALID_GRAPH, error, "graph.captured_with") from None


def mismatch(error: RunMismatchError, *, run_was_sent: bool) -> ServiceError:
    """Return the reply for a run that the graph rules out."""
    if run_was_sent:
        path, code = "run.task", ErrorCode.INVALID_REQUEST
    else:
        path, code = "graph.captured_with", ErrorCode.INVALID_GRAPH
    return ServiceError(code, f"{path}: {error}", path=path, reason="inconsistent")


def invalid_symbols(error: SymbolError) -> ServiceError:
    """Return the reply for values that the graph cannot be evaluated at."""
    path = error.path.removeprefix("$.") if error.path.startswith("$.symbols") else "symbols"
    return ServiceError(ErrorCode.INVALID_REQUEST, f"{path}: {error.problem}", path=path, reason=error.code)


def invalid_graph(error: SpecError) -> ServiceError:
    """Return the reply for a graph that is wrong."""
    path = "graph" + error.path.removeprefix("$")
    return ServiceError(ErrorCode.INVALID_GRAPH, f"{path}: {error.problem}", path=path, reason=error.code)


def invalid(
    code: ErrorCode, error: ValidationError, prefix: str = "", *, allowed_in: type[BaseModel] = PredictQuery
) -> ServiceError:
    """Return the reply for the first thing that pydantic found wrong; `allowed_in` is what the body may hold."""
    first = error.errors(include_url=False)[0]
    path = ".".join([*([prefix] if prefix else []), *(str(part) for part in first["loc"])])
    if not path:  # a check of the whole names its field itself
        path, _, problem = first["msg"].removeprefix("Value error, ").partition(": ")
        return ServiceError(code, f"{path}: {problem}", path=path)
    given = "" if first["type"] == "missing" else f" (got {_shown(first['input'])})"
    allowed = ""
    if first["type"] == "extra_forbidden":
        models: dict[str, type[BaseModel]] = {"run": RunSpec, "device": DeviceSpec}
        fields = models.get(str(first["loc"][0]), allowed_in).model_fields
        names = [*fields, "graph"] if len(first["loc"]) == 1 else list(fields)
        given, allowed = "", f"; allowed: {', '.join(names)}"
    message = _IN_JSON_TERMS.get(first["type"], first["msg"].removeprefix("Value error, "))
    return ServiceError(code, f"{path}: {message}{given}{allowed}", path=path)


def _shown(value: object) -> str:
    text = ascii(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else json_kind(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."
