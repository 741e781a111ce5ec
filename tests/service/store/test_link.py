from __future__ import annotations

from pathlib import Path

import pytest
from reported import GRAPH, ROOM, new_peak

from peakcast.service.store.errors import StoreError, StoreUnavailableError
from peakcast.service.store.link import StoreLink
from peakcast.service.store.peak_store import PeakStore


def test_a_failure_is_followed_by_a_pause_that_callers_in_passing_keep_longer(tmp_path: Path) -> None:
    """For 2 s nobody tries the store again, for 60 s no prediction does; a success of others ends both."""
    now_s = 100.0
    blocked = tmp_path / "folder"
    blocked.write_text("a file where the store's folder should be")
    link = StoreLink(f"sqlite:///{blocked / 'peaks.db'}", timeout_s=1, clock_s=lambda: now_s)
    tried = 0

    def count(store: PeakStore) -> None:
        nonlocal tried
        tried += 1
        store.ping()

    assert link.status == "opening"
    link.open()
    assert link.status == "unavailable"
    blocked.unlink()
    now_s = 101.9
    with pytest.raises(StoreUnavailableError):
        link.use(count)
    now_s = 102.1
    with pytest.raises(StoreUnavailableError):
        link.use(count, in_passing=True)
    assert tried == 0
    link.use(count)
    assert link.status == "ready"
    link.use(count, in_passing=True)
    assert tried == 2
    link.close()


def test_a_store_in_use_that_fails_is_told_and_tried_again_in_passing_after_a_minute(tmp_path: Path) -> None:
    """What was open and broke is asked by predictions again once a minute is over."""
    now_s = 0.0
    link = StoreLink(f"sqlite:///{tmp_path / 'peaks.db'}", timeout_s=1, clock_s=lambda: now_s)
    link.use(lambda store: store.add(new_peak(), ROOM))

    def fail(store: PeakStore) -> None:
        raise StoreUnavailableError("the cable is out")

    with pytest.raises(StoreUnavailableError, match="cable"):
        link.use(fail)
    now_s = 59.0
    with pytest.raises(StoreUnavailableError, match="cable"):
        link.use(lambda store: store.graph(GRAPH.graph_id), in_passing=True)
    now_s = 61.0
    assert link.use(lambda store: store.graph(GRAPH.graph_id), in_passing=True) is not None
    assert link.status == "ready"
    link.close()


def test_without_a_url_there_is_no_store() -> None:
    """It is off, opening it does nothing, and using it says so."""
    link = StoreLink(None, timeout_s=1)
    link.open()
    assert (link.is_off, link.status) == (True, "off")
    with pytest.raises(StoreError, match="no store is kept"):
        link.use(PeakStore.ping)
    assert link.status == "off"
