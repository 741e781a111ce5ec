"""`POST /predict` of a running service, with graphs and with graph ids."""

from __future__ import annotations

import gzip
from typing import Any

import httpx
import orjson
import pytest

from peakcast.featurizer.run import DeviceSpec, RunSpec
from peakcast.featurizer.spec import GraphSpec
from peakcast.models.prediction import Prediction
from peakcast.models.predictor import Predictor


def without_time(reply: dict[str, Any]) -> dict[str, Any]:
    """Return a reply without what differs from call to call."""
    return {key: value for key, value in reply.items() if key != "elapsed_ms"}


def test_a_graph_is_answered_with_the_predictors_own_numbers(http: httpx.Client, request_body: dict[str, Any]) -> None:
    """The reply is what the shipped predictor says in-process about the same graph."""
    reply = http.post("/predict", json=request_body)
    assert reply.status_code == 200, reply.text
    spec = GraphSpec.from_json(request_body["graph"])
    run = RunSpec(task="training", optimizer="SGD", implementation="foreach")
    own = Predictor.load().predict(
        spec, run=run, device=DeviceSpec(**request_body["device"]), plans=["eager", "inductor"], risk=0.01
    )
    told = Prediction.model_validate_json(reply.content)
    assert told.plans == own.plans
    assert told.decision == own.decision
    assert told.graph_id == spec.graph_id
    # Two weights and biases of 64 x 256 and 256 x 10 floats, and their gradients: the least a step can hold.
    weights_bytes = 4 * (64 * 256 + 256 + 256 * 10 + 10)
    assert told.plan("eager").steady_allocated.expected_bytes >= 2 * weights_bytes
    assert told.explanation.parameters_bytes >= weights_bytes


def test_a_graph_sent_once_is_answered_by_its_id(http: httpx.Client, request_body: dict[str, Any]) -> None:
    """By graph_id comes the same answer as by graph, also for a question not asked before."""
    whole = http.post("/predict", json=request_body).json()
    by_id = {**{key: value for key, value in request_body.items() if key != "graph"}, "graph_id": whole["graph_id"]}
    again = http.post("/predict", json=by_id)
    assert again.status_code == 200, again.text
    for one, other in zip(again.json()["plans"], whole["plans"], strict=True):
        assert one == other
    small = http.post("/predict", json={**by_id, "device": {"total_bytes": 1 << 20}}).json()
    assert small["decision"]["action"] == "refuse"
    assert whole["decision"]["action"] != "refuse"


def test_an_id_never_sent_is_unknown(http: httpx.Client) -> None:
    """An id that points nowhere is answered by 404 graph_unknown, and says what to do."""
    reply = http.post("/predict", json={"graph_id": "0" * 64})
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "graph_unknown"
    assert "send it as `graph`" in reply.json()["error"]["message"]


def test_a_graph_captured_otherwise_is_another_one(http: httpx.Client, request_body: dict[str, Any]) -> None:
    """An id asked for together with another `captured_with` than the held graph's is unknown."""
    whole = http.post("/predict", json=request_body).json()
    asked = {"graph_id": whole["graph_id"], "captured_with": request_body["graph"]["captured_with"]}
    assert http.post("/predict", json=asked).status_code == 200
    asked["captured_with"] = {**asked["captured_with"], "torch": "2.11.0"}
    assert http.post("/predict", json=asked).json()["error"]["code"] == "graph_unknown"


def test_a_gzipped_body_is_the_same_request(http: httpx.Client, request_body: dict[str, Any]) -> None:
    """gzip, in one member or several, changes nothing in the answer."""
    plain = http.post("/predict", json=request_body).json()
    content = orjson.dumps(request_body)
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    for packed in (gzip.compress(content), gzip.compress(content[:500]) + gzip.compress(content[500:])):
        reply = http.post("/predict", content=packed, headers=headers)
        assert reply.status_code == 200, reply.text
        assert without_time(reply.json()) == without_time(plain)


def test_a_run_left_out_is_the_captured_one(http: httpx.Client, request_body: dict[str, Any]) -> None:
    """Without `run` the answer is that for the task and optimizer the graph was captured with."""
    told = {"task": "training", "optimizer": "SGD", "implementation": "foreach"}
    implied = http.post("/predict", json=request_body).json()
    explicit = http.post("/predict", json={**request_body, "run": told}).json()
    assert explicit["plans"] == implied["plans"]


def test_source_lines_go_to_whoever_sent_them_and_nobody_else(http: httpx.Client, request_body: dict[str, Any]) -> None:
    """A posted graph's lines are in its own answer; by id, which anyone may ask, there are none."""
    marker = "secret_module.py:77"
    request_body["graph"]["lines"] = [marker]
    for trace in request_body["graph"]["traces"].values():
        trace["line"] = [0] * len(trace["phase"])
    whole = http.post("/predict", json=request_body)
    assert {tensor["line"] for tensor in whole.json()["explanation"]["top_tensors"]} <= {marker, None}
    assert marker in whole.text
    asked = {"graph_id": whole.json()["graph_id"], "plans": ["eager", "inductor"]}
    assert marker not in http.post("/predict", json=asked).text


def test_an_op_nobody_knows_is_answered_with_its_doubt(http: httpx.Client, request_body: dict[str, Any]) -> None:
    """A graph with an unknown op gets numbers, but never the confidence of what was measured."""
    ops = request_body["graph"]["ops"]
    ops[ops.index("aten.addmm.default")] = "acme.frobnicate.default"
    reply = http.post("/predict", json=request_body)
    assert reply.status_code == 200, reply.text
    for plan in reply.json()["plans"]:
        assert plan["confidence"] != "in_distribution"
        assert plan["doubts"]


@pytest.mark.parametrize(("run", "said"), [({"optimizer": "AdamW"}, "AdamW"), ({"accumulation": 4}, "accumulation 4")])
def test_a_run_that_contradicts_the_graph_is_unknown(
    http: httpx.Client, request_body: dict[str, Any], run: dict[str, Any], said: str
) -> None:
    """The doubt names it, and what is expected is what the graph takes."""
    plain = http.post("/predict", json=request_body).json()
    told = http.post("/predict", json={**request_body, "run": run}).json()
    for plan, of_graph in zip(told["plans"], plain["plans"], strict=True):
        assert plan["confidence"] == "unknown"
        assert said in plan["doubts"][0]
        assert plan["required"]["expected_bytes"] == of_graph["required"]["expected_bytes"]


def test_an_operator_of_unknown_memory_is_refused(http: httpx.Client, request_body: dict[str, Any]) -> None:
    """However large the card, a step with somebody's own kernel is not said to fit."""
    ops = request_body["graph"]["ops"]
    ops[ops.index("aten.addmm.default")] = "mylib.attend.default"
    reply = http.post("/predict", json=request_body).json()
    assert reply["decision"]["action"] == "refuse"
    assert "an operator of unknown memory: mylib.attend.default" in reply["decision"]["reason"]
    assert [plan["fits"] for plan in reply["plans"]] == [False, False]
