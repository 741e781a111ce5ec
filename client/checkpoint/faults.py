"""What can be wrong with a checkpoint, as types a caller can catch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# A list of keys stays readable; the attributes of the error hold all of them.
_SHOWN_KEYS = 20


class CheckpointError(RuntimeError):
    """A checkpoint is not there, damaged, or cannot be written."""


class RefusedError(CheckpointError):
    """A checkpoint does not belong to this model or optimizer, and nothing of it was loaded.

    Args:
        path: the checkpoint.
        faults: the keys that do not go together.
    """

    def __init__(self, path: str, faults: Faults) -> None:
        super().__init__(path, faults)
        self.path = path
        self.missing, self.unexpected, self.mismatched = faults.missing, faults.unexpected, faults.mismatched

    def __str__(self) -> str:
        kinds = {
            "missing from the checkpoint": self.missing,
            "unexpected in the checkpoint": self.unexpected,
            "mismatched": self.mismatched,
        }
        parts = [f"{len(keys)} {kind}: {_listed(keys)}" for kind, keys in kinds.items() if keys]
        return f"{self.path} does not belong to this model, and nothing was loaded; {'; '.join(parts)}"


@dataclass(frozen=True, slots=True)
class Faults:
    """The keys that a checkpoint lacks, has too many, or has otherwise than the model."""

    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    mismatched: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.mismatched)

    def __add__(self, other: Faults) -> Faults:
        """Join two lists of faults, each key once."""
        return Faults(
            _joined(self.missing, other.missing),
            _joined(self.unexpected, other.unexpected),
            _joined(self.mismatched, other.mismatched),
        )


def _joined(first: Sequence[str], second: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))


def _listed(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - _SHOWN_KEYS} more" if len(keys) > _SHOWN_KEYS else ""
    return ", ".join(keys[:_SHOWN_KEYS]) + more
