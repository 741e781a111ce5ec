"""The OpenAPI document: the requests that FastAPI does not parse itself, with examples that ran."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from peakcast.service.errors import ErrorCode, ServiceError
from peakcast.service.examples import example_peak, example_request
from peakcast.service.peaks_query import PeakQuery
from peakcast.service.query import PredictQuery

_GRAPH_SCHEMA = {
    "type": "object",
    "description": "GraphSpec 1: columns per trace, made by `peakcast capture`",
    "required": ["schema", "ops", "dtypes", "traces"],
    "properties": {
        "schema": {"const": 1},
        "ops": {"type": "array", "items": {"type": "string"}},
        "dtypes": {"type": "array", "items": {"type": "string"}},
        "symbols": {"type": "object"},
        "captured_with": {"type": "object", "additionalProperties": {"type": "string"}},
        "lines": {"type": "array", "items": {"type": "string"}},
        "traces": {"type": "object", "description": "one trace for each plan, by its name"},
    },
}


_REFERENCE = "#/components/schemas/{model}"


def document(app: FastAPI, example_reply: dict[str, object] | None) -> dict[str, Any]:
    """Return the OpenAPI document; the example reply is there once the service has given it."""
    described: dict[str, Any] = get_openapi(title=app.title, version=app.version, routes=app.routes)
    schemas = described["components"]["schemas"]
    for name, query in (("PredictRequest", PredictQuery), ("PeakRequest", PeakQuery)):
        schema = query.model_json_schema(ref_template=_REFERENCE)
        schemas.update(schema.pop("$defs", {}))
        schemas[name] = {**schema, "title": name, "properties": {"graph": _GRAPH_SCHEMA, **schema["properties"]}}
    described["paths"]["/peaks"]["post"]["requestBody"] = {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"$ref": _REFERENCE.format(model="PeakRequest")},
                "example": example_peak(),
            }
        },
    }
    request = example_request()
    examples = {"graph": {"summary": "a small network, its graph sent along", "value": request}}
    if example_reply is not None:
        by_id = {
            **{key: value for key, value in request.items() if key != "graph"},
            "graph_id": example_reply["graph_id"],
        }
        examples["graph_id"] = {"summary": "the same, once the service holds the graph", "value": by_id}
    operation = described["paths"]["/predict"]["post"]
    operation["requestBody"] = {
        "required": True,
        "content": {
            "application/json": {"schema": {"$ref": _REFERENCE.format(model="PredictRequest")}, "examples": examples}
        },
    }
    if example_reply is not None:
        operation["responses"]["200"]["content"]["application/json"]["example"] = example_reply
    unknown = ServiceError(ErrorCode.GRAPH_UNKNOWN, f"graph {'0' * 64} is not held here: send it as `graph`")
    operation["responses"]["404"]["content"]["application/json"]["example"] = {
        "error": {"code": unknown.code.value, "message": unknown.message, "path": "graph_id"}
    }
    return described
