"""Optimizers under capture: what each keeps between steps, and what it takes while it runs."""

from __future__ import annotations

import pytest
from captured import Captured, most_alive_bytes, sizes

from peakcast.featurizer.vocabulary import GPU, OPTIMIZER, OPTIMIZER_STATE

WEIGHT_BYTES, BIAS_BYTES = 64 * 32 * 4, 32 * 4
LAYER_BYTES = 256 * 256 * 4


@pytest.mark.parametrize(
    ("name", "states"),
    [
        ("sgd", []),
        ("momentum", [BIAS_BYTES, WEIGHT_BYTES]),
        ("adam", [BIAS_BYTES, BIAS_BYTES, WEIGHT_BYTES, WEIGHT_BYTES]),
        ("custom_optimizer", [BIAS_BYTES, WEIGHT_BYTES]),
        # Of the [32, 64] weight one value a row and one a column; of the bias all.
        ("adafactor", sorted([32 * 4, 64 * 4, BIAS_BYTES])),
    ],
)
def test_state_bytes(captured: Captured, name: str, states: list[int]) -> None:
    """State has the bytes that the optimizer's definition gives."""
    assert sizes(captured.trace(name), OPTIMIZER_STATE) == states


def test_step_counters_are_on_the_cpu(captured: Captured) -> None:
    """Adam counts its steps in two tensors of one float, which a GPU does not see; the fused one has them there."""
    storages = captured.trace("adam").storages
    counters = (storages.role == OPTIMIZER_STATE) & (storages.bytes == 4)
    assert counters.sum() == 2
    assert not (storages.device[counters] == GPU).any()
    assert sizes(captured.trace("adamw_fused"), OPTIMIZER_STATE) == [4] * 5 + [LAYER_BYTES] * 10


@pytest.mark.parametrize(
    ("name", "temporaries"),
    [
        ("adamw_foreach", 5 * LAYER_BYTES),  # the square roots of all second moments at once
        ("adamw_loop", 3 * LAYER_BYTES),  # one square root, the same divided, and that of the parameter before
        ("adamw_fused", 0),
    ],
)
def test_temporaries_of_the_three_implementations(captured: Captured, name: str, temporaries: int) -> None:
    """Foreach takes all parameters' bytes again, the loop three times those of one, the fused kernel none."""
    assert most_alive_bytes(captured.trace(name), OPTIMIZER) == pytest.approx(temporaries, abs=64)


@pytest.mark.parametrize(
    ("name", "optimizer", "implementation"),
    [
        ("sgd", "SGD", "foreach"),
        ("adam", "Adam", "foreach"),
        ("adamw_foreach", "AdamW", "foreach"),
        ("adamw_loop", "AdamW", "loop"),
        ("adamw_fused", "AdamW", "fused"),
        ("custom_optimizer", "SlowWeights", "loop"),
    ],
)
def test_facts_of_the_run(captured: Captured, name: str, optimizer: str, implementation: str) -> None:
    """The graph names the optimizer's class and the implementation that runs on a GPU."""
    facts = captured.spec(name).captured_with
    assert (facts["task"], facts["optimizer"], facts["implementation"]) == ("training", optimizer, implementation)


@pytest.mark.parametrize("name", ["adam", "adamw_loop", "adafactor"])
def test_reading_its_own_numbers_is_no_guess(captured: Captured, name: str) -> None:
    """An optimizer that reads its counter does not depend on the data."""
    assert not [fact for fact in captured.spec(name).captured_with if fact.startswith("guessed_")]
