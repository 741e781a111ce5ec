"""Storages that are given back and taken again in place: `storage.resize_(0)` frees bytes that no operator shows.

FSDP keeps its gathered parameters so, and hand-written offloading does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from peakcast.featurizer.capture.tape import Tape


@contextmanager
def resizes_noted(tape: Tape) -> Iterator[None]:
    """Tell the tape of every storage that is resized inside the block."""
    storages: Any = torch.UntypedStorage  # its `resize_` is inherited: the one set here hides it until deleted
    resize = storages.resize_

    def noted(self: Any, nbytes: int) -> Any:
        before_bytes = int(self.nbytes())
        result = resize(self, nbytes)
        if int(nbytes) != before_bytes:
            tape.resized(self, before_bytes)
        return result

    storages.resize_ = noted
    try:
        yield
    finally:
        del storages.resize_
