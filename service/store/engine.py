"""Connections to SQLite and PostgreSQL, set up so that what was committed stays and writers do not lose each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Engine, event, text
from sqlalchemy import create_engine as create_sqlalchemy_engine
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.exc import InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from peakcast.service.store.errors import StoreError, StoreUnavailableError

_READS: Final = "peakcast_reads"
# Writers of SQLite take turns anyway; PostgreSQL takes a few side by side.
_CONNECTIONS: Final = 4


def create_engine(url: str, *, timeout_s: float) -> Engine:
    """Return an engine for a URL that `checked_url` gave. Connects to nothing; later nothing waits for long."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        if parsed.database is not None:
            # Peaks tell what somebody trains: the folder is the user's own.
            Path(parsed.database).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        engine = create_sqlalchemy_engine(
            parsed, connect_args={"timeout": timeout_s}, pool_size=_CONNECTIONS, pool_timeout=timeout_s
        )
        event.listen(engine, "connect", _set_up_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    timeout_ms = int(timeout_s * 1000)
    return create_sqlalchemy_engine(
        parsed,
        connect_args={
            "connect_timeout": max(int(timeout_s), 1),
            "tcp_user_timeout": timeout_ms,
            "options": f"-c statement_timeout={timeout_ms} -c lock_timeout={timeout_ms}",
        },
        pool_size=_CONNECTIONS,
        pool_timeout=timeout_s,
        pool_pre_ping=True,  # a database that was restarted is met by a new connection, not by an error
    )


def reading(engine: Engine) -> Engine:
    """Return the engine for what only reads: in SQLite it then waits for no writer."""
    return engine.execution_options(**{_READS: True})


def is_postgres(connection: Connection) -> bool:
    """Tell whether a connection leads to PostgreSQL."""
    return connection.dialect.name == "postgresql"


def lock_until_commit(connection: Connection, number: int) -> None:
    """Let one transaction at a time pass that gives this number. SQLite has one writer at a time as it is."""
    if is_postgres(connection):
        connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": number})


@contextmanager
def told_as_unavailable() -> Iterator[None]:
    """Turn what a database says when it is away, locked or full into StoreUnavailableError."""
    try:
        yield
    except (OperationalError, InterfaceError, PoolTimeoutError) as error:
        raise StoreUnavailableError(_what(error)) from error
    except SQLAlchemyError as error:
        raise StoreError(_what(error)) from error


def _what(error: SQLAlchemyError) -> str:
    # The driver's own words: SQLAlchemy's add the statement and what was to be stored.
    cause = getattr(error, "orig", None) or error
    first = str(cause).strip().splitlines()
    return f"{type(cause).__name__}: {first[0] if first else ''}"


def _set_up_sqlite(connection: Any, _record: Any) -> None:
    # The driver would begin transactions itself, and deferred: two that read before they write then lose one another.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "trusted_schema=OFF"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    reads = connection.get_execution_options().get(_READS, False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")
