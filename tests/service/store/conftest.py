"""The databases that every test of the store runs on, and peaks to put into them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from reported import new_peak
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from peakcast.service.store.peak_store import NewPeak, PeakStore


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Give the URL of an empty database of the test's own, of each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'peaks.db'}"
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


@pytest.fixture
def store(store_url: str) -> Iterator[PeakStore]:
    """Give an open store in that database."""
    opened = PeakStore.open(store_url)
    yield opened
    opened.close()


@pytest.fixture
def make_peak() -> Callable[..., NewPeak]:
    """Give what makes peaks of the example graph, fields replaced at will."""
    return new_peak
