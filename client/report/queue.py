"""Reports that wait on the disk until a server has them: one SQLite file, shared by the processes of one host."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS graphs (graph_id TEXT PRIMARY KEY, content BLOB NOT NULL)",
    """CREATE TABLE IF NOT EXISTS reports (
        id INTEGER PRIMARY KEY,
        key TEXT NOT NULL UNIQUE,
        fields BLOB NOT NULL,
        graph_id TEXT NOT NULL,
        tries INTEGER NOT NULL DEFAULT 0,
        leased_until_s REAL NOT NULL DEFAULT 0
    )""",
)
_FORGET_GRAPHS: Final = "DELETE FROM graphs WHERE graph_id NOT IN (SELECT graph_id FROM reports)"
_HELD_BYTES: Final = (
    "SELECT (SELECT COALESCE(SUM(LENGTH(fields)), 0) FROM reports) + "
    "(SELECT COALESCE(SUM(LENGTH(content)), 0) FROM graphs)"
)
# Processes hold the file for a few milliseconds at a time.
_LOCK_WAIT_S: Final = 5.0
# A sender is done, one way or the other, well before its lease ends.
LEASE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """A report taken to be sent: its fields as JSON, its graph's id, and how often it was taken before."""

    key: str
    fields: bytes
    graph_id: str
    tries: int


class ReportQueue:
    """Keep reports until they are sent. Every method opens the file for itself, so threads and forks share nothing.

    Args:
        path: the file; made, with its folder, when first needed. On a local disk: SQLite's locks need one.
        max_reports, max_bytes: beyond these the oldest reports are dropped.
        lease_s: how long a report that was taken is left alone by others; a killed sender's is free after that.

    Every method raises OSError or sqlite3.Error where the disk does not let it.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_reports: int = 10_000,
        max_bytes: int = 256 << 20,
        lease_s: float = LEASE_S,
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        self.path = path
        self._lease_s = lease_s
        self._max_reports = max_reports
        self._max_bytes = max_bytes
        self._clock_s = clock_s

    def put(self, key: str, fields: bytes, graph_id: str, graph_json: Callable[[], bytes]) -> int:
        """Keep a report, once for each key, and its graph, once for all its reports. Returns how many were dropped."""
        with self._writing() as db:
            if db.execute("SELECT 1 FROM graphs WHERE graph_id = ?", (graph_id,)).fetchone() is None:
                packed = zlib.compress(graph_json())
                db.execute("INSERT INTO graphs (graph_id, content) VALUES (?, ?)", (graph_id, packed))
            row = (key, fields, graph_id)
            db.execute("INSERT OR IGNORE INTO reports (key, fields, graph_id) VALUES (?, ?, ?)", row)
            return self._drop_oldest(db)

    def take(self) -> Waiting | None:
        """Return the oldest report that nobody is sending, and keep others off it for a while; None: there is none."""
        if not self.path.exists():
            return None
        now_s = self._clock_s()
        with self._writing() as db:
            # A lease that ends later than any can was taken before the clock was set back.
            row = db.execute(
                "SELECT id, key, fields, graph_id, tries FROM reports "
                "WHERE leased_until_s <= ? OR leased_until_s > ? ORDER BY tries, id LIMIT 1",
                (now_s, now_s + self._lease_s),
            ).fetchone()
            if row is None:
                return None
            identity, key, fields, graph_id, tries = row
            lease = (now_s + self._lease_s, identity)
            db.execute("UPDATE reports SET tries = tries + 1, leased_until_s = ? WHERE id = ?", lease)
            return Waiting(key, fields, graph_id, tries)

    def graph(self, graph_id: str) -> bytes:
        """Return the JSON of a report's graph.

        Raises:
            KeyError: if it is gone, and its reports with it.
        """
        with self._opened() as db:
            row = db.execute("SELECT content FROM graphs WHERE graph_id = ?", (graph_id,)).fetchone()
        if row is None:
            raise KeyError(graph_id)
        return zlib.decompress(row[0])

    def remove(self, key: str) -> None:
        """Forget a report that was sent, or never will be."""
        with self._writing() as db:
            db.execute("DELETE FROM reports WHERE key = ?", (key,))
            db.execute(_FORGET_GRAPHS)

    def give_back(self, key: str) -> None:
        """Let a report that was taken be taken again at once."""
        with self._writing() as db:
            db.execute("UPDATE reports SET leased_until_s = 0 WHERE key = ?", (key,))

    def __len__(self) -> int:
        if not self.path.exists():
            return 0
        with self._opened() as db:
            return int(db.execute("SELECT COUNT(*) FROM reports").fetchone()[0])

    def _drop_oldest(self, db: sqlite3.Connection) -> int:
        count = int(db.execute("SELECT COUNT(*) FROM reports").fetchone()[0])
        dropped = 0
        while count - dropped > 1 and (
            count - dropped > self._max_reports or db.execute(_HELD_BYTES).fetchone()[0] > self._max_bytes
        ):
            db.execute("DELETE FROM reports WHERE id = (SELECT MIN(id) FROM reports)")
            db.execute(_FORGET_GRAPHS)
            dropped += 1
        return dropped

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._opened() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(self._connection()) as db:
            yield db

    def _connection(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return self._prepared()
        except sqlite3.DatabaseError as error:
            # Locked and full disks are OperationalErrors; what remains is a file that is no database, or no longer.
            if isinstance(error, sqlite3.OperationalError):
                raise
            self.path.replace(self.path.with_name(f"{self.path.name}.{os.getpid()}.damaged"))
            return self._prepared()

    def _prepared(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=_LOCK_WAIT_S, isolation_level=None)
        try:
            if db.execute("SELECT COUNT(*) FROM sqlite_master WHERE type = 'table'").fetchone()[0] < len(_SCHEMA):
                for statement in _SCHEMA:
                    db.execute(statement)
        except BaseException:
            db.close()
            raise
        return db
