"""What `POST /predict` asks, apart from the graph: checked by pydantic. The graph itself is checked by GraphSpec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from peakcast.featurizer.plans import parse_plan
from peakcast.featurizer.run import LARGEST_RISK, LEAST_RISK, DeviceSpec, RunSpec
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
    risk: float = Field(
        default=0.01,
        strict=True,
        ge=LEAST_RISK,
        le=LARGEST_RISK,
        description="how often the upper bound may be exceeded",
    )


@dataclass(frozen=True, slots=True)
class Asked:
    """One parsed request: the query, and the graph's JSON document where it was sent."""

    query: PredictQuery
    graph: Any = None


def read_query(body: dict[str, Any]) -> Asked:
    """Split a parsed body into query and graph document.

    Raises:
        ServiceError: INVALID_REQUEST with the path of the first wrong value.
    """
    graph = body.pop("graph", None)
    try:
        query = PredictQuery.model_validate(body)
    except ValidationError as error:
        raise invalid(ErrorCode.INVALID_REQUEST, error) from None
    if (graph is None) == (query.graph_id is None):
        which = "both" if graph is not None else "neither"
        raise ServiceError(
            ErrorCode.INVALID_REQUEST, f"send either `graph` or `graph_id`: this request has {which}", path="graph"
        )
    return Asked(query, graph)


def invalid(code: ErrorCode, error: ValidationError, prefix: str = "") -> ServiceError:
    """Return the reply for the first thing that pydantic found wrong."""
    first = error.errors(include_url=False)[0]
    path = ".".join([*([prefix] if prefix else []), *(str(part) for part in first["loc"])])
    given = "" if first["type"] == "missing" else f" (got {_shown(first['input'])})"
    allowed = ""
    if first["type"] == "extra_forbidden":
        models: dict[str, type[BaseModel]] = {"run": RunSpec, "device": DeviceSpec}
        fields = models.get(str(first["loc"][0]), PredictQuery).model_fields
        names = [*fields, "graph"] if len(first["loc"]) == 1 else list(fields)
        given, allowed = "", f"; allowed: {', '.join(names)}"
    message = _IN_JSON_TERMS.get(first["type"], first["msg"].removeprefix("Value error, "))
    return ServiceError(code, f"{path}: {message}{given}{allowed}", path=path)


def _shown(value: object) -> str:
    text = ascii(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else json_kind(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."
