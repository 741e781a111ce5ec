"""Plan names: how a step is run (`eager`, `inductor:budget=0.5`), parsed in one place."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

Compiler = Literal["eager", "inductor", "hybrid"]
Mode = Literal["reduce-overhead", "max-autotune", "checkpoint"]

ALLOWED_PLANS: Final = (
    "eager",
    "eager:checkpoint",
    "inductor",
    "inductor:budget=<0..1>",
    "inductor:reduce-overhead",
    "inductor:max-autotune",
    "hybrid",
)

_FIXED: Final[dict[str, tuple[Compiler, Mode | None]]] = {
    "eager": ("eager", None),
    "eager:checkpoint": ("eager", "checkpoint"),
    "inductor": ("inductor", None),
    "inductor:reduce-overhead": ("inductor", "reduce-overhead"),
    "inductor:max-autotune": ("inductor", "max-autotune"),
    "hybrid": ("hybrid", None),
}
# At most six decimals: budgets closer than that are the same partition.
_BUDGET: Final = re.compile(r"inductor:budget=([01](?:\.[0-9]{1,6})?)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to run the step. `budget` is torch's `activation_memory_budget`, 0 to 1; None: left at its default."""

    compiler: Compiler
    mode: Mode | None = None
    budget: float | None = None

    @property
    def name(self) -> str:
        """Return the canonical name, which `parse_plan` reads back."""
        if self.budget is not None:
            # Shortest decimal without exponent: 0.5, 0.00001, 1.
            return f"{self.compiler}:budget={f'{self.budget:.6f}'.rstrip('0').rstrip('.')}"
        return self.compiler if self.mode is None else f"{self.compiler}:{self.mode}"

    @property
    def compiled(self) -> bool:
        """Say whether any part of the step goes through the compiler."""
        return self.compiler != "eager"

    @property
    def cuda_graphs(self) -> bool:
        """Say whether the mode switches on CUDA graphs, whose pool is private."""
        return self.mode in {"reduce-overhead", "max-autotune"}


def parse_plan(name: str) -> Plan:
    """Return the plan a name stands for; ValueError lists the names allowed."""
    if name in _FIXED:
        return Plan(*_FIXED[name])
    matched = _BUDGET.fullmatch(name)
    if matched is not None and float(matched[1]) <= 1.0:
        return Plan("inductor", budget=float(matched[1]))
    message = f"unknown plan {name[:60]!a}; allowed: {', '.join(ALLOWED_PLANS)}"
    raise ValueError(message)
