"""The dry run: inductor up to its graphs, then those graphs on fake tensors instead of kernels."""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch._functorch import config as functorch_config
from torch._inductor import compile_fx as inductor
from torch._inductor.fx_passes.post_grad import view_to_reshape
from torch._inductor.graph import GraphLowering
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

from peakcast.featurizer.capture.tape import MACHINERY, Tape

_STACK_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


class DryRun:
    """A Dynamo backend that compiles nothing: it runs the partitioned forward and backward ATen graphs.

    Inductor's own front end makes the graphs (its decompositions, joint passes and min-cut partitioner, with the
    budget that is configured), so they are those it would lower. Each call runs under the tape as one region.
    """

    def __init__(self) -> None:
        self.ways: Sequence[bool] = (False,)
        self.as_kernels = False
        self.tape: Tape | None = None  # set once the first, compiling step is over
        self._regions = 0
        self._open: defaultdict[Any, list[int]] = defaultdict(list)  # graph -> its calls that await their backward
        self._channels_last: dict[Any, bool] = {}  # graph -> inductor's layout for its convolutions

    def __call__(self, graph: fx.GraphModule, example_inputs: Any, **_: Any) -> Any:
        """Hand a Dynamo graph to inductor's front end, with `_runner` in place of its back end."""
        with functorch_config.patch(enable_autograd_cache=False):
            return inductor.compile_fx(graph, example_inputs, inner_compile=self.inner_compile)

    def inner_compile(self, graph: fx.GraphModule, example_inputs: Any, **kwargs: Any) -> Any:
        """Return what runs a partitioned graph, which is changed as inductor would before it lowers it."""
        key = kwargs.get("graph_id")
        is_inference, is_backward = bool(kwargs.get("is_inference", False)), bool(kwargs.get("is_backward", False))
        if not is_backward:  # the backward follows the layout of what the forward saved
            self._channels_last[key] = _prefers_channels_last(graph, is_inference=is_inference)
        _post_grad(graph, is_inference=is_inference)
        # What the passes left without a reader, a view of a buffer that was written over say, is never lowered. An
        # interpreter would keep it, and what it is a view of, to the end.
        graph.graph.eliminate_dead_code(_has_effects)
        graph.recompile()
        return self._runner(graph, key, is_backward=is_backward)

    def _runner(self, graph: fx.GraphModule, key: Any, *, is_backward: bool) -> Callable[[list[Any]], Any]:
        def run(args: list[Any]) -> Any:
            with _unwatched():
                if self.tape is None:
                    return fx.Interpreter(graph).boxed_run(args)
                self.tape.region_is_channels_last = self._channels_last.get(key, False)
                with self.tape.inside_region(self._region(key, is_backward=is_backward)):
                    return _LineInterpreter(graph, self.tape).boxed_run(args)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def _region(self, key: Any, *, is_backward: bool) -> int:
        """Give each call a number: like blocks share a graph, but what one call returns the next reads from memory."""
        calls = self._open[key]
        if is_backward and calls:
            return calls.pop()  # the last call that ran forward goes backward first
        calls.append(self._regions)
        self._regions += 1
        return self._regions - 1


@contextlib.contextmanager
def _unwatched() -> Iterator[None]:
    """Hide the nodes from modes that are not ours, such as selective checkpointing's: kernels are no operators."""
    modes = _get_current_dispatch_mode_stack()
    ours = [mode for mode in modes if isinstance(mode, FakeTensorMode | Tape)]
    if len(ours) == len(modes):
        yield
        return
    with _disable_current_modes(), contextlib.ExitStack() as stack:
        for mode in ours:
            stack.enter_context(mode)
        yield


class _LineInterpreter(fx.Interpreter):
    """Tells the tape which source line each node came from."""

    def __init__(self, graph: fx.GraphModule, tape: Tape) -> None:
        super().__init__(graph)
        self._tape = tape

    def run_node(self, n: fx.Node) -> Any:
        frames = [frame for frame in _STACK_FRAME.findall(n.stack_trace or "") if not frame[0].startswith(MACHINERY)]
        self._tape.region_line = f"{frames[-1][0]}:{frames[-1][1]}" if frames else ""
        return super().run_node(n)


def _has_effects(node: fx.Node) -> bool:
    """Tell whether a node counts without a reader: a user's Triton kernel, which writes what it is given, for one."""
    return node.is_impure() or isinstance(node.target, torch._ops.HigherOrderOperator)


def _prefers_channels_last(graph: fx.GraphModule, *, is_inference: bool) -> bool:
    """Ask inductor how it would lay out the graph's convolutions."""
    try:
        return bool(GraphLowering.decide_layout_opt(graph, is_inference=is_inference))
    except Exception:  # noqa: BLE001  (a private heuristic that fails must not cost the capture)
        return False


def _post_grad(graph: fx.GraphModule, *, is_inference: bool) -> None:
    """Run inductor's post-grad passes, which fuse adds into matrix products and drop no-ops. They may be left out."""
    with contextlib.suppress(Exception):  # private too
        view_to_reshape(graph)  # what was padded and sliced, or laid out anew, cannot be viewed
    original = graph.graph
    backup = fx.Graph()
    backup.output(backup.graph_copy(original, {}))
    try:
        with torch._inductor.virtualized.V.set_fake_mode(torch._guards.detect_fake_mode()):
            inductor._recursive_post_grad_passes(graph, is_inference=is_inference)
    except Exception:  # noqa: BLE001  (a private pass that fails must not cost the capture)
        graph.graph = backup
        graph.recompile()
