from __future__ import annotations

import contextlib
import multiprocessing
import sqlite3
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from reported import GRAPH, ROOM, write_in_a_process
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from peakcast.featurizer.spec import GraphSpec
from peakcast.service.store.engine import is_postgres
from peakcast.service.store.errors import KeyConflictError, QuotaError, StoreError, StoreUnavailableError
from peakcast.service.store.peak_store import NewPeak, PeakStore
from peakcast.service.store.quota import Quota
from peakcast.service.store.tables import Graph, Peak, Reporter

Maker = Callable[..., NewPeak]


def keys(store: PeakStore) -> list[str]:
    """Return the keys of all peaks, in the order they came."""
    with Session(store.engine) as session:
        return list(session.scalars(select(Peak.key).order_by(Peak.id)))


def test_a_peak_comes_back_as_it_was_sent(store: PeakStore, make_peak: Maker) -> None:
    """Every field, the graph and the account of its reporter are there after one add."""
    peak = make_peak(device={"name": "odd \x00 name", "total_bytes": 1 << 40})
    added = store.add(peak, ROOM)
    assert (added.status, added.reason, added.is_repeat) == ("accepted", "", False)
    with Session(store.engine) as session:
        row = session.scalars(select(Peak)).one()
        for name in NewPeak.__dataclass_fields__:
            if name != "graph_json":
                assert getattr(row, name) == getattr(peak, name), name
        reporter = session.scalars(select(Reporter)).one()
        packed = session.scalars(select(Graph.content)).one()
    assert (reporter.name, reporter.peaks, reporter.graph_bytes) == ("team-a", 1, len(packed))
    content = store.graph(GRAPH.graph_id)
    assert content is not None
    assert GraphSpec.from_json(content) == GRAPH
    assert store.graph("0" * 64) is None


def test_the_same_peak_is_kept_once(store: PeakStore, make_peak: Maker) -> None:
    """A repeat is told so and changes nothing; other content under the key is refused."""
    first = make_peak()
    store.add(first, ROOM)
    again = store.add(first, ROOM)
    assert again.is_repeat
    with pytest.raises(KeyConflictError, match=first.key):
        store.add(make_peak(key=first.key, plan="inductor"), ROOM)
    assert keys(store) == [first.key]
    with Session(store.engine) as session:
        assert session.scalars(select(Reporter.peaks)).one() == 1


def test_a_peak_that_contradicts_those_before_waits_in_quarantine(store: PeakStore, make_peak: Maker) -> None:
    """2 % off is accepted, 4 % is not; for another torch or another plan it is no contradiction."""
    measured = {"steady_allocated_bytes": 1_000_000_000, "steady_reserved_bytes": 1_200_000_000}
    near = {**measured, "steady_allocated_bytes": 1_020_000_000}
    far = {**measured, "steady_allocated_bytes": 1_040_000_000}
    assert store.add(make_peak(measured=measured), ROOM).status == "accepted"
    assert store.add(make_peak(measured=near, reporter="team-b"), ROOM).status == "accepted"
    added = store.add(make_peak(measured=far), ROOM)
    assert added.status == "quarantined"
    assert "steady_allocated_bytes is 1,040,000,000, +4.0% from the 1,000,000,000" in added.reason
    # The first one stays the measure: nobody walks away from it in small steps.
    further = {**measured, "steady_allocated_bytes": 1_045_000_000}
    assert store.add(make_peak(measured=further), ROOM).status == "quarantined"
    assert store.add(make_peak(measured=far, versions={"torch": "2.14.0"}), ROOM).status == "accepted"
    assert store.add(make_peak(measured=far, plan="inductor"), ROOM).status == "accepted"


def test_what_is_implausible_is_kept_with_its_reason(store: PeakStore, make_peak: Maker) -> None:
    """A peak judged false is not lost, and does not become the measure for others."""
    assert store.add(make_peak(reason="cannot be", measured={"steady_allocated_bytes": 5}), ROOM).status == (
        "quarantined"
    )
    assert store.add(make_peak(), ROOM).status == "accepted"


def test_a_reporter_keeps_to_its_share(store: PeakStore, make_peak: Maker) -> None:
    """Beyond its rate or share a reporter is refused and told when to come again; others and repeats are not."""
    slow = Quota(peaks_per_minute=2, max_peaks=100, max_graph_bytes=1 << 30, share=1.0)
    kept = [make_peak(), make_peak()]
    for peak in kept:
        store.add(peak, slow)
    with pytest.raises(QuotaError, match="2 are allowed") as refused:
        store.add(make_peak(), slow)
    assert 1 <= refused.value.retry_after_s <= 60
    assert store.add(kept[0], slow).is_repeat
    store.add(make_peak(reporter="team-b"), slow)
    small = Quota(peaks_per_minute=100, max_peaks=4, max_graph_bytes=1 << 30, share=0.5)
    with pytest.raises(QuotaError, match="50% of 4 peaks"):
        store.add(make_peak(), small)
    store.add(make_peak(reporter="team-b"), small)
    with pytest.raises(QuotaError, match="the store is full"):
        store.add(make_peak(reporter="team-c"), small)
    assert len(keys(store)) == 4


def test_writers_in_many_threads_lose_nothing(store: PeakStore, make_peak: Maker) -> None:
    """Eight threads, two reporters and one key that all of them send: each peak is there once, accounts add up."""
    shared = make_peak(key="of-all-of-them")
    failed: list[Exception] = []

    def write(number: int) -> None:
        try:
            for i in range(10):
                store.add(make_peak(key=f"thread-{number}-{i}", reporter=f"team-{number % 2}"), ROOM)
            store.add(shared, ROOM)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test shows it
            failed.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    expected = {f"thread-{number}-{i}" for number in range(8) for i in range(10)} | {"of-all-of-them"}
    assert sorted(keys(store)) == sorted(expected)
    with Session(store.engine) as session:
        assert session.scalar(select(func.sum(Reporter.peaks))) == 81
        assert session.scalar(select(func.count()).select_from(Graph)) == 1


def test_processes_that_start_at_once_share_a_store(store_url: str) -> None:
    """Three processes create the tables and write side by side: none fails, no peak is lost."""
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=write_in_a_process, args=(store_url, number, 15)) for number in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    store = PeakStore.open(store_url)
    assert sorted(keys(store)) == sorted(f"process-{number}-{i}" for number in range(3) for i in range(15))
    store.close()


def test_a_database_that_was_restarted_is_met_by_new_connections(store: PeakStore, make_peak: Maker) -> None:
    """After the server has closed every connection the next peak is taken as if nothing had been."""
    store.add(make_peak(key="before-restart"), ROOM)
    with store.engine.connect() as connection:
        if not is_postgres(connection):
            pytest.skip("SQLite has no server that could be restarted")
    with psycopg.connect(store.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)) as other:
        ended = other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).fetchall()
    assert ended
    assert store.add(make_peak(key="after-restart"), ROOM).status == "accepted"
    assert keys(store) == ["before-restart", "after-restart"]


def test_a_store_that_is_not_there_is_said_to_be_away() -> None:
    """A PostgreSQL that does not listen is unavailable at once, and the message holds no password."""
    with pytest.raises(StoreUnavailableError) as away:
        PeakStore.open("postgresql+psycopg://someone:secret@127.0.0.1:1/peaks", timeout_s=2)
    assert "secret" not in str(away.value)


def test_a_writer_that_holds_the_file_is_waited_for_in_bounds(tmp_path: Path, make_peak: Maker) -> None:
    """While somebody else writes to SQLite a peak waits for its time-out, then is unavailable; reads go on."""
    url = f"sqlite:///{tmp_path / 'peaks.db'}"
    store = PeakStore.open(url, timeout_s=0.3)
    store.add(make_peak(key="before-the-lock"), ROOM)
    with contextlib.closing(sqlite3.connect(tmp_path / "peaks.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailableError, match="locked"):
            store.add(make_peak(), ROOM)
        assert store.graph(GRAPH.graph_id) is not None
        other.execute("ROLLBACK")
    assert store.add(make_peak(), ROOM).status == "accepted"
    store.close()


def test_a_driver_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without psycopg a PostgreSQL store says which extra to install."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=r"pip install 'peakcast\[postgres\]'"):
        PeakStore.open("postgresql+psycopg://someone@127.0.0.1:1/peaks")
