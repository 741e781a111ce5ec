"""The process that replays: `python -m peakcast.featurizer.capture.replay.worker REQUEST.json`."""

from __future__ import annotations

import os
import sys
from typing import Any

import orjson

from peakcast.featurizer.capture.replay.session import Session
from peakcast.featurizer.capture.worker import main, workload_factory


def serve(request: dict[str, Any]) -> bytes:
    """Replay as the request says."""
    session = Session()
    found = session.replay(workload_factory(request), request["plans"], progress=_say)
    answer = {
        "spec": orjson.Fragment(found.spec.to_json()),
        "undecided": found.undecided,
        "otherwise": None if found.otherwise is None else orjson.Fragment(found.otherwise.to_json()),
        "failed": dict(found.failed),
    }
    return orjson.dumps(answer)


def _say(plan: str) -> None:
    print(f"replaying {plan}", flush=True)  # noqa: T201  (read by the parent, line by line)


if __name__ == "__main__":
    exit_code = main(sys.argv[1], serve)
    sys.stdout.flush()
    # Past torch's teardown, as in the capturing process.
    os._exit(exit_code)
