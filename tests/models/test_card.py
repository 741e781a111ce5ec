"""A card's name tells its model, a slice from a whole card, and CUDA from other backends."""

from __future__ import annotations

import pytest
from small_corpus import MIB, make_graph

from peakcast.featurizer.prior import simulate
from peakcast.featurizer.run import DeviceSpec, RunSpec
from peakcast.models.card import card_name, is_foreign, is_slice
from peakcast.models.coverage import facts_of
from peakcast.models.predictor import Predictor


@pytest.mark.parametrize(
    ("name", "card", "slice_of_one", "foreign"),
    [
        ("NVIDIA H200", "H200", False, False),
        ("nvidia  h200", "H200", False, False),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB", False, False),
        ("Tesla V100-SXM2-16GB", "V100-SXM2-16GB", False, False),
        ("NVIDIA GeForce RTX 4090", "GEFORCE RTX 4090", False, False),
        ("NVIDIA RTX A6000", "RTX A6000", False, False),
        ("NVIDIA H200 MIG 1g.18gb", "H200 MIG 1G.18GB", True, False),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "A100-SXM4-40GB MIG 3G.20GB", True, False),
        ("GRID A100-10C", "GRID A100-10C", True, False),
        ("AMD Instinct MI300X", "AMD INSTINCT MI300X", False, True),
        ("AMD Radeon RX 7900 XTX", "AMD RADEON RX 7900 XTX", False, True),
        ("MI250X", "MI250X", False, True),
        ("gfx942", "GFX942", False, True),
        ("Intel(R) Data Center GPU Max 1550", "INTEL(R) DATA CENTER GPU MAX 1550", False, True),
        ("Apple M2 Max", "APPLE M2 MAX", False, True),
    ],
)
def test_names(name: str, card: str, slice_of_one: bool, foreign: bool) -> None:
    """Names as torch gives them."""
    assert card_name(name) == card
    assert is_slice(card) is slice_of_one
    assert is_foreign(card) is foreign


@pytest.mark.parametrize(
    ("name", "confidence"),
    [
        ("NVIDIA H200 MIG 1g.18gb", "extrapolating"),
        ("NVIDIA A100-SXM4-80GB", "extrapolating"),
        ("AMD Instinct MI300X", "unknown"),
        ("A card nobody made", "extrapolating"),
    ],
)
def test_the_shipped_pair_says_that_it_was_not_measured_there(name: str, confidence: str) -> None:
    """An unmeasured card is never `in_distribution`, whatever the graph; another backend is unknown."""
    spec = make_graph(64 * MIB, ["aten.relu.default", "aten.add.Tensor"])
    run, device = RunSpec(task="inference"), DeviceSpec(name=name)
    facts = facts_of(spec, "eager", simulate(spec, "eager", run, device), run, device)
    assert Predictor.load().coverage.judge(facts)[0] == confidence
