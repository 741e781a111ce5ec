"""Corrections are held back: what is right already stays as it is, what is wrong by a rule is mended."""

from __future__ import annotations

import numpy as np
import pytest
from samples import MIB, make_dataset

from peakcast.featurizer.vocabulary import QUANTITIES
from peakcast.models.blend import Blend, Shrink
from peakcast.models.heads import corrections, head_targets


def test_dead_zone_and_strength() -> None:
    """Below the threshold nothing; beyond it, what is left times the strength, limited to -40 % .. +150 %."""
    shrink = Shrink(shares=(0.5, 0.0, 0.5), threshold=0.01, strength=0.5)
    ratio = np.array([0.005, -0.01, 0.03, -0.03, 9.0, -9.0])
    assert np.allclose(shrink.apply(np.stack([ratio, 7 * ratio, ratio])), [0.0, 0.0, 0.01, -0.01, 1.5, -0.4])


def test_useless_outputs_are_shut_off() -> None:
    """Where the trees only guess noise, the prior is left alone to the byte."""
    data = make_dataset(noise=0.0)
    noise = 0.2 * np.random.default_rng(1).standard_normal((3, *data.priors.shape))
    blend = Blend.fit(data.examples, data.priors * 1.001, noise, data.architectures)
    assert np.array_equal(blend.apply(data.examples, noise), data.priors)


def test_true_corrections_are_taken_whole() -> None:
    """Where one head is the truth and the others are nonsense, that head alone is used."""
    data = make_dataset(noise=0.0)
    truth = np.where(np.arange(len(data))[:, None] % 2, 0.08, 0.0) * np.ones_like(data.priors)
    said = np.stack([np.full_like(truth, 0.3), truth, -truth])
    blend = Blend.fit(data.examples, data.priors * (1.0 + truth), said, data.architectures)
    assert np.allclose(blend.apply(data.examples, said), data.priors * (1.0 + truth))


def test_a_scarce_quantity_is_left_to_the_simulation() -> None:
    """A quantity measured on fewer than half of the records is not corrected, though what its heads say is true."""
    data = make_dataset(architectures=20, records=2, noise=0.0)
    measured = data.priors * 1.1
    measured[15:, QUANTITIES.index("required")] = np.nan
    blend = Blend.fit(data.examples, measured, np.full((3, *measured.shape), 0.1), data.architectures)
    assert blend.shrinks["eager/training/required"] == Shrink()
    assert blend.shrinks["eager/training/steady_allocated"].strength > 0


def test_heads_say_what_was_missing() -> None:
    """Targets fed back as outputs give the missing share of the prior, in each head's own form."""
    prior, measured = np.array([[1000 * MIB]]), np.array([[1096 * MIB]])
    scratch = np.array([192 * MIB])
    targets = head_targets(prior, measured, scratch)
    assert targets["scratch"].item() == pytest.approx(0.5)
    assert np.allclose(corrections(targets, prior, scratch, np.array([[0.096, np.arcsinh(6.0)]])), 0.096)


def test_too_little_scratch_says_nothing() -> None:
    """Scratch of 0.4 % of the prior is no explanation: not learned from, and no correction whatever the output."""
    prior, measured, scratch = np.array([[1000 * MIB]]), np.array([[1096 * MIB]]), np.array([4 * MIB])
    assert np.isnan(head_targets(prior, measured, scratch)["scratch"]).all()
    outputs = {"ratio": np.zeros((1, 1)), "additive": np.zeros((1, 1)), "scratch": np.ones((1, 1))}
    assert corrections(outputs, prior, scratch, np.zeros((1, 2)))[2].item() == 0.0


def test_survives_json() -> None:
    """Plain values give the same blend back."""
    blend = Blend({"eager/training/required": Shrink((0.25, 0.25, 0.5), 0.002, 0.75)})
    assert Blend.from_dict(blend.to_dict()) == blend
