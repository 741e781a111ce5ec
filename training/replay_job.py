"""The process that makes replayed labels: reads a job a line on stdin, answers with its record a line on stdout.

It takes one case after another; imports and the fake device are paid for once. torch is imported by the session alone,
which loads the fake device first, so nothing here may import it before.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from peakcast.featurizer.capture.replay.session import Session
from peakcast.featurizer.prior import Prior, simulate
from peakcast.featurizer.run import DeviceSpec, RunSpec

# The card of the measured labels.
DEVICE: Final = {"name": "NVIDIA H200", "total_bytes": 150_109_880_320}
_QUANTITIES: Final = ("first_allocated", "first_reserved", "steady_allocated", "steady_reserved")


def replay_job(session: Session, fields: Mapping[str, Any], graphs: Path) -> dict[str, Any]:
    """Replay a job (as `Job.to_dict` wrote it) and give its record; the ordinary graph is kept under `graphs`.

    Raises:
        RuntimeError: if the plan could not be replayed.
        Exception: whatever building or capturing the case raised.
    """
    from peakcast.training.corpus import write_graph
    from peakcast.training.jobs import Job
    from peakcast.training.zoo import build, entry

    job = Job.from_dict(fields)
    run, device = RunSpec.model_validate(job.case.run()), DeviceSpec.model_validate(DEVICE)

    def factory() -> Any:
        return build(job.case)

    started = time.monotonic()
    found = session.replay(factory, [job.plan], both_paddings=False)
    if found.failed:
        raise RuntimeError(found.failed[job.plan])
    replayed_s = time.monotonic() - started
    # What the pair sees when it predicts: the graph before the compiler decides.
    graph_id = write_graph(graphs, session.capture(factory, [job.plan]).redacted())
    prior = simulate(found.spec, job.plan, run, device)
    return {
        "key": job.key,
        "architecture": entry(job.case.model).architecture,
        "case": job.case.to_dict(),
        "run": job.case.run(),
        "plan": job.plan,
        "source": "replayed",
        "cache": "cold",
        "alone": False,
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "graph_id": graph_id,
        "device": DEVICE,
        "versions": {name: found.spec.captured_with[name] for name in _LIBRARIES if name in found.spec.captured_with},
        # A benchmark on the card pads some products or not; these peaks have them the likely way.
        "padding_undecided": bool(found.undecided),
        "kernels": len(found.spec.traces[job.plan]),
        "measured": _bytes(prior),
        "out_of_memory": prior.steps.peaks.reserved_bytes > device.total_bytes,
        "alloc_retries": 0,
        "seconds": [round(replayed_s, 1), round(time.monotonic() - started, 1)],
    }


_LIBRARIES: Final = ("torch", "transformers", "timm", "torchvision")


def _bytes(prior: Prior) -> dict[str, int]:
    quantities = {f"{name}_bytes": int(getattr(prior, f"{name}_bytes")) for name in _QUANTITIES}
    return {**quantities, "parameter_bytes": prior.parts.parameters_bytes, "buffer_bytes": prior.parts.buffers_bytes}


def main(graphs: Path) -> None:
    """Serve jobs until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not get between the answers
    session = Session()
    _answer(answers, {"ready": True})
    for line in sys.stdin:
        try:
            answer = replay_job(session, json.loads(line), graphs)
        except Exception as error:  # noqa: BLE001 - a failure is a result: it is kept, and the next job runs
            answer = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:600]}
        _answer(answers, answer)
        session.forget()
        gc.collect()


def _answer(stream: io.TextIOBase, answer: Mapping[str, Any]) -> None:
    stream.write(json.dumps(answer) + "\n")
    stream.flush()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)  # past torch's teardown, as in the capturing process
