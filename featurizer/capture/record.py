"""Record a workload that is on fake tensors: one steady step under each plan, as one GraphSpec."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.metadata
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import distributed, fx
from torch._subclasses.fake_tensor import FakeTensorMode

from peakcast.featurizer.capture.autocast import cuda_autocast
from peakcast.featurizer.capture.build_trace import Tables, build_trace
from peakcast.featurizer.capture.dry_run import DryRun
from peakcast.featurizer.capture.fake_step import not_looking_like_tracing, whole_steps_on_fake_tensors
from peakcast.featurizer.capture.kept import kept_tensors_taken_back
from peakcast.featurizer.capture.limits import one_message
from peakcast.featurizer.capture.own_compiles import OwnCompiles
from peakcast.featurizer.capture.plain_linear import bias_added_in_place
from peakcast.featurizer.capture.plans import install
from peakcast.featurizer.capture.process_group import one_bucket_a_block
from peakcast.featurizer.capture.recurrent import rnns_as_cudnn
from peakcast.featurizer.capture.resizing import resizes_noted
from peakcast.featurizer.capture.statics import gradients, hold_statics, other_fake_tensors
from peakcast.featurizer.capture.tape import Recording, StepClock, Tape
from peakcast.featurizer.capture.workload import Workload
from peakcast.featurizer.plans import parse_plan
from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.trace import Trace
from peakcast.featurizer.vocabulary import GRADIENT

Progress = Callable[[str], None]
# A model that is compiled anew in each step has no steady one: the last is taken as it is.
_MOST_RECORDINGS = 3


@dataclass(slots=True)
class Beside:
    """The ordinary traces of what is replayed, of the same compiles: a replayed label needs both, a compile is slow."""

    spec: GraphSpec | None = None


def record(
    workload: Workload,
    plans: Sequence[str],
    *,
    mode: FakeTensorMode,
    device: torch.device,
    traced_on: str,
    progress: Progress | None = None,
    backend: Callable[[], Backend] = DryRun,
    failures: dict[str, str] | None = None,
    beside: Beside | None = None,
) -> GraphSpec:
    """Run two steps under each plan, the second one under the tape.

    Call it inside the fake mode that the workload's tensors belong to. The model is left as it was found. `backend`
    makes what stands for the compiler of a plan; where it fails and `failures` is given, the reason goes there and the
    plan is recorded through the dry run. A backend that runs in two ways gives two traces; `beside` takes the second.

    Raises:
        ValueError: if a plan is unknown or does not fit the model.
    """
    tables, tables_beside = Tables(), Tables()
    others = other_fake_tensors(mode)
    traces: dict[str, Trace] = {}
    traces_beside: dict[str, Trace] = {}
    facts, has_compiled = RunFacts(workload), False
    with rnns_as_cudnn(), whole_steps_on_fake_tensors() as guesses:
        for plan in plans:
            if progress is not None:
                progress(plan)
            parsed = parse_plan(plan)
            # What a step under an eager plan compiles by itself is part of a trace that is not replayed.
            compiler = backend() if parsed.compiled else DryRun()
            # A compiler keeps fake tensors of its own: after one, what a step left behind cannot be told from those.
            has_compiled |= parsed.compiled or facts.own_compiles.any
            leaves = None if has_compiled else mode
            try:
                recordings = _record_step(workload, plan, others, facts, device, compiler, leaves=leaves)
            except Exception as error:
                if failures is None or isinstance(error, ValueError):
                    raise
                # A compiler's message goes on with listings: the first line says what it is.
                failures[parsed.name] = f"{type(error).__name__}: {one_message(error)}".splitlines()[0]
                compiler = DryRun()
                recordings = _record_step(workload, plan, others, facts, device, compiler, leaves=leaves)
            replayed = compiler.ways[0] and parsed.compiled
            traces[parsed.name] = build_trace(recordings[0], tables, stands_for_gpu=device.type, replayed=replayed)
            if beside is not None:
                traces_beside[parsed.name] = build_trace(recordings[-1], tables_beside, stands_for_gpu=device.type)
    ranks = {"world_size": str(distributed.get_world_size())} if _has_collectives(tables.ops.names()) else {}
    captured_with = {"traced_on": traced_on, **versions(), **facts.as_text(), **ranks, **guesses.as_text()}
    if beside is not None:
        beside.spec = _spec(tables_beside, traces_beside, captured_with)
    return _spec(tables, traces, captured_with)


def _spec(tables: Tables, traces: Mapping[str, Trace], captured_with: Mapping[str, str]) -> GraphSpec:
    return GraphSpec(
        ops=tables.ops.names(),
        dtypes=tables.dtypes.names(),
        lines=tables.lines.names(),
        attributes=tables.attributes.names(),
        traces=traces,
        captured_with=captured_with,
    )


def _has_collectives(ops: Sequence[str]) -> bool:
    return any(op.startswith(("c10d.", "_c10d_functional.")) for op in ops)


class Backend(Protocol):
    """A Dynamo backend that knows the tape from the second step on."""

    tape: Tape | None
    ways: Sequence[bool]  # how it can run what it compiled, each to be recorded: as kernels, or as ATen nodes
    as_kernels: bool  # how it runs it now

    def __call__(self, graph: fx.GraphModule, example_inputs: Any, **options: Any) -> Any:
        """Return what runs in place of the graph."""


def _record_step(
    workload: Workload,
    plan: str,
    others: list[Any],
    facts: RunFacts,
    device: torch.device,
    backend: Backend,
    *,
    leaves: FakeTensorMode | None,
) -> list[Recording]:
    """Record the second step, or the first later one in which nothing is compiled, in each way that `backend` has.

    `leaves` is the mode whose tensors a first step may leave behind, such as its loss.
    """
    clock = StepClock()
    autocast = functools.partial(cuda_autocast, device_type=device.type)
    torch._dynamo.reset()
    with contextlib.ExitStack() as stack:
        stack.enter_context(kept_tensors_taken_back(workload.model))
        if workload.model is not None:
            stack.callback(install(workload.model, plan, backend=backend))
            if parse_plan(plan).compiler == "hybrid":
                stack.enter_context(one_bucket_a_block())
        elif parse_plan(plan).name != "eager":
            raise ValueError(f"plan {plan!r} needs Workload(model=...): there is nothing to install it on")
        stack.enter_context(facts.own_compiles.through(backend))
        stack.enter_context(_watched(workload, clock, facts))
        if not parse_plan(plan).compiled:
            stack.enter_context(device)  # not under Dynamo: it would break graphs at the mode
        # Under every plan: between compiled parts the step runs eagerly, and within them Dynamo says by itself.
        stack.enter_context(not_looking_like_tracing())
        with _no_collections():
            workload.run(autocast=autocast)  # the first step: compiles, creates optimizer state
        recordings = []
        compiled_again = False
        for as_kernels in backend.ways:
            backend.as_kernels = as_kernels
            for _ in range(_MOST_RECORDINGS):
                gc.collect()
                tape = backend.tape = Tape(clock)
                hold_statics(tape, workload, others)
                if leaves is not None and not facts.own_compiles.any:
                    tape.hold((left() for left in other_fake_tensors(leaves)), None)
                clock.at_optimizer = functools.partial(_mark_gradients, tape, workload)
                known = _compiled_graphs()
                with bias_added_in_place(), resizes_noted(tape), tape:  # what is compiled was traced before
                    workload.run(autocast=autocast)
                if _compiled_graphs() == known:
                    break  # else it was compiled once more, and the tape holds the tracing too
                compiled_again = parse_plan(plan).compiled
            _mark_gradients(tape, workload)
            recordings.append(replace(tape.stop(), compiled_again=compiled_again))
        return recordings


def _mark_gradients(tape: Tape, workload: Workload) -> None:
    tape.mark(gradients(workload), GRADIENT)


def _compiled_graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """Put garbage collection off: a compiler makes millions of objects, and walking through them takes long."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


@contextlib.contextmanager
def _watched(workload: Workload, clock: StepClock, facts: RunFacts) -> Iterator[None]:
    """Let the clock see where the forward ends and the optimizer runs, from outside what is compiled."""
    model, optimizer = workload.model, workload.optimizer
    handles = []
    if optimizer is not None:
        handles.append(optimizer.register_step_pre_hook(lambda *_: clock.enter_optimizer()))
        handles.append(optimizer.register_step_post_hook(lambda *_: clock.leave_optimizer()))
    call_before = None
    if model is not None:
        call_before = model._compiled_call_impl
        inner = call_before or model._call_impl

        def watched_call(*args: Any, **kwargs: Any) -> Any:
            facts.note_autocast()
            clock.after_forward = False
            try:
                return inner(*args, **kwargs)
            finally:
                clock.after_forward = True

        model._compiled_call_impl = watched_call
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        if model is not None:
            model._compiled_call_impl = call_before
            if call_before is None:
                del model._compiled_call_impl  # the class's own None shows again


class RunFacts:
    """What the run looks like from inside: task, optimizer, its implementation, autocast, compiles."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._autocast: torch.dtype | None = workload.autocast
        self.own_compiles = OwnCompiles()

    def note_autocast(self) -> None:
        """Remember the autocast that the step itself enters."""
        if torch.is_autocast_enabled("cuda"):
            self._autocast = torch.get_autocast_dtype("cuda")

    def as_text(self) -> dict[str, str]:
        """Return the facts as the `captured_with` entries that RunSpec is filled from."""
        optimizer = self._workload.optimizer
        facts = {"task": "training" if optimizer is not None else "inference"}
        if optimizer is not None:
            facts["optimizer"] = type(optimizer).__name__
            facts["implementation"] = _implementation(optimizer)
        if self._autocast is not None:
            facts["autocast"] = str(self._autocast).removeprefix("torch.")
        if self.own_compiles.cuda_graphs:
            facts["own_cuda_graphs"] = "1"
        return facts


def _implementation(optimizer: torch.optim.Optimizer) -> str:
    group = optimizer.param_groups[0]
    if group.get("fused"):
        return "fused"
    # torch's default on CUDA is foreach, where the optimizer has it.
    return "loop" if group.get("foreach", False) is False else "foreach"


def versions() -> dict[str, str]:
    """Return torch's version, and that of each library that builds models and is in use."""
    found = {"torch": str(torch.__version__)}
    for name in ("transformers", "timm", "torchvision", "diffusers"):
        if name in sys.modules:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                found[name] = importlib.metadata.version(name)
    return found
