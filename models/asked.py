"""What was asked against what was captured: fills in the run, refuses what the graph rules out, names what differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import ValidationError

from peakcast.featurizer.limits import SpecError
from peakcast.featurizer.run import RunSpec
from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.trace import Trace
from peakcast.featurizer.vocabulary import BACKWARD, FORWARD

# Fields of RunSpec that capture notes in `captured_with`.
CAPTURED = ("task", "optimizer", "implementation", "autocast", "world_size")
# A graph that does not say how many ranks there are was captured without a process group, and may be asked for any:
# a rank that trains beside others takes what it takes alone, and its copies of the gradients (see coverage).
_SAID_OR_ANY = ("world_size",)
_SHOWN_CHARACTERS = 40
# Further than so many times from the sizes captured, torch may take other kernels than the graph has.
TRUSTED_FACTOR = 4
# Counts are text of unknown origin: no graph guesses more.
_MOST_GUESSED = 1_000_000_000


class RunMismatchError(ValueError):
    """The run asked about cannot be the one that this graph is of."""


def run_of(spec: GraphSpec) -> RunSpec:
    """Return the run that the graph was captured from; what it does not say has RunSpec's defaults.

    Raises:
        pydantic.ValidationError: if `captured_with` holds a value that RunSpec does not allow.
    """
    return RunSpec.model_validate(_facts(spec.captured_with, CAPTURED))


def settled_run(spec: GraphSpec, run: RunSpec | None) -> RunSpec:
    """Return the run with every field that was left out as the graph was captured.

    Raises:
        pydantic.ValidationError: if a field was left out that `captured_with` holds no allowed value of.
    """
    if run is None:
        return run_of(spec)
    missing = [key for key in CAPTURED if key not in run.model_fields_set and spec.captured_with.get(key)]
    if not missing:
        return run
    given = run.model_dump(exclude_unset=True)
    return RunSpec.model_validate({**_facts(spec.captured_with, missing), **given})


def _facts(captured: Mapping[str, str], keys: Sequence[str]) -> dict[str, str | int]:
    """Return what capture noted, as fields of RunSpec: there numbers are no text."""
    said = {key: captured[key] for key in keys if captured.get(key)}
    return {key: int(text) if key == "world_size" and text.isdecimal() else text for key, text in said.items()}


def check_trace(spec: GraphSpec, plan: str, run: RunSpec) -> None:
    """Refuse a trace that no step can be, or that is not one of this run.

    Raises:
        SpecError: if the trace has no nodes.
        RunMismatchError: if the trace has no backward and the run trains with an optimizer, or it has one and the run
            is inference. What capture itself noted is believed: a step may take gradients without an optimizer.
    """
    trace = spec.traces[plan]
    if not len(trace):
        problem = "the trace has no nodes: there is no step to predict, capture one that computes something"
        raise SpecError("wrong_length", f"$.traces.{plan}.op", problem)
    has_backward = bool((trace.phase == BACKWARD).any())
    if run.task == "training" and run.optimizer and not has_backward:
        raise RunMismatchError(
            f"the run is training with {ascii(run.optimizer)[:_SHOWN_CHARACTERS]}, but the graph's trace of plan "
            f"{plan} has no backward: it is of inference. Leave its task and optimizer out, or capture training"
        )
    if run.task == "inference" and has_backward and spec.captured_with.get("task") != "inference":
        raise RunMismatchError(
            f"the run is inference, but the graph's trace of plan {plan} has a backward: it is of training. "
            "Leave the run's task out, or capture the model without an optimizer"
        )


def as_captured(spec: GraphSpec, trace: Trace, run: RunSpec) -> RunSpec:
    """Return the run with what contradicts the graph put right: the bytes to predict are those of the graph."""
    if not contradictions(spec, trace, run):
        return run
    captured = spec.captured_with
    silent = [key for key in CAPTURED if "task" in captured and not captured.get(key) and key not in _SAID_OR_ANY]
    facts = {**dict.fromkeys(silent), **_facts(captured, CAPTURED), "accumulation": _passes(trace)}
    try:
        return RunSpec.model_validate({**run.model_dump(), **facts})
    except ValidationError:  # the graph's own facts cannot be
        return run


def contradictions(spec: GraphSpec, trace: Trace, run: RunSpec) -> tuple[str, ...]:
    """Return in words where the run says otherwise than the graph; the bytes are those of the graph."""
    captured = spec.captured_with
    found = []
    for key in CAPTURED:
        # Capture leaves out what there is none of; a graph that does not even say its task says nothing.
        was = captured.get(key) or ("none" if "task" in captured and key not in _SAID_OR_ANY else None)
        asked = getattr(run, key)
        if was is None or was == str(asked or "none") or (key == "implementation" and asked is None):
            continue
        found.append(f"the run says {key} {_shown(asked or 'none')}, the graph was captured with {_shown(was)}")
    times = captured.get("accumulation") or (str(_passes(trace)) if _passes(trace) == 1 else None)
    if times is not None and times != str(run.accumulation) and run.task == "training":
        found.append(f"the run says accumulation {run.accumulation}, the graph was captured with {_shown(times)}")
    return tuple(found)


def beyond_captured(spec: GraphSpec) -> tuple[str, ...]:
    """Return in words which symbols stand far from every size that the graph was captured at."""
    found = []
    for name, symbol in spec.symbols.items():
        texts = spec.captured_with.get(f"captured_{name}", "").split(",")
        sizes = [int(text) for text in texts if text.isascii() and text.isdecimal()]
        if not sizes:
            found.append(f"the graph does not say at which sizes of {name} it was captured")
        elif symbol.hint * TRUSTED_FACTOR < min(sizes) or symbol.hint > max(sizes) * TRUSTED_FACTOR:
            found.append(f"{name} {symbol.hint} is far from {min(sizes)} to {max(sizes)}, where it was captured")
    return tuple(found)


def guessed(captured: Mapping[str, str], *kinds: str) -> int:
    """Return how many values of these kinds capture had to guess; an unreadable count is one."""
    return sum(_count(captured.get(f"guessed_{kind}", "")) for kind in kinds)


def _count(text: str) -> int:
    text = text.strip()
    if text.isascii() and text.isdigit():
        return min(int(text.lstrip("0")[:10] or 0), _MOST_GUESSED)
    return int(bool(text))


def _passes(trace: Trace) -> int:
    """Return how often the step goes forward and back."""
    phase = trace.phase[(trace.phase == FORWARD) | (trace.phase == BACKWARD)]
    back_and_forth = (phase[:-1] == BACKWARD) & (phase[1:] == FORWARD)
    return 1 + int(np.count_nonzero(back_and_forth))


def _shown(value: str) -> str:
    return ascii(value)[1:-1][:_SHOWN_CHARACTERS]
