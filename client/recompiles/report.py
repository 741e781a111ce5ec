"""What recompiling cost a run, for people and as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from peakcast.client.recompiles.advice import advice, varying
from peakcast.client.recompiles.compile_log import Compile, Frame
from peakcast.client.recompiles.slope import Slope

_REASONS_SHOWN = 5
_SAMPLES_SHOWN = 8


@dataclass(slots=True)
class FrameReport:
    """What became of one frame. `eager_since` is the step in which it reached Dynamo's limit."""

    frame: Frame
    compiles: int = 0
    recompiles: int = 0
    compile_ms: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)
    eager_since: int | None = None

    def add(self, compiled: Compile, step: int) -> None:
        """Take in one compile of this frame, which happened in `step`."""
        self.compile_ms += compiled.duration_ms
        if compiled.reason:
            self.reasons[compiled.reason] += 1
        if compiled.gave_up:
            self.eager_since = self.eager_since or step
        elif not compiled.backward:
            self.compiles += 1
            self.recompiles += compiled.recompile

    def advice(self, recompile_limit: int) -> list[str]:
        """Return what to change, the best first."""
        return advice(list(self.reasons), gave_up=self.eager_since is not None, recompile_limit=recompile_limit)

    def to_dict(self) -> dict[str, Any]:
        """Give the fields as JSON values."""
        return {
            "name": self.frame.name,
            "file": self.frame.file,
            "line": self.frame.line,
            "compiles": self.compiles,
            "recompiles": self.recompiles,
            "compile_ms": round(self.compile_ms, 3),
            "reasons": dict(self.reasons),
            "varying": [{"input": v.name, "dimension": v.dim, "sizes": list(v.sizes)} for v in varying(self.reasons)],
            "eager_since_step": self.eager_since,
        }


@dataclass(frozen=True, slots=True)
class AfterCompile:
    """The bytes alive at the end of a step that compiled, collected, and how many recompiles there were by then."""

    step: int
    recompiles: int
    live_bytes: int


@dataclass(frozen=True, slots=True)
class RecompileReport:
    """What a `RecompileWatch` saw.

    `slope` and `bytes_per_recompile` are None where nothing told the bytes alive, or too few samples did.
    """

    steps: int
    frames: list[FrameReport]
    after_compiles: list[AfterCompile]
    bytes_per_recompile: int | None
    slope: Slope | None
    captures: int
    captures_refused: int
    recompile_limit: int

    @property
    def compiles(self) -> int:
        """Return how often a forward was compiled."""
        return sum(each.compiles for each in self.frames)

    @property
    def recompiles(self) -> int:
        """Return how many of the compiles were of a frame compiled before."""
        return sum(each.recompiles for each in self.frames)

    @property
    def compile_ms(self) -> float:
        """Return the time spent compiling, backward and failed compiles included."""
        return sum(each.compile_ms for each in self.frames)

    @property
    def advice(self) -> list[str]:
        """Return what to change, frame by frame, and what leaks."""
        said = [f"{each.frame.name}: {text}" for each in self.frames for text in each.advice(self.recompile_limit)]
        if self.slope is not None and self.slope.leaks:
            kib = self.slope.bytes_per_step / 1024
            said.append(f"{kib:,.0f} KiB more stay alive with each step, after collecting garbage too: a leak")
        if self.bytes_per_recompile:
            said.append(
                f"{self.bytes_per_recompile:,} bytes more stay alive with each recompile: fewer sizes mean fewer "
                "graphs, and torch.compiler.reset() drops those that are not needed any more"
            )
        return said

    def to_dict(self) -> dict[str, Any]:
        """Give the report as JSON values."""
        slope = self.slope
        return {
            "steps": self.steps,
            "compiles": self.compiles,
            "recompiles": self.recompiles,
            "compile_ms": round(self.compile_ms, 3),
            "recompile_limit": self.recompile_limit,
            "frames": [each.to_dict() for each in self.frames],
            "after_compiles": [
                {"step": each.step, "recompiles": each.recompiles, "live_bytes": each.live_bytes}
                for each in self.after_compiles
            ],
            "bytes_per_recompile": self.bytes_per_recompile,
            "bytes_per_step": None if slope is None else round(slope.bytes_per_step, 1),
            "sure_bytes_per_step": None if slope is None else round(slope.sure_bytes_per_step, 1),
            "leaks": None if slope is None else slope.leaks,
            "cuda_graph_captures": self.captures,
            "cuda_graph_captures_refused": self.captures_refused,
            "advice": self.advice,
        }

    def __str__(self) -> str:
        frames = f"{len(self.frames)} function{'s' * (len(self.frames) != 1)}"
        compiles = f"{self.compiles} compiles of {frames}, {self.recompiles} of them recompiles"
        lines = [f"{self.steps} steps; {compiles}; {self.compile_ms / 1000:.1f} s"]
        for each in self.frames:
            compiles = f"{each.compiles} compile{'s' * (each.compiles != 1)}"
            lines.append(f"{each.frame}: {compiles}, {each.compile_ms / 1000:.1f} s")
            lines.extend(f"  {count} x {reason}" for reason, count in each.reasons.most_common(_REASONS_SHOWN))
            if len(each.reasons) > _REASONS_SHOWN:
                lines.append(f"  and {len(each.reasons) - _REASONS_SHOWN} other reasons")
            if each.eager_since is not None:
                limit = f"Dynamo's limit of {self.recompile_limit} graphs"
                lines.append(f"  eager since step {each.eager_since} for every size not compiled by then: {limit}")
        if self.after_compiles:
            told = ", ".join(f"{each.live_bytes:,}" for each in self.after_compiles[-_SAMPLES_SHOWN:])
            lines.append(f"bytes alive after steps that compiled: {told}")
        if self.slope is not None:
            lines.append(f"bytes alive grow by {self.slope.bytes_per_step:,.0f} a step")
        if self.captures or self.captures_refused:
            lines.append(f"{self.captures} CUDA graphs captured, {self.captures_refused} runs without for want of room")
        lines.extend(f"advice: {text}" for text in self.advice)
        return "\n".join(lines)
