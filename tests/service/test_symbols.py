"""`POST /predict` of a graph with its batch as a symbol: other sizes, the largest batch, and what is refused."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from handmade import MIB, Sketch

from peakcast.client.ask import predict
from peakcast.client.errors import ServerError
from peakcast.client.http import Asker
from peakcast.featurizer.polynomial_fit import fitted
from peakcast.featurizer.polynomials import Symbol
from peakcast.featurizer.run import DeviceSpec
from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.vocabulary import INPUT
from peakcast.models.prediction import Prediction
from peakcast.models.predictor import Predictor

CARD = {"total_bytes": 4 << 30}
MOST = 1 << 32


def _layer(batch: int) -> GraphSpec:
    """Return an inference step that makes 10 MiB a sample of an input of 2 MiB a sample."""
    sketch = Sketch()
    x = sketch.start(2 * MIB * batch, INPUT)
    sketch.node("aten.mul.Tensor", 10 * MIB * batch, reads=[x])
    return sketch.spec()


@pytest.fixture(scope="module")
def spec() -> GraphSpec:
    """Give the step with its batch as a symbol, as far as symbols go."""
    return fitted({batch: _layer(batch) for batch in (2, 4, 33)}, "batch", Symbol(hint=4, min=1, max=MOST))


@pytest.fixture
def body(spec: GraphSpec) -> dict[str, Any]:
    """Give the body that asks about it."""
    return {"graph": spec.to_dict(), "device": CARD}


def test_another_batch_is_the_same_as_in_process(http: httpx.Client, body: dict[str, Any], spec: GraphSpec) -> None:
    """By graph and by graph_id; the reply's id is that of the graph sent."""
    reply = http.post("/predict", json={**body, "symbols": {"batch": 64}})
    assert reply.status_code == 200, reply.text
    told = Prediction.model_validate_json(reply.content)
    own = Predictor.load().predict(spec, symbols={"batch": 64}, device=DeviceSpec(**CARD))
    assert told.plans == own.plans
    assert told.decision == own.decision
    assert told.graph_id == spec.graph_id
    assert told.plan("eager").steady_allocated.expected_bytes >= 12 * 64 * MIB
    by_id = {"graph_id": told.graph_id, "device": CARD}
    again = http.post("/predict", json={**by_id, "symbols": {"batch": 64}}).json()
    assert again["plans"] == reply.json()["plans"]
    as_captured = http.post("/predict", json=by_id).json()
    assert as_captured["plans"] != again["plans"]
    assert as_captured["plans"] == http.post("/predict", json={**by_id, "symbols": {"batch": 4}}).json()["plans"]


def test_the_largest_batch_fits_and_the_next_does_not(http: httpx.Client, body: dict[str, Any]) -> None:
    """What the reply names is answered with a plan, one more is refused, and both name it again."""
    found = http.post("/predict", json=body).json()["decision"]["largest_batch"]
    # No more than the card's bytes over 12 MiB a sample.
    assert 4 < found < CARD["total_bytes"] // (12 * MIB)
    for batch, action in ((found, "fall_back"), (found + 1, "refuse")):
        decision = http.post("/predict", json={**body, "symbols": {"batch": batch}}).json()["decision"]
        assert decision["action"] == action
        assert decision["largest_batch"] == found


@pytest.mark.parametrize(
    ("symbols", "path", "words"),
    [
        ({"length": 8}, "symbols", "the graph has no symbol 'length'; it has batch"),
        ({"batch": 0}, "symbols.batch", "0 is not an integer from 1 to 4294967296"),
        ({"batch": MOST}, "symbols", "the polynomial is"),
        ({"batch": MOST + 1}, "symbols.batch", "less than or equal to 4294967296"),
        ({"batch": 1 << 70}, "symbols.batch", "integer"),
        ({"batch": -1}, "symbols.batch", "greater than or equal to 0"),
        ({"batch": 8.0}, "symbols.batch", "valid integer"),
        ({"batch": True}, "symbols.batch", "valid integer"),
        ({"batch": "8"}, "symbols.batch", "valid integer"),
        ([["batch", 8]], "symbols", "object"),
        ({f"s{i}": 1 for i in range(17)}, "symbols", "too long"),
    ],
    ids=["unknown", "below", "beyond_bytes", "above", "huge", "negative", "float", "bool", "text", "list", "many"],
)
def test_values_that_cannot_be_are_the_requests_fault(
    http: httpx.Client, body: dict[str, Any], symbols: object, path: str, words: str
) -> None:
    """422 invalid_request, with the path of the value and what is allowed."""
    reply = http.post("/predict", json={**body, "symbols": symbols})
    assert reply.status_code == 422, reply.text
    error = reply.json()["error"]
    assert error["code"] == "invalid_request"
    assert error["path"] == path
    assert words in error["message"]


def test_a_graph_of_fixed_shapes_has_no_symbol(http: httpx.Client, request_body: dict[str, Any]) -> None:
    """It says so, and an empty object asks for nothing."""
    reply = http.post("/predict", json={**request_body, "symbols": {"batch": 8}})
    assert reply.status_code == 422
    assert "captured with fixed shapes" in reply.json()["error"]["message"]
    plain = http.post("/predict", json={**request_body, "symbols": {}}).json()
    assert plain["decision"]["largest_batch"] is None


def test_the_client_asks_a_server_for_another_batch(http: httpx.Client, spec: GraphSpec) -> None:
    """`peakcast.predict(server=...)` gives what it gives in-process, and refuses before it asks."""
    server = str(http.base_url)
    asked = {"device": DeviceSpec(**CARD), "symbols": {"batch": 9}}
    there, here = predict(spec, server=server, **asked), predict(spec, **asked)
    assert there.plans == here.plans
    assert there.decision == here.decision
    with pytest.raises(ValueError, match=r"\$\.symbols\.batch: 0 is not"):
        predict(spec, server="http://127.0.0.1:9", symbols={"batch": 0})
    with pytest.raises(TypeError, match="symbols must be a mapping"):
        predict(spec, symbols=8)  # type: ignore[arg-type]
    with pytest.raises(ServerError, match="no symbol 'length'"):
        Asker(server).ask(spec, {"symbols": {"length": 1}})
