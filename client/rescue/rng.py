"""The state of every random generator that a training step draws from, taken and put back bit for bit."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable
from typing import Any

import torch


class RngState:
    """Take the states of torch's generators (CPU and every CUDA device), Python's `random`, and numpy's global one.

    numpy's only where it is imported, CUDA's only where CUDA has started. Further `torch.Generator`s are given;
    generators of numpy (`numpy.random.default_rng()`) belong to their owner and are not known here.
    """

    __slots__ = ("_cpu", "_cuda", "_generators", "_numpy", "_python")

    def __init__(self, generators: Iterable[torch.Generator] = ()) -> None:
        self._cpu = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        self._python = random.getstate()
        numpy: Any = sys.modules.get("numpy")
        self._numpy = numpy.random.get_state() if numpy is not None else None
        self._generators = [(generator, generator.get_state()) for generator in generators]

    def put_back(self) -> None:
        """Set every generator to the state taken."""
        torch.set_rng_state(self._cpu)
        for index, state in enumerate(self._cuda):
            torch.cuda.set_rng_state(state, index)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
        for generator, state in self._generators:
            generator.set_state(state)
