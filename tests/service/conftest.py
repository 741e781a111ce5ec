"""One service that the tests of a file share, and the request it is asked."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from serving import Served, serving

from peakcast.service.examples import example_request


@pytest.fixture(scope="module")
def service() -> Iterator[Served]:
    """Give a running service with the settings it ships with."""
    with serving() as served:
        yield served


@pytest.fixture
def http(service: Served) -> Iterator[httpx.Client]:
    """Give a client of that service."""
    with httpx.Client(base_url=service.url, timeout=60) as client:
        yield client


@pytest.fixture
def request_body() -> dict[str, Any]:
    """Give a body of `POST /predict` that is answered, to be changed at will."""
    return copy.deepcopy(example_request())


@pytest.fixture(autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the default store of services that run in this process out of the home of who runs the tests."""
    monkeypatch.setenv("PEAKCAST_STATE_DIR", str(tmp_path_factory.mktemp("state")))
