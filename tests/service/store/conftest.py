"""The databases that every test of the store runs on, and peaks to put into them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from reported import new_peak
from store_urls import a_database

from peakcast.service.store.peak_store import NewPeak, PeakStore


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Give the URL of an empty database of the test's own, of each kind."""
    with a_database(request.param, tmp_path) as url:
        yield url


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
