"""What a card's name tells: its model, whether it is a slice of one, and whether it is PyTorch's CUDA at all."""

from __future__ import annotations

import re
from typing import Final

# As `torch.cuda.get_device_name` names them under ROCm, and what other backends are called.
_NOT_CUDA: Final = re.compile(
    r"\b(AMD|ATI|RADEON|INSTINCT|MI\d{2,3}[A-Z]?|GFX\d+|INTEL|ARC|GAUDI\d*|APPLE|TPU|ASCEND|MTT)\b"
)
_SLICE: Final = re.compile(r"\bMIG\b|\b\d+G\.\d+GB\b|\bGRID\b|\bVGPU\b|-\d+[CQ]$")


def card_name(device_name: str) -> str:
    """Return the card's model in one spelling: `NVIDIA H200` and `h200` are `H200`."""
    return " ".join(device_name.upper().replace("NVIDIA", " ").replace("TESLA", " ").split())


def is_slice(card: str) -> bool:
    """Tell whether the name is of a part of a card: a MIG instance or a virtual GPU."""
    return _SLICE.search(card) is not None


def is_foreign(card: str) -> bool:
    """Tell whether the name is of a card that CUDA does not run on: other allocator limits, libraries and kernels."""
    return _NOT_CUDA.search(card) is not None
