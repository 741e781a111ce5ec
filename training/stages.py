"""How far a long command is, on stderr: a spinner on a terminal, a line for each stage elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Self

from rich.console import Console
from rich.status import Status


class Stages:
    """Call it with the name of each stage as it begins. Off a terminal, each line begins with the seconds so far."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._status: Status | None = None
        self._started_sec = time.monotonic()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status = self._console.status("")
            self._status.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._status is not None:
            self._status.stop()
        elif kind is None:
            self.note("done")

    def __call__(self, name: str) -> None:
        """Begin a stage."""
        if self._status is not None:
            self._status.update(name)
        else:
            self.note(name)

    def note(self, text: str) -> None:
        """Say something that stays to be read."""
        if self._status is not None:
            self._console.print(text, markup=False, highlight=False)
        else:
            sys.stderr.write(f"{time.monotonic() - self._started_sec:7.1f}s {text}\n")
            sys.stderr.flush()
