"""Whether reported peaks can be true: in order with each other, above the physical floor, near the simulated prior."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

MIB: Final = 1 << 20

# Fewer than 2 % of the 928 measured records of 192 architectures lie outside these: the simulation misses autotuning
# scratch and large kernel workspaces. They would wait in quarantine for somebody to release them.
_LEAST_RATIO: Final = {"allocated": 0.8, "reserved": 0.6, "required": 0.6}
_MOST_RATIO: Final = {"allocated": 1.25, "reserved": 1.6, "required": 1.6}
# Workspaces add bytes whatever the model's size; a ratio alone would refuse true peaks of small models.
_SLACK_BYTES: Final = {"allocated": 128 * MIB, "reserved": 256 * MIB, "required": 256 * MIB}
# `required` is bisected to 0.5 %.
_PRECISION: Final = 0.005
# Parameters lie in blocks, the graph may count a buffer that is not on the card.
_FLOOR_TOLERANCE: Final = 0.02


@dataclass(frozen=True, slots=True)
class Physics:
    """What is known of a plan without measuring it. `prior_bytes` maps quantities to simulated bytes."""

    prior_bytes: Mapping[str, int]
    parameters_bytes: int
    optimizer_state_bytes: int
    total_bytes: int  # of the card


def implausible(measured: Mapping[str, int], physics: Physics) -> str | None:
    """Return the first reason why `measured` (names ending in `_bytes`) cannot be, or None.

    What a run that ended out of memory had reached is held to no floor: leave its quantities out.
    """
    return next(_reasons(measured, physics), None)


def _reasons(measured: Mapping[str, int], physics: Physics) -> Iterator[str]:
    yield from _beyond_the_card(measured, physics.total_bytes)
    yield from _out_of_order(measured)
    yield from _below_the_floor(measured, physics)
    yield from _far_from_the_prior(measured, physics.prior_bytes)


def _beyond_the_card(measured: Mapping[str, int], total_bytes: int) -> Iterator[str]:
    for name, value in measured.items():
        if name != "pinned_bytes" and value > total_bytes:
            yield f"{name} is {value:,}, the card has {total_bytes:,}"


def _out_of_order(measured: Mapping[str, int]) -> Iterator[str]:
    for step in ("first", "steady"):
        allocated, reserved = (measured.get(f"{step}_{kind}_bytes") for kind in ("allocated", "reserved"))
        if allocated is not None and reserved is not None and allocated > reserved:
            yield f"{step}_allocated_bytes is {allocated:,}, above the {reserved:,} of {step}_reserved_bytes"
    required, least = measured.get("required_bytes"), measured.get("steady_allocated_bytes")
    if required is not None and least is not None and required < least * (1 - _PRECISION):
        yield f"required_bytes is {required:,}, below the {least:,} of steady_allocated_bytes"
    held = [measured[name] for name in ("first_reserved_bytes", "steady_reserved_bytes") if name in measured]
    # The allocator gives cached blocks back before it fails: what it ever reserved is enough.
    if required is not None and len(held) == 2 and required > max(held):
        yield f"required_bytes is {required:,}, above the {max(held):,} that was reserved"


def _below_the_floor(measured: Mapping[str, int], physics: Physics) -> Iterator[str]:
    for quantity in physics.prior_bytes:
        value = measured.get(f"{quantity}_bytes")
        # A fresh first step has no optimizer state yet.
        state_bytes = 0 if quantity.startswith("first") else physics.optimizer_state_bytes
        floor_bytes = physics.parameters_bytes + state_bytes
        if value is not None and value < floor_bytes * (1 - _FLOOR_TOLERANCE):
            held = "parameters" if not state_bytes else "parameters and optimizer state"
            yield f"{quantity}_bytes is {value:,}, {held} alone take {floor_bytes:,}"


def _far_from_the_prior(measured: Mapping[str, int], prior_bytes: Mapping[str, int]) -> Iterator[str]:
    for quantity, simulated in prior_bytes.items():
        value = measured.get(f"{quantity}_bytes")
        if value is None:
            continue
        kind = quantity.rpartition("_")[2]
        slack_bytes = _SLACK_BYTES[kind]
        least = min(simulated * _LEAST_RATIO[kind], simulated - slack_bytes)
        most = max(simulated * _MOST_RATIO[kind], simulated + slack_bytes)
        if not least <= value <= most:
            yield f"{quantity}_bytes is {value:,}, simulated are {simulated:,} ({value / max(simulated, 1):.2f} times)"
