"""A verdict in the making, while the compiler is at work on the plan wanted already."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from peakcast.client.guard.verdict import Verdict


class Ahead:
    """Decide in a thread of its own.

    Args:
        decide: decides; calls what it is given once the plan wanted turned out not to be sure to fit.
    """

    def __init__(self, decide: Callable[[Callable[[], None]], Verdict]) -> None:
        self.waited_s = 0.0
        self._is_doubtful = False
        self._decided: Future[Verdict] = Future()
        # A daemon: a program that ends does not wait for an answer.
        threading.Thread(target=self._run, args=(decide,), daemon=True, name="peakcast-decide").start()

    def is_worth_waiting(self) -> bool:
        """Tell whether the verdict is there, or will likely be about another plan than the one that is compiled."""
        return self._is_doubtful or self._decided.done()

    def verdict(self) -> Verdict:
        """Wait for the verdict; whatever went wrong with deciding is raised here."""
        started_s = time.perf_counter()
        try:
            return self._decided.result()
        finally:
            self.waited_s += time.perf_counter() - started_s

    def _run(self, decide: Callable[[Callable[[], None]], Verdict]) -> None:
        try:
            self._decided.set_result(decide(self._doubt))
        except BaseException as error:  # noqa: BLE001  (raised again by who waits)
            self._decided.set_exception(error)

    def _doubt(self) -> None:
        self._is_doubtful = True
