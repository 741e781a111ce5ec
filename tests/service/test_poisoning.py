"""The attack: a stranger with a token of its own reports false peaks in many ways, beside true ones of another."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson
import pytest

from peakcast.client.graph_file import read_graph
from peakcast.featurizer.prior import simulate
from peakcast.featurizer.run import DeviceSpec, RunSpec
from peakcast.featurizer.spec import GraphSpec
from peakcast.models.asked import run_of
from peakcast.service.errors import ServiceError
from peakcast.service.settings import Settings
from peakcast.service.state import State
from peakcast.service.store.export import export
from peakcast.service.store.peak_store import PeakStore
from peakcast.service.store.review import Review
from peakcast.training import corpus

DATA = Path(__file__).parents[1] / "data"
DEVICE = {"name": "NVIDIA H200", "total_bytes": 150_754_820_096}
QUANTITIES = ("steady_allocated", "steady_reserved", "first_allocated", "first_reserved")


@lru_cache
def simulated_bytes(spec: GraphSpec, plan: str) -> dict[str, int]:
    """Return the simulated peaks of a plan by quantity."""
    prior = simulate(spec, plan, run_of(spec), DeviceSpec.model_validate(DEVICE))
    return {f"{name}_bytes": getattr(prior, f"{name}_bytes") for name in QUANTITIES}


def body(spec: GraphSpec, plan: str, factor: float, key: str, **more: Any) -> bytes:
    """Return a report of the simulated peaks times a factor."""
    measured = {name: int(value * factor) for name, value in simulated_bytes(spec, plan).items()}
    fields = {"key": key, "graph": spec.to_dict(), "device": DEVICE, "plan": plan, "measured": measured}
    return orjson.dumps({**fields, "cache": "cold", **more})


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    """Give a service's state, without its sockets and its model."""
    made = State(Settings(state_dir=tmp_path, peaks_per_minute=60))
    yield made
    made.link.close()


def exported(tmp_path: Path, name: str) -> list[corpus.Record]:
    """Export the store and read it back."""
    store = PeakStore.open(f"sqlite:///{tmp_path / 'peakcast.db'}")
    export(store, tmp_path / name)
    store.close()
    return corpus.read(tmp_path / name)


def test_a_stranger_does_not_get_false_peaks_into_the_corpus(state: State, tmp_path: Path) -> None:
    """Halved, tripled, shifted, cold-for-warm, flooding and replayed peaks: the true records are all there, unmoved."""
    specs = [read_graph(DATA / "mlp.json.xz"), read_graph(DATA / "gpt2_small.json.xz")]
    honest = [(spec, plan) for spec in specs for plan in ("eager", "inductor")]
    for number, (spec, plan) in enumerate(honest):
        state.peaks.take(body(spec, plan, 1.0, f"honest-{number}"), "team-a")
    before = exported(tmp_path, "before")
    assert len(before) == 4
    numbers = itertools.count()
    refused = 0
    # Far from what can be, then near enough to be believed if nobody had measured it, then many of the same.
    factors = [0.5, 3.0, 0.0, 100.0, 0.9, 1.1, 0.96, 1.04] + [1.0] * 20
    for factor, (spec, plan) in itertools.product(factors, honest):
        try:
            state.peaks.take(body(spec, plan, factor, f"attack-{next(numbers)}"), "stranger")
        except ServiceError as error:
            refused += error.code == "quota_exceeded"
    assert refused == len(honest) * len(factors) - 60
    after = exported(tmp_path, "after")
    counted = ("reporters", "reports")

    def labels(records: list[corpus.Record]) -> list[dict[str, Any]]:
        return [{name: value for name, value in record.items() if name not in counted} for record in records]

    assert labels(after) == labels(before)
    assert {reporter for record in after for reporter in record["reporters"]} == {"team-a", "stranger"}


def test_a_configuration_of_its_own_keeps_a_stranger_within_physics(state: State, tmp_path: Path) -> None:
    """Where nobody else has measured, a false peak passes only inside the bounds, and one command takes it out."""
    spec = read_graph(DATA / "mlp.json.xz")
    run = RunSpec(allocator="expandable_segments:True").model_dump(exclude_unset=True)
    for number, factor in enumerate((0.7, 0.79, 1.2, 1.3)):
        more = {"run": run, "versions": {"torch": f"9.{number}"}}
        state.peaks.take(body(spec, "eager", factor, f"attack-{number}", **more), "stranger")
    true_bytes = simulated_bytes(spec, "eager")["steady_allocated_bytes"]
    (record,) = exported(tmp_path, "one")
    assert record["key"] == "reported|attack-2"
    assert record["measured"]["steady_allocated_bytes"] == int(true_bytes * 1.2)
    store = PeakStore.open(f"sqlite:///{tmp_path / 'peakcast.db'}")
    assert Review(store).reject(reporter="stranger") == 4
    store.close()
    assert exported(tmp_path, "none") == []
