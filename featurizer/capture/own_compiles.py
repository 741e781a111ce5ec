"""What a step compiles by itself, whatever the plan: it goes where the plan's own compiles go."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch


class OwnCompiles:
    """Notes what the step asked inductor for with a `torch.compile` of its own."""

    def __init__(self) -> None:
        self.any = False
        self.cuda_graphs = False

    @contextlib.contextmanager
    def through(self, backend: Callable[..., Any]) -> Iterator[None]:
        """Hand to `backend` what the step compiles: there may be no card to compile for, and no kernel runs.

        `torch.compile` was called long ago and compiles at the first call, which asks the object that it made then.
        Its class is private to torch.
        """
        wrapper: Any = torch._TorchCompileInductorWrapper
        original = wrapper.__call__

        def call(asked: Any, graph: Any, example_inputs: Any, **_: Any) -> Any:
            self.any = True
            self.cuda_graphs |= bool(asked.config.get("triton.cudagraphs"))
            return backend(graph, example_inputs)

        wrapper.__call__ = call
        try:
            yield
        finally:
            wrapper.__call__ = original
