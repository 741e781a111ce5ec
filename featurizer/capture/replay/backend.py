"""The Dynamo backend of replay: inductor itself, and the tape told of its kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx
from torch._inductor import compile_fx as inductor

from peakcast.featurizer.capture.dry_run import DryRun
from peakcast.featurizer.capture.replay.kernels import Launches
from peakcast.featurizer.capture.replay.source_lines import generated_line
from peakcast.featurizer.capture.tape import Tape

# Which region does not matter: the tape must only know that what runs is generated code.
_GENERATED = 0


class Replay:
    """Compiles with inductor, whose kernels `host.prepare` took away. Takes the tape once the first step is over.

    `both`: what it compiled can run as a dry run of the same graphs, too.
    """

    def __init__(self, launches: Launches, *, both: bool = False) -> None:
        self.ways: Sequence[bool] = (True, False) if both else (True,)
        self.as_kernels = True
        self._launches = launches
        self._dry = DryRun() if both else None
        self._tape: Tape | None = None
        launches.tape = None

    @property
    def tape(self) -> Tape | None:
        """The tape that hears of kernels, or of nodes; None while the first step compiles."""
        return self._tape

    @tape.setter
    def tape(self, tape: Tape | None) -> None:
        self._tape = tape
        self._launches.tape = tape if self.as_kernels else None
        if self._dry is not None:
            self._dry.tape = tape
        if tape is not None and self.as_kernels:
            tape.line_of_region = generated_line

    def __call__(self, graph: fx.GraphModule, example_inputs: Any, **_: Any) -> Any:
        """Lower a Dynamo graph for good."""
        return inductor.compile_fx(graph, example_inputs, inner_compile=self._inner_compile)

    def _inner_compile(self, graph: fx.GraphModule, example_inputs: Any, **options: Any) -> Any:
        # First, and on a copy: lowering changes the graph.
        dry = None if self._dry is None else self._dry.inner_compile(_copy(graph), example_inputs, **options)
        compiled: Any = inductor.compile_fx_inner(graph, example_inputs, **options)

        def run(args: list[Any]) -> Any:
            if dry is not None and not self.as_kernels:
                return dry(args)
            if self.tape is None:
                return compiled(args)
            with self.tape.inside_region(_GENERATED):
                return compiled(args)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


def _copy(graph: fx.GraphModule) -> fx.GraphModule:
    """Copy the nodes and what is noted of them; attributes are shared."""
    nodes = fx.Graph()
    (old,) = graph.graph.find_nodes(op="output")
    output = nodes.output(nodes.graph_copy(graph.graph, {}))
    output.meta = dict(old.meta)
    copied = fx.GraphModule(graph, nodes)
    copied.meta = dict(graph.meta)
    return copied
