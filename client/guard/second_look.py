"""The second look: inductor's own buffer plan tells a region's peak before any of its kernels is compiled.

It lives on private parts of inductor, so it is taken only where they are as they were in the versions tested (2.13);
elsewhere `config_patches` is empty and nothing is looked at.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

_log = logging.getLogger(__name__)
_UUID: Final = "peakcast second look 1"


@dataclass(frozen=True, slots=True)
class RegionPeak:
    """The peak of one compiled graph's own buffers, and of what it may free, before rounding."""

    peak_bytes: int
    is_backward: bool
    kernels: int


class DoesNotFitError(RuntimeError):
    """Inductor's buffer plan needs more than there is. Raised through the compiler, to end the compile."""


class DecidedOtherwiseError(DoesNotFitError):
    """The answer that the compile did not wait for decides for another plan, or for none."""


def config_patches(saw: Callable[[RegionPeak], None]) -> dict[str, Any]:
    """Return inductor options under which `saw` is told each graph's peak, after fusion and before code is generated.

    What `saw` raises ends the compile.
    """
    try:
        from torch._inductor.custom_graph_pass import CustomSchedulerPass
        from torch._inductor.memory import estimate_peak_memory_allocfree, prepare_planning_info
        from torch._inductor.virtualized import V
        from torch.utils._ordered_set import OrderedSet
    except ImportError:
        return {}

    class Look(CustomSchedulerPass):
        """A pass that changes nothing, so the caches may keep what was compiled under it."""

        def __call__(self, nodes: list[Any]) -> list[Any]:
            try:
                seen = peak(nodes)
            except Exception as error:  # noqa: BLE001  (private parts that moved must not cost the compile)
                _log.debug("no second look: %r", error)
                return nodes
            saw(seen)
            return nodes

        def uuid(self) -> str:
            return _UUID

        def __reduce__(self) -> tuple[type[str], tuple[str]]:
            # The caches hash the options that they are pickled from.
            return str, (_UUID,)

    def peak(nodes: list[Any]) -> RegionPeak:
        scheduler, graph = nodes[0].scheduler, V.graph
        inputs, outputs = OrderedSet(graph.graph_inputs.keys()), OrderedSet(graph.get_output_names())
        names = scheduler.name_to_buf, scheduler.name_to_fused_node
        _, freeable = prepare_planning_info(nodes, *names, inputs, outputs)
        peak_bytes, *_ = estimate_peak_memory_allocfree(nodes, freeable, outputs)
        return RegionPeak(int(peak_bytes), bool(graph.is_backward), len(nodes))

    return {"_post_fusion_custom_pass": Look()}


def ended_by_second_look(error: BaseException | None) -> DoesNotFitError | None:
    """Return the second look's error that an error is, or was caused by: compilers wrap it."""
    seen: set[int] = set()
    ahead = [error]
    while ahead:
        each = ahead.pop()
        if each is None or id(each) in seen:
            continue
        if isinstance(each, DoesNotFitError):
            return each
        seen.add(id(each))
        ahead += [each.__cause__, each.__context__, getattr(each, "inner_exception", None)]
    return None
