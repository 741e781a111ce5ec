"""Keeps peaks: one transaction takes a peak whole, with its graph and its reporter's account, or not at all."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Engine, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from peakcast.service.store.agreement import disagreement
from peakcast.service.store.engine import create_engine, is_postgres, lock_until_commit, reading, told_as_unavailable
from peakcast.service.store.errors import KeyConflictError, QuotaError, StoreError
from peakcast.service.store.quota import Quota, Taken, refusal
from peakcast.service.store.tables import ACCEPTED, QUARANTINED, Graph, Peak, Reporter

# Level 6 packs GPT-2 small's 0.3 MB in 10 ms.
_PACKING: Final = 6
# The earliest accepted peaks of a configuration hold every quantity that is ever measured of it.
_COMPARED: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPeak:
    """A checked peak on its way into the store. `reason` says why it goes to quarantine; empty: it does not."""

    key: str
    content_sha256: str
    reporter: str
    graph_id: str
    graph_json: bytes  # without source lines
    configuration: str
    plan: str
    run: dict[str, Any]
    device: dict[str, Any]
    measured: dict[str, int]
    prior: dict[str, int]
    versions: dict[str, str]
    out_of_memory: bool
    cache: str
    source: str
    architecture: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Added:
    """What became of a peak. `is_repeat`: it was there already, with the same content."""

    status: str
    reason: str
    is_repeat: bool


class PeakStore:
    """The peaks and graphs of one database. Safe to use from several threads, and by several processes at once.

    Every method raises StoreUnavailableError if the database does not answer, StoreError if it cannot be used.
    """

    def __init__(self, engine: Engine, *, clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self.engine = engine
        self._reads = reading(engine)
        self._clock_ms = clock_ms

    @classmethod
    def open(cls, url: str, *, timeout_s: float = 5.0) -> PeakStore:
        """Open a store, creating or upgrading its tables."""
        # alembic takes a third of the import of this module, and the service answers before its store is open.
        from peakcast.service.store.migrate import upgrade

        try:
            engine = create_engine(url, timeout_s=timeout_s)
        except OSError as error:
            raise StoreError(f"cannot create {error.filename}: {error.strerror}") from error
        except ModuleNotFoundError as error:
            raise StoreError(f"PostgreSQL needs {error.name}: pip install 'peakcast[postgres]'") from error
        try:
            with told_as_unavailable():
                upgrade(engine)
        except BaseException:
            engine.dispose()
            raise
        return cls(engine)

    def close(self) -> None:
        """Close the connections."""
        self.engine.dispose()

    def add(self, peak: NewPeak, quota: Quota) -> Added:
        """Take a peak; it is on the disk when this returns. The same peak under the same key is taken once.

        Raises:
            KeyConflictError: if the key is of another peak.
            QuotaError: if its reporter has taken its share.
        """
        with told_as_unavailable(), Session(self.engine) as session, session.begin():
            now_ms = self._clock_ms()
            reporter = self._locked_reporter(session, peak.reporter, now_ms)
            before = self._before(session, peak)
            if before is not None:
                return before
            packed = b"" if self._has_graph(session, peak.graph_id) else zlib.compress(peak.graph_json, _PACKING)
            taken = self._taken(session, reporter).at(now_ms)
            refused = refusal(quota, taken, graph_bytes=len(packed), now_ms=now_ms)
            if refused is not None:
                raise QuotaError(refused.reason, refused.retry_after_s)
            if packed and not self._add_graph(session, peak, packed, now_ms):
                packed = b""  # another reporter brought it just now
            status, reason = self._judged(session, peak)
            row = {name: getattr(peak, name) for name in _PEAK_COLUMNS}
            row |= {"received_at_ms": now_ms, "status": status, "reason": reason}
            if not self._insert(session, Peak, row):
                found = self._before(session, peak)
                assert found is not None
                return found
            reporter.peaks += 1
            reporter.graph_bytes += len(packed)
            reporter.window_began_ms = taken.window_began_ms
            reporter.window_peaks = taken.window_peaks + 1
        return Added(status, reason, is_repeat=False)

    def graph(self, graph_id: str) -> bytes | None:
        """Return the JSON of a graph, or None where none of its peaks was kept."""
        with told_as_unavailable(), Session(self._reads) as session:
            packed = session.scalar(select(Graph.content).where(Graph.graph_id == graph_id))
        try:
            return None if packed is None else zlib.decompress(packed)
        except zlib.error as error:
            raise StoreError(f"graph {graph_id} is damaged: {error}") from error

    def ping(self) -> None:
        """Ask the database for its smallest answer."""
        with told_as_unavailable(), Session(self._reads) as session:
            session.scalar(select(1))

    def _locked_reporter(self, session: Session, name: str, now_ms: int) -> Reporter:
        """Return the reporter's row; no other transaction changes it, or adds for it, before this one ends."""
        new = {"name": name, "peaks": 0, "graph_bytes": 0, "window_began_ms": now_ms, "window_peaks": 0}
        self._insert(session, Reporter, new)
        return session.scalars(select(Reporter).where(Reporter.name == name).with_for_update()).one()

    @staticmethod
    def _before(session: Session, peak: NewPeak) -> Added | None:
        row = session.execute(
            select(Peak.content_sha256, Peak.status, Peak.reason).where(Peak.key == peak.key)
        ).one_or_none()
        if row is None:
            return None
        if row.content_sha256 != peak.content_sha256:
            raise KeyConflictError(f"the key {peak.key} is of another peak: give each peak a key of its own")
        return Added(row.status, row.reason, is_repeat=True)

    @staticmethod
    def _has_graph(session: Session, graph_id: str) -> bool:
        return session.scalar(select(Graph.graph_id).where(Graph.graph_id == graph_id)) is not None

    @staticmethod
    def _taken(session: Session, reporter: Reporter) -> Taken:
        totals = session.execute(
            select(func.coalesce(func.sum(Reporter.peaks), 0), func.coalesce(func.sum(Reporter.graph_bytes), 0))
        ).one()
        own = (reporter.peaks, reporter.graph_bytes, reporter.window_began_ms, reporter.window_peaks)
        return Taken(*own, int(totals[0]), int(totals[1]))

    def _add_graph(self, session: Session, peak: NewPeak, packed: bytes, now_ms: int) -> bool:
        row = {"graph_id": peak.graph_id, "content": packed, "reporter": peak.reporter, "received_at_ms": now_ms}
        return self._insert(session, Graph, row)

    @staticmethod
    def _judged(session: Session, peak: NewPeak) -> tuple[str, str]:
        if peak.reason:
            return QUARANTINED, peak.reason
        # Two first reports of one configuration at the same moment must see each other.
        lock_until_commit(session.connection(), int(peak.configuration[:15], 16))
        accepted = session.scalars(
            select(Peak.measured)
            .where(Peak.configuration == peak.configuration, Peak.status == ACCEPTED)
            .order_by(Peak.id)
            .limit(_COMPARED)
        )
        reason = disagreement(peak.measured, accepted)
        return (ACCEPTED, "") if reason is None else (QUARANTINED, reason)

    @staticmethod
    def _insert(session: Session, table: type[Graph | Peak | Reporter], row: dict[str, Any]) -> bool:
        """Insert a row unless its key is there. Returns whether it was inserted."""
        insert = postgresql.insert if is_postgres(session.connection()) else sqlite.insert
        statement = insert(table).values(row).on_conflict_do_nothing().returning(*table.__table__.primary_key)
        return session.execute(statement).one_or_none() is not None


_PEAK_COLUMNS: Final = tuple(name for name in NewPeak.__dataclass_fields__ if name not in {"graph_json", "reason"})
