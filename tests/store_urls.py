"""Databases for tests of the store: each of its own, gone afterwards."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url


@contextmanager
def a_database(kind: str, folder: Path) -> Iterator[str]:
    """Give the URL of an empty database: a file in `folder`, or one on the PostgreSQL server of the tests."""
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'peaks.db'}"
        return
    base = os.environ.get("PEAKCAST_TEST_POSTGRES_URL")
    if base is None:
        pytest.skip("PEAKCAST_TEST_POSTGRES_URL is not set: .ci/run starts a PostgreSQL and sets it")
    name = f"peakcast_{secrets.token_hex(6)}"
    server = create_engine(base, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    try:
        yield make_url(base).set(database=name).render_as_string(hide_password=False)
    finally:
        with server.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
        server.dispose()
