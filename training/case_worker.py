"""The process that replays or captures cases of the zoo: `python -m peakcast.training.case_worker replay|capture`.

It reads a request, a case and its plans, a line on stdin and answers with a line on stdout. torch must be imported
after the fake device is loaded, so nothing here may import it before the first request.
"""

from __future__ import annotations

import contextlib
import gc
import io
import itertools
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from peakcast.featurizer.capture.replay.session import Session
from peakcast.featurizer.plans import parse_plan
from peakcast.featurizer.prior import Prior, simulate
from peakcast.featurizer.run import DeviceSpec, RunSpec

if TYPE_CHECKING:
    from peakcast.featurizer.capture.replay.session import Replayed
    from peakcast.featurizer.spec import GraphSpec
    from peakcast.training.zoo import Case

# The card of the measured labels.
DEVICE: Final = {"name": "NVIDIA H200", "total_bytes": 150_109_880_320}
_QUANTITIES: Final = ("first_allocated", "first_reserved", "steady_allocated", "steady_reserved")


class _Replays:
    """Make replayed labels: the answer has the record of each plan, with a graph if there is a corpus to put it in.

    A plan that cannot be captured either does not take the others with it: they are then tried one by one.
    """

    def __init__(self, corpus: Path | None) -> None:
        self._session = Session()
        self._corpus = corpus

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Replay a case under its plans.

        Raises:
            ValueError: if a plan is unknown.
        """
        from peakcast.training.zoo import Case

        case = Case.from_dict(request["case"])
        plans = list(dict.fromkeys(parse_plan(plan).name for plan in request["plans"]))
        return {"records": self._try(case, plans)}

    def _try(self, case: Case, plans: list[str]) -> list[dict[str, Any]]:
        try:
            return self._replayed(case, plans)
        except Exception as error:  # noqa: BLE001 - a failure is a result: it is kept, and the other plans are tried
            if len(plans) > 1:
                return [record for plan in plans for record in self._try(case, [plan])]
            return [{"plan": plan, "error": _one_line(error)} for plan in plans]

    def _replayed(self, case: Case, plans: list[str]) -> list[dict[str, Any]]:
        """Return the records of plans that share a graph; the first one's seconds count building the case."""
        from peakcast.training.corpus import write_graph
        from peakcast.training.zoo import build

        times = [time.monotonic()]  # when each plan began, and when the last had ended
        found = self._session.replay(
            lambda: build(case),
            plans,
            both_paddings=False,
            with_graph=self._corpus is not None,
            progress=lambda _: times.append(time.monotonic()),
        )
        del times[1]  # between is the building
        records: list[dict[str, Any]] = []
        for plan, (began, ended) in zip(plans, itertools.pairwise([*times, time.monotonic()]), strict=True):
            failure = found.failed.get(plan)
            told = {"error": failure} if failure else self._record(case, plan, found)
            records.append({"plan": plan, **told, "seconds": round(ended - began, 1)})
        labels = [record for record in records if "error" not in record]
        if labels and found.graph is not None and self._corpus is not None:
            graph_id = write_graph(self._corpus, found.graph.redacted())
            for record in labels:
                record["graph_id"] = graph_id
        return records

    def _record(self, case: Case, plan: str, found: Replayed) -> dict[str, Any]:
        from peakcast.training.zoo import entry

        run, device = RunSpec.model_validate(case.run()), DeviceSpec.model_validate(DEVICE)
        prior = simulate(found.spec, plan, run, device)
        return {
            "architecture": entry(case.model).architecture,
            "case": case.to_dict(),
            "run": case.run(),
            "source": "replayed",
            "cache": "cold",
            "alone": False,
            "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "device": DEVICE,
            "versions": {
                name: found.spec.captured_with[name] for name in _LIBRARIES if name in found.spec.captured_with
            },
            # A benchmark on the card pads some products or not; these peaks have them the likely way.
            "padding_undecided": plan in found.undecided,
            "kernels": len(found.spec.traces[plan]),
            "measured": _bytes(prior),
            "out_of_memory": prior.steps.peaks.reserved_bytes > device.total_bytes,
            "alloc_retries": 0,
        }

    def forget(self) -> None:
        self._session.forget()


class _Captures:
    """Capture graphs: the answer says where the graph is and what failed.

    A plan that cannot be captured does not take the others with it: they are then tried one by one.
    """

    def __init__(self, corpus: Path, ranks: int) -> None:
        from peakcast.featurizer.capture.worker import prepare_host

        self._corpus = corpus
        self._traced_on = prepare_host(allow_cpu=False, world_size=ranks if ranks > 1 else None)

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Capture a case under all its plans."""
        from peakcast.training.corpus import write_graph
        from peakcast.training.zoo import Case

        case, plans = Case.from_dict(request["case"]), list(request["plans"])
        started = time.monotonic()
        failed: dict[str, str] = {}
        spec = self._try(case, plans, failed)
        if spec is None and len(plans) > 1:
            failed = {}
            good = [plan for plan in plans if self._try(case, [plan], failed) is not None]
            spec = self._try(case, good, failed) if good else None
        found = {} if spec is None else {"graph_id": write_graph(self._corpus, spec), "plans": sorted(spec.traces)}
        return {**found, "failed": failed, "seconds": round(time.monotonic() - started, 1)}

    def _try(self, case: Case, plans: list[str], failed: dict[str, str]) -> GraphSpec | None:
        from peakcast.featurizer.capture.worker import capture_here
        from peakcast.training.zoo import build

        try:
            return capture_here(lambda: build(case), plans, self._traced_on).redacted()
        except Exception as error:  # noqa: BLE001 - a failure is a result: it is kept, and the other plans are tried
            failed["|".join(plans)] = _one_line(error)
            return None

    def forget(self) -> None:
        import torch

        torch.compiler.reset()


_LIBRARIES: Final = ("torch", "transformers", "timm", "torchvision")


def _bytes(prior: Prior) -> dict[str, int]:
    quantities = {f"{name}_bytes": int(getattr(prior, f"{name}_bytes")) for name in _QUANTITIES}
    return {**quantities, "parameter_bytes": prior.parts.parameters_bytes, "buffer_bytes": prior.parts.buffers_bytes}


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:600]


def main(arguments: Sequence[str]) -> None:
    """Serve requests until stdin ends: `replay [CORPUS]`, or `capture CORPUS RANKS`."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not get between the answers
    what, *rest = arguments
    if what == "replay":
        work: _Replays | _Captures = _Replays(Path(rest[0]) if rest else None)
    else:
        work = _Captures(Path(rest[0]), int(rest[1]))
    _answer(answers, {"ready": True})
    for line in sys.stdin:
        try:
            answer = work.answer(json.loads(line))
        except Exception as error:  # noqa: BLE001 - a failure is a result: it is kept, and the next request is served
            answer = {"error": _one_line(error)}
        _answer(answers, answer)
        work.forget()
        gc.collect()


def _answer(stream: io.TextIOBase, answer: Mapping[str, Any]) -> None:
    stream.write(json.dumps(answer) + "\n")
    stream.flush()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # past torch's teardown, as in the capturing process
