"""The importance table is computed: shares add up to one, and what decides the answers comes first."""

from __future__ import annotations

import pytest
from samples import make_dataset

from peakcast.training.fit import fit_pair
from peakcast.training.fit_settings import FitSettings, SequenceSettings
from peakcast.training.importance import node_shares, tree_shares


def test_shares() -> None:
    """Half of the samples miss a workspace told by `conv_share` and by a node's fourth number, which is of the op."""
    data = make_dataset()
    quick = FitSettings(inner_folds=2, rounds=60, spread_rounds=5, sequence=SequenceSettings(epochs=12, hidden=8))
    pair = fit_pair(data, quick)
    trees, nodes = tree_shares(pair, data.examples), node_shares(pair, data.examples)
    assert sum(trees.values()) == pytest.approx(1.0)
    assert sum(nodes.values()) == pytest.approx(1.0)
    assert trees["conv_share"] + trees["lstm_ratio"] + trees["lstm_bytes"] > 0.1
    assert trees["conv_share"] > trees["distractor"]
    assert next(iter(nodes)) == "op"
    assert list(trees.values()) == sorted(trees.values(), reverse=True)
