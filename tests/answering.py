"""A server that answers as it is told to, for the tests of the guard."""

from __future__ import annotations

import contextlib
import gzip
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer

import peakcast
from peakcast.featurizer.run import DeviceSpec
from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.workspace import CONTEXT_BYTES, LIBRARIES_BYTES
from peakcast.models.decision import available_bytes, decide
from peakcast.models.prediction import Expectation, PlanPrediction


@contextlib.contextmanager
def answering(told: Mapping[str, tuple[int, int]], *, before: Callable[[], None] = lambda: None) -> Iterator[str]:
    """Serve answers that give each plan these bytes, expected and at most, for every quantity; yield the URL.

    Args:
        told: bytes by plan.
        before: called before each answer that predicts.
    """

    class Telling(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers["Content-Encoding"] == "gzip":
                content = gzip.decompress(content)
            asked = json.loads(content)
            status, reply = 404, json.dumps({"error": {"code": "graph_unknown", "message": "send it"}}).encode()
            if "graph" in asked:
                before()
                device = DeviceSpec.model_validate(asked["device"])
                answer = peakcast.predict(GraphSpec.from_json(asked["graph"]), plans=asked["plans"], device=device)
                room_bytes = available_bytes(device, CONTEXT_BYTES + LIBRARIES_BYTES)
                plans = tuple(_with_bytes(plan, *told[plan.plan], room_bytes) for plan in answer.plans)
                decision = decide(plans, room_bytes=room_bytes, risk=answer.risk)
                answer = answer.model_copy(update={"plans": plans, "decision": decision})
                status, reply = 200, answer.model_dump_json().encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Telling)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _with_bytes(plan: PlanPrediction, expected_bytes: int, upper_bytes: int, room_bytes: int) -> PlanPrediction:
    same = Expectation(expected_bytes=expected_bytes, upper_bytes=upper_bytes)
    every = dict.fromkeys(("required", "device", "steady_allocated", "steady_reserved"), same)
    every |= {"first_allocated": same, "first_reserved": same}
    return plan.model_copy(update={**every, "fits": upper_bytes <= room_bytes, "doubts": ()})
