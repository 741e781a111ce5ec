"""What an operator does with stored peaks: look at them, release those in quarantine, reject what is false."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, func, select, update
from sqlalchemy.orm import Session

from peakcast.service.store.engine import reading, told_as_unavailable
from peakcast.service.store.peak_store import PeakStore
from peakcast.service.store.tables import ACCEPTED, REJECTED, Peak


class Review:
    """Read and settle the peaks of a store."""

    def __init__(self, store: PeakStore) -> None:
        self._engine = store.engine

    def counts(self) -> dict[str, int]:
        """Return how many peaks there are of each status."""
        with told_as_unavailable(), Session(reading(self._engine)) as session:
            rows = session.execute(select(Peak.status, func.count()).group_by(Peak.status).order_by(Peak.status))
            return {status: int(count) for status, count in rows}

    def peaks(self, *, status: str | None = None, reporter: str | None = None, limit: int = 100) -> list[Peak]:
        """Return the newest peaks, of one status and one reporter where these are given."""
        query = select(Peak).order_by(Peak.id.desc()).limit(limit)
        if status is not None:
            query = query.where(Peak.status == status)
        if reporter is not None:
            query = query.where(Peak.reporter == reporter)
        with told_as_unavailable(), Session(reading(self._engine), expire_on_commit=False) as session:
            return list(session.scalars(query))

    def peak(self, key: str) -> Peak | None:
        """Return the peak of a key, or None."""
        with told_as_unavailable(), Session(reading(self._engine), expire_on_commit=False) as session:
            return session.scalar(select(Peak).where(Peak.key == key))

    def release(self, keys: Sequence[str]) -> int:
        """Accept peaks that were in quarantine or rejected. Returns how many changed."""
        return self._settle(ACCEPTED, Peak.key.in_(keys))

    def reject(self, keys: Sequence[str] = (), *, reporter: str | None = None) -> int:
        """Take peaks out for good, by key or all of a reporter; their keys stay known. Returns how many changed."""
        return self._settle(REJECTED, Peak.key.in_(keys) if reporter is None else Peak.reporter == reporter)

    def _settle(self, status: str, which: ColumnElement[bool]) -> int:
        with told_as_unavailable(), Session(self._engine) as session, session.begin():
            changed: Any = session.execute(update(Peak).where(which, Peak.status != status).values(status=status))
            return int(changed.rowcount)
