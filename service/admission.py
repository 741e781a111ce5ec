"""Places for requests under way: who finds none is told when to come again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import Gauge

from peakcast.service.errors import ErrorCode, ServiceError


class Admission:
    """Hold up to `limit` requests at once. For the event loop's thread only."""

    def __init__(self, limit: int, *, retry_after_seconds: int, gauge: Gauge) -> None:
        self._limit = limit
        self._retry_after_seconds = retry_after_seconds
        self._gauge = gauge
        self._held = 0

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold one of the places.

        Raises:
            ServiceError: BUSY if all are taken.
        """
        if self._held >= self._limit:
            raise ServiceError(
                ErrorCode.BUSY,
                f"{self._held} requests are under way, {self._limit} are allowed: "
                f"ask again in {self._retry_after_seconds} s",
                headers={"Retry-After": str(self._retry_after_seconds)},
            )
        self._held += 1
        self._gauge.inc()
        try:
            yield
        finally:
            self._held -= 1
            self._gauge.dec()
