"""The Dynamo backend of replay: inductor itself, and the tape told of its kernels."""

from __future__ import annotations

from typing import Any

from torch import fx
from torch._inductor import compile_fx as inductor

from peakcast.featurizer.capture.replay.kernels import Launches
from peakcast.featurizer.capture.tape import Tape


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

    def __call__(self, graph: fx.GraphModule, example_inputs: Any, **_: Any) -> Any:
        """Lower a Dynamo graph for good."""
        return inductor.compile_fx(graph, example_inputs)
