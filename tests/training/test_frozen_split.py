"""The frozen split is large, of many kinds, free of reserved names, and drawn by a rule in which nobody has a say."""

from __future__ import annotations

from pathlib import Path

import orjson

from peakcast.training import corpus as store
from peakcast.training.frozen_split import PATH, draw, frozen_architectures, split_sha256
from peakcast.training.zoo import entries, is_reserved


def test_at_least_twenty_architectures_of_many_kinds(root: Path) -> None:
    """Twenty and more, of at least twelve kinds, all measured with graphs, all in the zoo, none of them reserved."""
    frozen = orjson.loads(PATH.read_bytes())["architectures"]
    assert len(frozen) >= 20
    assert len(set(frozen.values())) >= 12
    measured = {r["architecture"] for r in store.read(root / "training" / "corpus") if r.get("graph_id")}
    assert set(frozen) <= measured
    assert frozen == {one.architecture: one.kind for one in entries().values() if one.architecture in frozen}
    assert not [name for name in frozen if is_reserved(name)]
    assert frozen_architectures() == frozenset(frozen)


def test_names_never_leave_and_new_kinds_join() -> None:
    """Drawing again keeps the names there are, and takes one of a kind that is new."""
    kinds = {f"A{place}": "cnn" for place in range(20)}
    records = dict.fromkeys([*kinds, "B0", "B1"], 5)
    first = draw(kinds, records, {})
    assert len(first) == 2
    again = draw({**kinds, "B0": "gnn", "B1": "gnn"}, records, first)
    assert first.items() <= again.items()
    assert sorted(again.values()) == ["cnn", "cnn", "gnn"]


def test_the_lot_is_a_hash_and_scarce_ones_come_last() -> None:
    """The order of the names is nothing; of two, the one with enough records is drawn; single kinds share one lot."""
    kinds = {"X": "moe", "Y": "video", "Z": "audio", "W": "audio"}
    records = {"X": 5, "Y": 2, "Z": 1, "W": 3}
    drawn = draw(kinds, records, {})
    assert drawn == draw(dict(reversed(kinds.items())), records, {}) == {"W": "audio", "X": "moe"}


def test_hash_names_the_set() -> None:
    """The hash of a version's lineage changes with any name, not with their order."""
    assert split_sha256(["a", "b"]) == split_sha256(["b", "a"]) != split_sha256(["a"])
