"""docs/SERVICE.md names every setting, metric, endpoint and error code, and the OpenAPI document is true."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
from pydantic import ByteSize

from peakcast.models.prediction import Prediction
from peakcast.service.app import create_app
from peakcast.service.errors import STATUS
from peakcast.service.metrics import Metrics
from peakcast.service.settings import Settings

PAGE = (Path(__file__).parents[2] / "docs" / "SERVICE.md").read_text()
ROWS = {match[1]: match[0] for match in re.finditer(r"^\| `([^`]+)` \|.*$", PAGE, re.MULTILINE)}


def test_every_setting_is_documented_with_its_default() -> None:
    """Each setting has a row with its variable and default, and no row names a setting that is not there."""
    named = {name for name in ROWS if name.startswith("PEAKCAST_")}
    assert named == {f"PEAKCAST_{name.upper()}" for name in Settings.model_fields}
    for name, field in Settings.model_fields.items():
        row = ROWS[f"PEAKCAST_{name.upper()}"]
        default = "" if field.default_factory or field.default in (None, ()) else str(field.default)
        if isinstance(field.default, ByteSize):
            default = field.default.human_readable().replace(".0", "")
        assert default in row, row
        assert field.description is not None
        assert field.description in row, row


def test_every_metric_is_documented() -> None:
    """Each metric has a row, and no row names a metric that is not there."""
    metrics = Metrics()
    there = {family.name + ("_total" if family.type == "counter" else "") for family in metrics.registry.collect()}
    ours = {name for name in there if name.startswith("peakcast_")}
    assert ours
    assert {name for name in ROWS if name.startswith("peakcast_")} == ours


def test_every_endpoint_is_documented() -> None:
    """Each route has its method and path in the page."""
    paths = create_app(Settings()).openapi()["paths"]
    assert set(paths) == {"/predict", "/peaks", "/health/live", "/health/ready", "/metrics"}
    for path, operations in paths.items():
        for method in operations:
            assert f"`{method.upper()} {path}`" in PAGE


def test_every_error_code_is_documented_with_its_status() -> None:
    """Each code has a row with its status."""
    for code, status in STATUS.items():
        assert f"| {status} |" in ROWS[code.value]


def test_the_examples_of_the_openapi_document_are_true(http: httpx.Client) -> None:
    """Both example requests are answered, with the example reply."""
    operation = http.get("/openapi.json").json()["paths"]["/predict"]["post"]
    asked: dict[str, Any] = operation["requestBody"]["content"]["application/json"]["examples"]
    told = operation["responses"]["200"]["content"]["application/json"]["example"]
    assert Prediction.model_validate(told).model_version
    assert set(asked) == {"graph", "graph_id"}
    for example in asked.values():
        reply = http.post("/predict", json=example["value"])
        assert reply.status_code == 200, reply.text
        assert {**reply.json(), "elapsed_ms": 0} == {**told, "elapsed_ms": 0}


def test_the_openapi_document_names_every_schema_it_refers_to(http: httpx.Client) -> None:
    """No reference of the document leads nowhere."""
    document = http.get("/openapi.json")
    schemas = document.json()["components"]["schemas"]
    for name in re.findall(r'"#/components/schemas/(\w+)"', document.text):
        assert name in schemas
    assert "PredictRequest" in schemas
