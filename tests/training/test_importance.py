"""The importance table is computed: shares add up to one, and what decides the answers comes first."""

from __future__ import annotations

import pytest
from samples import make_dataset

from peakcast.training.fit import fit_pair
from peakcast.training.fit_settings import FitSettings, SequenceSettings
from peakcast.training.importance import node_shares, tree_parts, tree_shares


def test_shares() -> None:
    """Half of the samples miss a workspace told by `conv_share` and by a node's fourth number, which is of the op."""
    data = make_dataset()
    quick = FitSettings(inner_folds=2, rounds=60, spread_rounds=5, sequence=SequenceSettings(epochs=12, hidden=8))
    pair = fit_pair(data, quick)
    trees, nodes = tree_shares(pair, data.examples), node_shares(pair, data.examples)
    assert sum(trees.values()) == pytest.approx(1.0)
    assert sum(nodes.values()) == pytest.approx(1.0)
    assert trees["conv_share"] > 0.1
    assert trees["conv_share"] > trees["distractor"]
    assert sum(tree_parts(trees).values()) == pytest.approx(1.0)
    assert next(iter(nodes)) == "op"
    assert list(trees.values()) == sorted(trees.values(), reverse=True)


def test_parts_by_hand() -> None:
    """Each feature counts for one part: operators, placement, time and plan, and sizes for shape."""
    shares = {
        "conv_nodes_share": 0.1,
        "conv_overshoot_log2_mib": 0.1,
        "traced_on_cpu": 0.05,
        "peak_position": 0.15,
        "plan=inductor": 0.1,
        "log2_parameters_mib": 0.3,
        "resident_share": 0.2,
    }
    found = {name: round(value, 9) for name, value in tree_parts(shares).items()}
    assert found == {"shape": 0.5, "op": 0.2, "placement": 0.05, "time and plan": 0.25}
