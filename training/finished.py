"""What a long command has finished, on disk: after a kill, the same command goes on where it was.

A step is named by the hash of everything that decides its outcome, so that a changed record, setting or library
starts anew. Files are local and appear whole or not at all; nothing that came over the network is ever unpickled.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import joblib

T = TypeVar("T")

CACHE = Path(".cache/peakcast")


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One step of a long command: its name, and the call that does it."""

    name: str
    call: Callable[..., Any]
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The finished steps of one piece of work. With no `folder` nothing is kept."""

    folder: Path | None = None

    @classmethod
    def of(cls, cache: Path | None, *decides: str) -> Finished:
        """Return the steps of the work that `decides` describes, under `cache`; None keeps nothing."""
        if cache is None:
            return cls()
        digest = hashlib.sha256("\n".join(decides).encode()).hexdigest()
        return cls(cache / f"fit-{digest[:24]}")

    def once(self, step: str, make: Callable[[], T]) -> T:
        """Return the step's outcome: what an earlier run kept, else `make()`, which is kept from then on."""
        if self.folder is None:
            return make()
        path = self.folder / f"{step}.joblib"
        if path.exists():
            kept: T = joblib.load(path)
            return kept
        made = make()
        self.folder.mkdir(parents=True, exist_ok=True)
        staging = path.with_name(f".{path.name}.{os.getpid()}")
        joblib.dump(made, staging)
        staging.replace(path)
        return made

    def run(self, steps: Sequence[Step], *, jobs: int = 1, told: Callable[[str], None] = lambda _: None) -> list[Any]:
        """Do the steps that are not finished, `jobs` at a time. Returns the outcomes; `told` hears how many."""
        outcomes = []
        told(f"0 of {len(steps)}")
        # Two levels of processes do no more than one: where a fit runs in a worker, its steps run one by one.
        parts = joblib.Parallel(n_jobs=jobs, return_as="generator")(joblib.delayed(_do)(self, step) for step in steps)
        for outcome in parts:
            outcomes.append(outcome)
            told(f"{len(outcomes)} of {len(steps)}")
        return outcomes

    def forget(self) -> None:
        """Remove what was kept: the work is done."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def _do(finished: Finished, step: Step) -> Any:
    return finished.once(step.name, lambda: step.call(*step.arguments))
