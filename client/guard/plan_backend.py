"""Inductor under a plan, as a Dynamo backend: the budget and mode belong to this compile and to no other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from torch import fx
from torch._functorch import config as functorch_config

from peakcast.client.guard import second_look
from peakcast.client.guard.active_plan import Compiling
from peakcast.client.guard.second_look import RegionPeak
from peakcast.featurizer.plans import Plan

Saw = Callable[[RegionPeak], None]


class PlanBackend:
    """Compile as a plan says.

    Backends of equal plans are equal, so that Dynamo uses again what it compiled under this plan before. The budget is
    among what inductor's caches hash, so that no cached partition of another budget is taken.

    Args:
        plan: its budget and mode count; who calls decides what is compiled.
        compiling: entered around each compile, with the Dynamo graph.
        saw: is told what the second look sees, and may end the compile by raising; None: no second look.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        compiling: Compiling | None = None,
        saw: Saw | None = None,
    ) -> None:
        self._plan = plan
        self._compiling = compiling
        self._saw = saw

    def __call__(self, graph: fx.GraphModule, example_inputs: Any, **_: Any) -> Any:
        """Hand a Dynamo graph to inductor."""
        from torch._inductor import list_mode_options
        from torch._inductor.compile_fx import compile_fx

        patches: dict[str, Any] = dict(list_mode_options(self._plan.mode)) if self._plan.mode else {}
        with contextlib.ExitStack() as stack:
            if self._compiling is not None:
                stack.enter_context(self._compiling(graph))
            if self._plan.budget is not None:
                stack.enter_context(functorch_config.patch(activation_memory_budget=self._plan.budget))
            if self._saw is not None and (look := second_look.config_patches(self._saw)):
                patches |= look
                # The backward is otherwise lowered inside the first `backward()`, too late to turn to another plan.
                if hasattr(functorch_config, "force_non_lazy_backward_lowering"):
                    stack.enter_context(functorch_config.patch(force_non_lazy_backward_lowering=True))
            return compile_fx(graph, example_inputs, config_patches=patches or None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlanBackend) and self._plan == other._plan

    def __hash__(self) -> int:
        return hash(self._plan)
