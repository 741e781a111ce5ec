"""Corrections are held back: what is right already stays as it is, what is wrong by a rule is mended."""

from __future__ import annotations

import numpy as np
from samples import make_dataset

from peakcast.featurizer.vocabulary import QUANTITIES
from peakcast.models.blend import UNIT_BYTES, Blend, Shrink


def test_dead_zone_and_strength() -> None:
    """Below the threshold nothing; beyond it, what is left times the strength, limited to -40 % .. +150 %."""
    shrink = Shrink(ratio_share=1.0, threshold=0.01, strength=0.5)
    ratio = np.array([0.005, -0.01, 0.03, -0.03, 9.0, -9.0])
    assert np.allclose(shrink.corrections(ratio, np.zeros(6)), [0.0, 0.0, 0.01, -0.01, 1.5, -0.4])


def test_useless_outputs_are_shut_off() -> None:
    """Where the trees only guess noise, the prior is left alone to the byte."""
    data = make_dataset(noise=0.0)
    priors, random = data.priors, np.random.default_rng(1)
    noise = 0.2 * random.standard_normal(priors.shape)
    blend = Blend.fit(data.examples, priors * 1.001, noise, 100.0 * noise, data.architectures)
    assert np.array_equal(blend.apply(data.examples, noise, 100.0 * noise), priors)


def test_true_corrections_are_taken_whole() -> None:
    """Where the additive output is the truth and the ratio is nonsense, the bytes alone are used."""
    data = make_dataset(noise=0.0)
    priors = data.priors
    missing = np.where(np.arange(priors.shape[0])[:, None] % 2, 2.0 * UNIT_BYTES, 0.0) * np.ones_like(priors)
    additive = np.arcsinh(missing / UNIT_BYTES)
    blend = Blend.fit(data.examples, priors + missing, np.full_like(priors, 0.3), additive, data.architectures)
    assert np.allclose(blend.apply(data.examples, np.full_like(priors, 0.3), additive), priors + missing)


def test_scarce_quantity_borrows() -> None:
    """A quantity measured a handful of times takes the numbers of steady_allocated."""
    data = make_dataset(architectures=10, records=2, noise=0.0)
    measured = data.priors * 1.1
    measured[1:, QUANTITIES.index("required")] = np.nan
    outputs = np.full_like(measured, 0.1)
    blend = Blend.fit(data.examples, measured, outputs, np.zeros_like(measured), data.architectures)
    assert blend.shrinks["eager/required"] == blend.shrinks["eager/steady_allocated"]


def test_survives_json() -> None:
    """Plain values give the same blend back."""
    blend = Blend({"eager/required": Shrink(0.25, 0.002, 0.75)})
    assert Blend.from_dict(blend.to_dict()) == blend
