from __future__ import annotations

import pytest

from peakcast.service.plausibility import Physics, implausible

GIB = 1 << 30
MIB = 1 << 20
PHYSICS = Physics(
    prior_bytes={
        "steady_allocated": 10 * GIB,
        "steady_reserved": 11 * GIB,
        "first_allocated": 9 * GIB,
        "first_reserved": 10 * GIB,
        "required": 10 * GIB,
    },
    parameters_bytes=2 * GIB,
    optimizer_state_bytes=4 * GIB,
    total_bytes=80 * GIB,
)


@pytest.mark.parametrize(
    ("measured", "says"),
    [
        ({"steady_allocated_bytes": 10 * GIB, "steady_reserved_bytes": 11 * GIB}, None),
        ({"steady_allocated_bytes": int(12.49 * GIB)}, None),
        ({"steady_allocated_bytes": int(12.51 * GIB)}, "simulated"),
        ({"steady_allocated_bytes": int(8.01 * GIB)}, None),
        ({"steady_allocated_bytes": int(7.99 * GIB)}, "simulated"),
        ({"steady_reserved_bytes": int(17.5 * GIB)}, None),
        ({"steady_reserved_bytes": int(17.7 * GIB)}, "simulated"),
        ({"steady_allocated_bytes": 81 * GIB}, "the card has"),
        ({"other_bytes": 81 * GIB}, "the card has"),
        ({"pinned_bytes": 81 * GIB}, None),
        ({"steady_allocated_bytes": 11 * GIB, "steady_reserved_bytes": 10 * GIB}, "above the"),
        ({"steady_allocated_bytes": 10 * GIB, "required_bytes": int(9.9 * GIB)}, "below the"),
        ({"steady_allocated_bytes": 10 * GIB, "required_bytes": int(9.96 * GIB)}, None),
        (
            {
                "first_reserved_bytes": 10 * GIB,
                "steady_reserved_bytes": 11 * GIB,
                "required_bytes": 11 * GIB + 1,
            },
            "that was reserved",
        ),
        ({"required_bytes": 11 * GIB}, None),
        ({"required_bytes": 25 * GIB}, "simulated are 10,737,418,240"),
        ({"steady_allocated_bytes": 5 * GIB}, "parameters and optimizer state alone take 6,442,450,944"),
        ({"first_allocated_bytes": 1 * GIB}, "parameters alone take 2,147,483,648"),
        ({}, None),
    ],
    ids=str,
)
def test_what_cannot_be_is_said(measured: dict[str, int], says: str | None) -> None:
    """A peak beyond the card, out of order, below what the model holds, or far from the simulation has its reason."""
    reason = implausible(measured, PHYSICS)
    assert (reason is None) == (says is None), reason
    assert says is None or (reason is not None and says in reason)


def test_a_small_model_may_have_a_large_workspace() -> None:
    """128 MiB on top of a 20 MiB model is believed, 129 is not."""
    small = Physics({"steady_allocated": 20 * MIB}, 1 * MIB, 0, 80 * GIB)
    assert implausible({"steady_allocated_bytes": 148 * MIB}, small) is None
    assert implausible({"steady_allocated_bytes": 149 * MIB}, small) is not None
