"""A graph that Dynamo hands to a backend, as a module that can travel: its Python source, not its pickle.

Pickling an `fx.GraphModule` traces it again, which turns in-place nodes into out-of-place ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn


class Segment(nn.Module):
    """Run a graph's own code. Inputs that are parameters are parameters of this module; the others are arguments.

    Args:
        graph: a Dynamo graph.
        example_inputs: what it is about to be called with.
    """

    def __init__(self, graph: fx.GraphModule, example_inputs: Sequence[Any]) -> None:
        super().__init__()
        code = graph.graph.python_code("self")
        self.source = code.src
        self.names = dict(code.globals)
        self.weights = nn.ParameterList()
        # By position: the index of a parameter, or None for an argument.
        self.places: list[int | None] = []
        self.arguments: tuple[Any, ...] = ()
        for value in example_inputs:
            if isinstance(value, nn.Parameter):
                self.places.append(len(self.weights))
                self.weights.append(value)
            else:
                self.places.append(None)
                self.arguments += (_hint(value),)
        for name, child in graph.named_children():
            setattr(self, name, Segment(child, ()) if isinstance(child, fx.GraphModule) else child)
        for name, value in [*graph.named_parameters(recurse=False), *graph.named_buffers(recurse=False)]:
            setattr(self, name, value)
        self._run: Any = None

    def forward(self, *arguments: Any) -> Any:
        """Call the graph's code."""
        if self._run is None:
            self._run = _function(self.source, self.names)
        if not self.places:  # the body of a higher-order operator
            return self._run(self, *arguments)
        rest = iter(arguments)
        values = [next(rest) if place is None else self.weights[place] for place in self.places]
        return self._run(self, *values)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the compiled code behind: its source travels."""
        return {**vars(self), "_run": None}


def _function(source: str, names: dict[str, Any]) -> Any:
    made: dict[str, Any] = dict(names)
    exec(compile(source, "<segment>", "exec"), made)  # noqa: S102  (what fx itself does with the source it makes)
    return made["forward"]


def _hint(value: Any) -> Any:
    """Return the number that a symbolic size stands for now, without a guard on it."""
    if isinstance(value, torch.SymInt | torch.SymFloat):
        return value.node.hint
    return value
