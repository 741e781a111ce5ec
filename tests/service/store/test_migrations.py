from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from reported import GRAPH, ROOM, new_peak
from sqlalchemy import text

from peakcast.service.store.engine import create_engine
from peakcast.service.store.errors import StoreError
from peakcast.service.store.migrate import newest_revision, upgrade
from peakcast.service.store.peak_store import PeakStore
from peakcast.service.store.review import Review
from peakcast.service.store.tables import Base

DATA = Path(__file__).parents[2] / "data"
VERSIONS = Path(upgrade.__code__.co_filename).parent / "migrations" / "versions"


def test_migrations_make_the_tables_that_the_code_reads(store_url: str) -> None:
    """After all migrations alembic finds no difference to the declared tables, columns, types and indexes."""
    engine = create_engine(store_url, timeout_s=5)
    upgrade(engine)
    upgrade(engine)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
        assert context.get_current_revision() == newest_revision()
    engine.dispose()


@pytest.mark.parametrize("revision", sorted(path.name[1:5] for path in VERSIONS.glob("r0*.py")))
def test_a_store_of_each_version_is_upgraded_with_its_peaks(revision: str, tmp_path: Path) -> None:
    """A file that an earlier version wrote opens, has its peaks and graph as they were, and takes new ones."""
    copy = shutil.copy(DATA / f"store_{revision}.db", tmp_path / "peaks.db")
    store = PeakStore.open(f"sqlite:///{copy}")
    with store.engine.connect() as connection:
        assert MigrationContext.configure(connection).get_current_revision() == newest_revision()
    peaks = {peak.key: peak for peak in Review(store).peaks()}
    assert set(peaks) == {"golden-accepted", "golden-quarantined"}
    accepted, quarantined = peaks["golden-accepted"], peaks["golden-quarantined"]
    assert (accepted.status, accepted.reporter, accepted.plan) == ("accepted", "team-a", "eager")
    assert (quarantined.status, quarantined.reporter, quarantined.reason) == (
        "quarantined",
        "team-b",
        "beyond the card",
    )
    assert accepted.measured["steady_allocated_bytes"] == 68_354_560
    assert accepted.received_at_ms == 1_764_000_000_000
    assert store.graph(accepted.graph_id) is not None
    assert not store.add(new_peak(graph_id=GRAPH.graph_id), ROOM).is_repeat
    store.close()


def test_a_store_of_a_newer_version_is_refused(store_url: str) -> None:
    """A revision that this version does not know ends with what to do, and leaves the store alone."""
    store = PeakStore.open(store_url)
    with store.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    store.close()
    with pytest.raises(StoreError, match="made by a newer peakcast"):
        PeakStore.open(store_url)
