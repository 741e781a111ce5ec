"""What users reported about `torch.compile` and checkpoints in one step (pytorch#161889): the order of the two counts.

What is saved was worked out from the shapes, and is what torch 2.13's own kernels hold on a CPU.
"""

from __future__ import annotations

import numpy as np
import pytest
from captured import Captured, Simulated
from handmade import MIB

from peakcast.featurizer.prior import Prior
from peakcast.featurizer.vocabulary import BACKWARD
from peakcast.models.predictor import Predictor

BLOCK = 16 * MIB  # what a block of products reads and returns
STATIC = BLOCK + 4 * MIB + 2 * 32 * MIB  # the leaf, the weight, the workspaces of both threads


def saved_bytes(prior: Prior, reported: Captured, name: str) -> int:
    """Return what lives between forward and backward beside what always does."""
    first_backward = int(np.flatnonzero(reported.trace(name).phase == BACKWARD)[0])
    return int(prior.watermark_bytes[first_backward]) - STATIC


@pytest.mark.parametrize(
    ("name", "tensors"),
    [
        ("products_compiled", 4),  # in each block the first product and the result
        ("products_checkpoint_of_compiled", 1),  # what the second block reads; the first one's input is the leaf
        ("products_compiled_checkpoint", 1),
        ("products_selective", 5),  # two products in each block, and what the second block reads
        ("products_selective_of_compiled", 1),  # the policy sees no products: they are inside of one compiled call
        ("products_compiled_selective", 4),  # two products in each block, from which everything else follows
    ],
)
def test_each_order_saves_its_own_tensors(simulated: Simulated, reported: Captured, name: str, tensors: int) -> None:
    """Between forward and backward live as many tensors of 16 MiB as the order of the wrappers says."""
    assert saved_bytes(simulated(name), reported, name) == pytest.approx(tensors * BLOCK, abs=16 * 1024)


@pytest.mark.parametrize(
    ("name", "tensors"),
    [
        # The leaf, both results, the gradient of the sum made whole, and that of the second block's input.
        ("chains_compiled", 5),
        # The second result is gone, and made once more before its gradient comes.
        ("chains_checkpoint_of_compiled", 5),
        # What is computed again stays inside of the backward's kernel.
        ("chains_compiled_checkpoint", 4),
    ],
)
def test_recomputing_inside_of_the_compiled_backward_takes_less(simulated: Simulated, name: str, tensors: int) -> None:
    """The peak is in the second block's backward, in tensors of 8 MiB."""
    assert simulated(name).steady_allocated_bytes == pytest.approx(tensors * 8 * MIB, abs=16 * 1024)


def test_what_a_step_compiles_by_itself_is_said_to_be_unmeasured(reported: Captured) -> None:
    """The answer extrapolates and says why; without a `torch.compile` in the step there is no such doubt."""
    compiled = Predictor.load().predict(reported.spec("chains_compiled")).plan("eager")
    assert compiled.confidence == "extrapolating"
    assert any("compiles parts by itself" in doubt for doubt in compiled.doubts)
    plain = Predictor.load().predict(reported.spec("products_selective")).plan("eager")
    assert not any("by itself" in doubt for doubt in plain.doubts)


def test_cuda_graphs_of_the_steps_own_are_unknown(reported: Captured) -> None:
    """Their pools are not simulated under a plan that records none."""
    answer = Predictor.load().predict(reported.spec("compiled_with_cuda_graphs")).plan("eager")
    assert answer.confidence == "unknown"
    assert "records CUDA graphs by itself" in answer.doubts[0]
