"""Replays in this process, one after the other: the process is prepared once, each case built and recorded afresh."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from peakcast.featurizer.capture.replay.versions import check_versions
from peakcast.featurizer.plans import parse_plan
from peakcast.featurizer.spec import GraphSpec

if TYPE_CHECKING:
    from peakcast.featurizer.capture.record import Beside
    from peakcast.featurizer.capture.replay.kernels import Launches
    from peakcast.featurizer.capture.replay.padding import Padding
    from peakcast.featurizer.capture.workload import Workload


@dataclass(frozen=True, slots=True, eq=False)
class Replayed:
    """What replay found.

    `spec` holds a trace for every plan: replayed where it could be (`Trace.replayed`), the ordinary one where not,
    for a reason in `failed`. `undecided` names the plans with matrix products that inductor pads or not as a benchmark
    on the card says: `spec` has them the likely way, `otherwise` the other way, None where that was not tried. `graph`
    holds the ordinary traces of the same compiles, where they were asked for.
    """

    spec: GraphSpec
    undecided: tuple[str, ...] = ()
    otherwise: GraphSpec | None = None
    failed: Mapping[str, str] = field(default_factory=dict)
    graph: GraphSpec | None = None


class Session:
    """A process made ready for replay, once and before torch is imported.

    Raises:
        ReplayUnavailable: if replay cannot work with what is installed.
        ShimUnavailable: if there is no CUDA device and none can be faked.
    """

    def __init__(self) -> None:
        check_versions()
        from peakcast.featurizer.capture.worker import prepare_host

        self._traced_on = prepare_host(allow_cpu=False)
        from peakcast.featurizer.capture.replay.host import prepare
        from peakcast.featurizer.capture.replay.kernels import Launches
        from peakcast.featurizer.capture.replay.padding import Padding

        self._launches: Launches = Launches()
        self._padding: Padding = Padding()
        prepare(self._launches, self._padding, faked=self._traced_on == "cuda-shim")

    def replay(
        self,
        factory: Callable[[], Workload],
        plans: Sequence[str],
        *,
        both_paddings: bool = True,
        with_graph: bool = False,
        progress: Callable[[str], None] | None = None,
    ) -> Replayed:
        """Replay what `factory` returns under each plan. Plans that are not compiled are captured as ever.

        Raises:
            ValueError: if a plan is unknown or does not fit the model.
            Exception: whatever building the workload, or capturing a plan by the ordinary way too, raised.
        """
        from peakcast.featurizer.capture.record import Beside

        names = list(dict.fromkeys(parse_plan(plan).name for plan in plans))
        failed: dict[str, str] = {}
        beside = Beside() if with_graph else None
        spec, undecided = self._record(factory, names, failed, beside=beside, progress=progress)
        undecided = [name for name in undecided if spec.traces[name].replayed]
        otherwise = None
        if undecided and both_paddings:
            failed_again: dict[str, str] = {}
            found, _ = self._record(factory, undecided, failed_again, reverse=True, progress=progress)
            otherwise = None if failed_again else found
        return Replayed(spec, tuple(undecided), otherwise, failed, None if beside is None else beside.spec)

    def forget(self) -> None:
        """Drop what the compiler keeps of earlier cases."""
        import torch

        from peakcast.featurizer.capture.replay.source_lines import forget

        torch._dynamo.reset()
        forget()

    def _record(
        self,
        factory: Callable[[], Workload],
        plans: Sequence[str],
        failed: dict[str, str],
        *,
        reverse: bool = False,
        beside: Beside | None = None,
        progress: Callable[[str], None] | None,
    ) -> tuple[GraphSpec, list[str]]:
        """Record each plan with the compiler in place; returns those that depend on how products are padded, too."""
        from peakcast.featurizer.capture.replay.backend import Replay
        from peakcast.featurizer.capture.worker import capture_here

        padding = self._padding
        undecided: list[str] = []
        running = ""

        def note() -> None:
            if padding.was_near_tie:
                undecided.append(running)
            padding.was_near_tie = False

        def begin(plan: str) -> None:
            nonlocal running
            note()
            running = plan
            if progress is not None:
                progress(plan)

        padding.reverse, padding.was_near_tie = reverse, False
        try:
            spec = capture_here(
                factory,
                plans,
                self._traced_on,
                progress=begin,
                backend=lambda: Replay(self._launches, both=beside is not None),
                failures=failed,
                beside=beside,
            )
        finally:
            self._launches.tape = None
            padding.reverse = False
        note()
        return spec, undecided
