"""What the guard tells others: measured peaks to the service, everything to the process's own metrics."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from peakcast.client.guard.step_peaks import StepPeaks
from peakcast.client.guard.verdict import Verdict
from peakcast.client.metrics.metrics import CLIENT
from peakcast.client.report.report import PeakReport, Reporter

_ACTIONS = {"smallest": "refuse", "unknown": "compile"}


def queue_path(server: str) -> Path:
    """Return the file in which reports to a server wait: one for each server, in the user's cache folder."""
    import hashlib

    folder = os.environ.get("PEAKCAST_CACHE_DIR")
    root = Path(folder) if folder else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "peakcast"
    return root / f"reports-{hashlib.sha256(server.encode()).hexdigest()[:16]}.sqlite"


class Reports:
    """Follow the plan that runs, and report what it took.

    Args:
        server: whom to tell; None: measure for the metrics alone.
        token: bearer token.
    """

    def __init__(self, server: str | None, *, token: str | None) -> None:
        self._reporter = Reporter(server, queue_path=queue_path(server), token=token) if server else None
        self._peaks: StepPeaks | None = None
        self._begun_early: tuple[str, StepPeaks | None] = "", None
        self._verdict: Verdict | None = None
        self._plan = ""
        self._begun: set[tuple[str | None, str]] = set()

    def decided(self, verdict: Verdict) -> None:
        """Count a decision."""
        CLIENT.observe_decision(_ACTIONS.get(verdict.action, verdict.action))
        CLIENT.observe_answer(verdict.asked_s)
        told = verdict.prediction()
        if told is not None:
            CLIENT.observe_prediction(told.confidence)

    def will_run(self, plan: str) -> None:
        """Take in that a compile begins whose verdict comes later: the plan's first step is measured from here."""
        self._peaks, self._begun_early = None, (plan, StepPeaks())

    def runs(self, verdict: Verdict, plan: str) -> None:
        """Take in that this plan runs from now on: measured is the first time of each graph and plan."""
        self._verdict, self._plan, self._peaks = verdict, plan, None
        early_plan, early_peaks = self._begun_early
        self._begun_early = "", None
        key = (verdict.graph_id, plan)
        if verdict.device is not None and key not in self._begun:
            self._begun.add(key)
            self._peaks = early_peaks if early_peaks is not None and early_plan == plan else StepPeaks()
            self._peaks.base_bytes = verdict.device.already_allocated_bytes

    def step(self, looked_bytes: int) -> None:
        """Take in that a step has ended; `looked_bytes` is what the second look saw, 0 if nothing."""
        if self._peaks is None or self._peaks.is_over:
            return
        measured = self._peaks.step()
        if measured is None or self._verdict is None:
            return
        told = self._verdict.prediction(self._plan)
        if told is not None:
            CLIENT.observe_peak(
                self._plan,
                expected_bytes=told.steady_allocated.expected_bytes,
                upper_bytes=told.steady_allocated.upper_bytes,
                measured_bytes=measured["steady_allocated_bytes"],
            )
        if looked_bytes:
            measured["second_look_allocated_bytes"] = looked_bytes
        self._send(self._verdict, measured, self._peaks)

    def ran_out(self) -> None:
        """Take in that a step ran out of memory under the plan that runs: that is a label too."""
        CLIENT.observe_fall_back("out_of_memory")
        if self._peaks is not None and self._verdict is not None and not self._peaks.is_over:
            self._peaks.is_over = True
            self._send(self._verdict, {}, self._peaks, out_of_memory=True)

    def close(self) -> None:
        """Send what waits, as far as it goes quickly."""
        if self._reporter is not None:
            self._reporter.close()

    def _send(self, verdict: Verdict, measured: dict[str, int], peaks: StepPeaks, **more: Any) -> None:
        spec = verdict.spec(self._plan)
        if self._reporter is None or spec is None or verdict.device is None:
            return
        self._reporter.report(
            PeakReport(
                graph=spec,
                device=verdict.device,
                plan=self._plan,
                measured=measured,
                cache=peaks.cache,
                run=verdict.run,
                versions={"torch": str(torch.__version__), "cuda": str(torch.version.cuda)},
                **more,
            )
        )
