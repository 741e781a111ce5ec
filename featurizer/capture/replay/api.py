"""Replay a workload in a process of its own, with a time limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import orjson

from peakcast.featurizer.capture.isolated import CaptureError, ask_process
from peakcast.featurizer.capture.replay.session import Replayed
from peakcast.featurizer.capture.replay.versions import ReplayUnavailable, check_versions
from peakcast.featurizer.plans import parse_plan
from peakcast.featurizer.spec import GraphSpec

REPLAYING: Final = "peakcast.featurizer.capture.replay.worker"
# A graph of 5,400 nodes took 45 s on a slow core, and each plan may be lowered twice.
TIMEOUT_SEC: Final = 900.0


def replay_workload(
    target: str,
    plans: Sequence[str],
    *,
    timeout_sec: float = TIMEOUT_SEC,
    progress: Callable[[str], None] | None = None,
) -> Replayed:
    """Replay `package.module:name` or `path/to/file.py:name` under each plan; eager plans are captured as ever.

    Args:
        timeout_sec: for all plans together.
        progress: called with a line of text as each plan begins.

    Raises:
        ValueError: if a plan's name is unknown.
        ReplayUnavailable: if nothing can be replayed here, or not in time: the rules can still answer.
        CaptureError: if the workload itself fails.
    """
    names = [parse_plan(plan).name for plan in plans]
    check_versions()
    try:
        request: dict[str, Any] = {"target": target, "plans": names}
        answer = orjson.loads(ask_process(REPLAYING, request, timeout_sec=timeout_sec, progress=progress))
    except CaptureError as error:
        if error.kind in ("ShimUnavailable", "ReplayUnavailable", "TimeoutExpired"):
            raise ReplayUnavailable(str(error)) from error
        raise
    otherwise = answer["otherwise"]
    return Replayed(
        spec=GraphSpec.from_json(answer["spec"]),
        undecided=tuple(answer["undecided"]),
        otherwise=None if otherwise is None else GraphSpec.from_json(otherwise),
        failed=answer["failed"],
    )
