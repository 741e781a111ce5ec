"""The Dynamo backend of replay: inductor itself, and the tape told of its kernels."""

from __future__ import annotations

from typing import Any

from torch import fx
from torch._inductor import compile_fx as inductor

from peakcast.featurizer.capture.replay.kernels import Launches
from peakcast.featurizer.capture.replay.source_lines import generated_line
from peakcast.featurizer.capture.tape import Tape

# Which region does not matter: the tape must only know that what runs is generated code.
_GENERATED = 0


class Replay:
    """Compiles with inductor, whose kernels `host.prepare` took away. Takes the tape once the first step is over."""

    replays = True

    def __init__(self, launches: Launches) -> None:
        self._launches = launches
        launches.tape = None

    @property
    def tape(self) -> Tape | None:
        """The tape that hears of kernels; None while the first step compiles."""
        return self._launches.tape

    @tape.setter
    def tape(self, tape: Tape | None) -> None:
        self._launches.tape = tape
        if tape is not None:
            tape.line_of_region = generated_line

    def __call__(self, graph: fx.GraphModule, example_inputs: Any, **_: Any) -> Any:
        """Lower a Dynamo graph for good."""
        return inductor.compile_fx(graph, example_inputs, inner_compile=self._inner_compile)

    def _inner_compile(self, graph: fx.GraphModule, example_inputs: Any, **options: Any) -> Any:
        compiled: Any = inductor.compile_fx_inner(graph, example_inputs, **options)

        def run(args: list[Any]) -> Any:
            if self.tape is None:
                return compiled(args)
            with self.tape.inside_region(_GENERATED):
                return compiled(args)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run
