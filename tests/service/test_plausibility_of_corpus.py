from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from peakcast.featurizer.vocabulary import QUANTITIES
from peakcast.service.plausibility import Physics, implausible
from peakcast.training.dataset import load_dataset

CORPUS = Path(__file__).parents[2] / "training" / "corpus"


@pytest.mark.slow
def test_few_true_peaks_wait_in_quarantine(tmp_path: Path) -> None:
    """Of the measured records of the corpus fewer than 2 % lie outside the bounds."""
    dataset = load_dataset(CORPUS, cache=tmp_path)
    outside = 0
    for example, measured_Q in zip(dataset.examples, dataset.measured_PQ, strict=True):
        simulated = dict(zip(QUANTITIES, example.prior_bytes.astype(int).tolist(), strict=True))
        physics = Physics(simulated, example.parameters_bytes, example.optimizer_state_bytes, 150_754_820_096)
        measured = {
            f"{name}_bytes": int(value)
            for name, value in zip(QUANTITIES, measured_Q, strict=True)
            if not np.isnan(value)
        }
        outside += implausible(measured, physics) is not None
    print(f"{outside} of {len(dataset)} records would wait in quarantine")
    assert outside < 0.02 * len(dataset)
