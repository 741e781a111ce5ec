"""Copies of a model's buffers, to be put back before what changed them is done again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import nn

# Buffers change in every forward (batch norm's statistics), some without telling their version counter: they are
# copied on their device. Larger ones are caches, for which a copy each step would be too dear.
_LARGEST_BYTES: Final = 64 << 20


class BufferCopies:
    """Copy the buffers of one model, each into the copy of the time before."""

    def __init__(self, model: nn.Module | None) -> None:
        modules = model.modules() if model is not None else ()
        # Found once: walking the modules takes longer than all the rest.
        self._buffers = [(module, key) for module in modules for key, _ in module.named_buffers(recurse=False)]
        self._copies: dict[int, torch.Tensor] = {}

    def covers_all(self) -> bool:
        """Tell whether no buffer is too large to be copied."""
        sizes = (getattr(module, key, None) for module, key in self._buffers)
        return all(buffer is None or buffer.nbytes <= _LARGEST_BYTES for buffer in sizes)

    def record(self) -> list[BufferCopy]:
        """Copy each buffer as it is now."""
        found = []
        for number, (module, key) in enumerate(self._buffers):
            buffer = getattr(module, key, None)
            if buffer is None or buffer.nbytes > _LARGEST_BYTES:
                continue
            copy = self._copies.get(number)
            if copy is None or (copy.shape, copy.dtype, copy.device) != (buffer.shape, buffer.dtype, buffer.device):
                copy = self._copies[number] = torch.empty_like(buffer)
            found.append(BufferCopy(module, key, buffer, copy))
        if found:
            with torch.no_grad():
                torch._foreach_copy_([each.copy for each in found], [each.buffer for each in found])
        return found


@dataclass(frozen=True, slots=True)
class BufferCopy:
    """A buffer, and what it held."""

    module: nn.Module
    key: str
    buffer: torch.Tensor
    copy: torch.Tensor

    def put_back(self) -> None:
        """Give the module its buffer again, with what it held."""
        with torch.no_grad():
            self.buffer.copy_(self.copy)
        setattr(self.module, self.key, self.buffer)
