"""What Dynamo compiled since last asked: from its own metrics, which it keeps for the last 64 compiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from torch._dynamo.utils import get_compilation_metrics

# Dynamo's words for an error that it raises, catches and goes on without the compiler: there is no flag for it.
_LIMIT_TEXT: Final = "limit exceeded"


@dataclass(frozen=True, slots=True)
class Frame:
    """A function that Dynamo compiles, with what follows a graph break in it being functions of their own."""

    name: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.name} ({self.file}:{self.line})"


@dataclass(frozen=True, slots=True)
class Compile:
    """One compile of a frame's forward, or of its backward, which is compiled when it first runs.

    `reason` is the guard that failed, empty the first time. `gave_up` says that nothing was compiled: the frame has
    reached Dynamo's limit, and calls that no compiled code fits run eager from here on.
    """

    compile_id: str
    frame: Frame
    backward: bool
    reason: str
    duration_ms: float
    graph_nodes: int
    gave_up: bool
    error: str

    @property
    def recompile(self) -> bool:
        """Say whether the frame had been compiled before."""
        return bool(self.reason) and not self.backward and not self.gave_up


class CompileLog:
    """Read Dynamo's metrics on from where the last read ended; what was compiled before this was made is left out."""

    def __init__(self) -> None:
        self._frames: dict[str, Frame] = {}
        self._last: Any = None
        for entry in get_compilation_metrics():
            self._name(entry)
            self._last = entry

    def new(self) -> list[Compile]:
        """Return the compiles since the last call, oldest first."""
        ahead = []
        for entry in reversed(get_compilation_metrics()):
            if entry is self._last:
                break
            ahead.append(entry)
        if ahead:
            self._last = ahead[0]
        # Run-time entries (autotuning, CUDA graph recording) belong to compiles that were told already.
        return [self._compile(entry) for entry in reversed(ahead) if not entry.is_runtime]

    def _name(self, entry: Any) -> Frame:
        # "0/3" is the fourth compile of frame 0; only some entries say which function that is.
        number = (entry.compile_id or "?").partition("/")[0]
        if entry.co_name is not None:
            self._frames[number] = Frame(entry.co_name, entry.co_filename or "?", entry.co_firstlineno or 0)
        return self._frames.get(number, Frame(f"frame {number}", "?", 0))

    def _compile(self, entry: Any) -> Compile:
        reason = entry.recompile_reason or ""
        return Compile(
            compile_id=entry.compile_id or "?",
            frame=self._name(entry),
            backward=entry.is_forward is False,
            reason=_without_id(reason),
            duration_ms=(entry.duration_us or 0) / 1000,
            graph_nodes=entry.graph_node_count or 0,
            gave_up=bool(entry.fail_reason and _LIMIT_TEXT in entry.fail_reason),
            error=entry.fail_type or "",
        )


def _without_id(reason: str) -> str:
    """Return the first failed guard without the compile that it belongs to: `0/3: tensor 'x' size mismatch ...`."""
    first = reason.strip().partition("\n")[0]
    before, colon, after = first.partition(": ")
    return after if colon and "/" in before and before.replace("/", "").replace("_", "").isdigit() else first
