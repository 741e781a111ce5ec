"""The service's line to its store: opened when first needed, given a pause after a failure, never in the way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Literal, TypeVar

import structlog

from peakcast.service.store.errors import StoreError, StoreUnavailableError
from peakcast.service.store.peak_store import PeakStore

log = structlog.get_logger("peakcast.service")

T = TypeVar("T")
Status = Literal["off", "opening", "ready", "unavailable"]

# After a failure nobody waits for the store's timeout again before this: the next failure would cost it as well.
_PAUSE_S: Final = 2.0
# Who could do without the store waits longer: a prediction must not spend its time on one that is away.
_PASSING_PAUSE_S: Final = 60.0


class StoreLink:
    """Use a store that may be away. Safe to use from several threads; `url` None: there is none."""

    def __init__(self, url: str | None, *, timeout_s: float, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._clock_s = clock_s
        self._opening = threading.Lock()
        self._store: PeakStore | None = None
        self._problem: str | None = None
        self._failed_at_s = 0.0

    @property
    def is_off(self) -> bool:
        """Tell whether no store is kept."""
        return self._url is None

    @property
    def status(self) -> Status:
        """Return how the store was when it was last used."""
        if self._url is None:
            return "off"
        if self._problem is not None:
            return "unavailable"
        return "opening" if self._store is None else "ready"

    def use(self, action: Callable[[PeakStore], T], *, in_passing: bool = False) -> T:
        """Return what `action` gives on the store.

        Args:
            action: what to do with the store.
            in_passing: the caller can do without, and gives up sooner.

        Raises:
            StoreError: if there is no store, or it cannot be used; StoreUnavailableError if it may answer later.
        """
        if self._url is None:
            raise StoreError("no store is kept")
        pause_s = _PASSING_PAUSE_S if in_passing else _PAUSE_S
        if self._problem is not None and self._clock_s() < self._failed_at_s + pause_s:
            raise StoreUnavailableError(self._problem)
        if self._store is None and in_passing:
            raise StoreUnavailableError("the store is not open yet")
        try:
            result = action(self._opened(self._url))
        except StoreError as error:
            if self._problem is None:
                log.warning("store_unavailable", error=str(error))
            self._problem = str(error)
            self._failed_at_s = self._clock_s()
            raise
        if self._problem is not None:
            self._problem = None
            log.info("store_ready")
        return result

    def open(self) -> None:
        """Open the store now; a failure is logged, and the next use tries again."""
        try:
            if self._url is not None:
                self.use(PeakStore.ping)
        except StoreError:
            return
        except Exception:
            log.exception("store_not_opened")  # whatever is wrong with a store, predictions go on

    def close(self) -> None:
        """Close the connections."""
        if self._store is not None:
            self._store.close()

    def _opened(self, url: str) -> PeakStore:
        if self._store is None:
            if not self._opening.acquire(timeout=self._timeout_s):
                raise StoreUnavailableError("the store is still being opened")
            try:
                if self._store is None:
                    self._store = PeakStore.open(url, timeout_s=self._timeout_s)
            finally:
                self._opening.release()
        return self._store
