"""What to measure, and in which order: cases of the zoo under plans."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any, Final, get_args

from peakcast.training.zoo import Case, Entry, entries
from peakcast.training.zoo.case import Parallel
from peakcast.training.zoo.seed import ENTRIES as SEED_ENTRIES

# Configurations of the seed that are measured again: one for each family and precision, compiled quickly.
_RECHECKS: Final = (
    ("resnet18", 64, "bfloat16"),
    ("vgg16", 64, "none"),
    ("squeezenet1_1", 256, "bfloat16"),
    ("vit_b_16", 8, "none"),
    ("deit_small", 128, "bfloat16"),
    ("resmlp_12", 16, "none"),
    ("unet32", 16, "bfloat16"),
    ("mlp4096", 4096, "bfloat16"),
    ("attn_manual", 32, "none"),
    ("gcn", 1, "none"),
    ("gpt2_small", 8, "bfloat16"),
    ("bert_base", 8, "none"),
    ("t5_small", 4, "none"),
    ("opt_125m", 12, "bfloat16"),
    ("whisper_tiny_enc", 4, "none"),
)
_UNKNOWN_BYTES: Final = 9 << 30
# Import, build, four steps and the bisection of an eager record; then what compiling adds for each distinct operator
# and shape (0.15 to 0.3 s in the first measurements, without parallel compilation).
_EAGER_S: Final = 6.0
_COMPILE_S_PER_OPERATOR: Final = 0.25
_DEFAULT_OPERATORS: Final = 250


@dataclass(frozen=True, slots=True)
class Job:
    """One record to make: a case under a plan. `alone` asks for a card that no other job uses at the time."""

    case: Case
    plan: str
    bisect: bool = False
    alone: bool = False

    @property
    def key(self) -> str:
        """Name the record: case and plan."""
        return f"{self.case.key}|{self.plan}"

    @property
    def expected_bytes(self) -> int:
        """Roughly the peak, from a trace on fake tensors: enough to keep the sum on a shared card in bounds."""
        peaks = _expected().get(self.case.model, {}).get("peak_bytes", {})
        return int(peaks.get(str(self.case.batch), _UNKNOWN_BYTES) * 1.15)

    @property
    def expected_seconds(self) -> float:
        """Roughly the time it takes, mostly the compiler's."""
        if self.plan.startswith("eager"):
            return _EAGER_S
        operators = _expected().get(self.case.model, {}).get("operators", _DEFAULT_OPERATORS)
        share = 0.4 if self.case.task == "inference" else 1.0
        tuned = 4.0 if self.plan == "inductor:max-autotune" else 1.0
        return _EAGER_S + float(operators) * _COMPILE_S_PER_OPERATOR * share * tuned

    def on_its_own(self) -> Job:
        """Give the same job, to be run while nothing else uses the card."""
        return replace(self, alone=True)

    def under(self, allocator: str) -> Job:
        """Give the same job in a process of that allocator configuration."""
        return replace(self, case=replace(self.case, allocator=allocator))

    def to_dict(self) -> dict[str, Any]:
        """Give the fields as JSON values."""
        return {"case": self.case.to_dict(), "plan": self.plan, "bisect": self.bisect, "alone": self.alone}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Job:
        """Read what `to_dict` wrote."""
        return cls(Case.from_dict(fields["case"]), fields["plan"], bisect=fields["bisect"], alone=fields["alone"])


@cache
def _expected() -> dict[str, Any]:
    file = resources.files("peakcast.training.zoo").joinpath("expected.json")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def plan_jobs(models: Iterable[str] | None = None, plans: Iterable[str] | None = None) -> list[Job]:
    """List all jobs in the order in which they are worth measuring, each key once.

    First configurations that have been measured before, which show whether the machine agrees. Then every model once,
    eager, and each further plan on those that compile quickly. Then models that compile quickly before those that do
    not: other batches, optimizers and loops eager, then compiled, small and for inference; last what the first
    measurements hold already.

    Raises:
        KeyError: if a model is not in the zoo.
    """
    known = entries()
    chosen = list(known) if models is None else list(models)
    for model in chosen:
        if model not in known:
            raise KeyError(f"no model {model!r} in the zoo: `peakcast collect --list` shows them")
    wanted = None if plans is None else set(plans)
    found: dict[str, Job] = {}
    for job in _in_order([known[model] for model in chosen]):
        if wanted is None or job.plan in wanted:
            found.setdefault(job.key, job)
    return list(found.values())


# Models that are spread over ranks: one an architecture, with blocks to shard and without, quick to compile first.
_SPREAD: Final = (
    "gpt2_small",
    "bert_base",
    "distilbert",
    "t5_small",
    "opt_125m",
    "whisper_tiny_enc",
    "vit_b_16",
    "swin_t",
    "resnet50",
    "convnext_tiny",
    "unet32",
    "mlp4096",
    "dlrm",
    "mixer_b16",
)


def plan_spread_jobs(models: Iterable[str] | None = None, plans: Iterable[str] | None = None) -> list[Job]:
    """List the jobs of two ranks: each model in every way of spreading, eager, then compiled, then in bfloat16.

    Raises:
        KeyError: if a model is not among those that are spread.
    """
    chosen = list(_SPREAD if models is None else models)
    for model in chosen:
        if model not in _SPREAD:
            raise KeyError(f"{model!r} is not spread over ranks; these are: {', '.join(_SPREAD)}")
    wanted = None if plans is None else set(plans)
    found: dict[str, Job] = {}
    for job in _spread_in_order([entries()[model] for model in chosen]):
        if wanted is None or job.plan in wanted:
            found.setdefault(job.key, job)
    return list(found.values())


def _spread_in_order(chosen: list[Entry]) -> Iterator[Job]:
    ways = [way for way in get_args(Parallel) if way != "none"]
    for plan in ("eager", "inductor"):
        for one in chosen:
            yield from (Job(replace(_largest(one), parallel=way), plan) for way in ways)
    for one in chosen:
        for way in ("ddp", "fsdp2"):
            yield Job(replace(_small(one), parallel=way), "eager")
            yield Job(replace(_largest(one), parallel=way, optimizer="sgd"), "eager")
            if one.kind in _BLOCKY:
                yield Job(replace(_largest(one), parallel=way), "hybrid")


def _in_order(chosen: list[Entry]) -> Iterator[Job]:
    names = {one.name for one in chosen}
    rechecks = [Case(model, batch, autocast) for model, batch, autocast in _RECHECKS if model in names]  # type: ignore[arg-type]
    yield from (Job(case, "eager", bisect=True) for case in rechecks)
    yield from (Job(case, "inductor", bisect=True) for case in rechecks)
    seed = {one.name for one in SEED_ENTRIES}
    fresh = sorted((one for one in chosen if one.name not in seed), key=_compile_seconds)
    known = [one for one in chosen if one.name in seed]
    yield from (Job(_largest(one), "eager", bisect=_is_bisected(one)) for one in fresh)
    yield from _each_plan(fresh)
    for place, one in enumerate(fresh):
        yield Job(_small(one), "eager")
        yield Job(_inference(one), "eager")
        yield from _variants(place, one)
    for one in fresh:
        yield Job(_largest(one), "inductor", bisect=_is_bisected(one))
        yield Job(_inference(one), "inductor")
        yield from _both_precisions(one)
    for one in fresh:
        yield Job(_largest(one), "inductor:budget=0.5")
        yield Job(_small(one), "inductor")
    for place, one in enumerate(known):
        yield from _both_precisions(one)
        yield from _variants(place, one)


_BLOCKY: Final = frozenset({"decoder", "encoder", "encoder-decoder", "lm", "vit", "mixer", "transformer", "audio"})


# How many records of each further plan, with some more than what is wanted: models may have no blocks, or fail.
_OF_EACH_PLAN: Final = {
    "eager:checkpoint": 66,
    "hybrid": 66,
    "inductor:reduce-overhead": 66,
    "inductor:budget": 110,
    "inductor:max-autotune": 30,
}
_BUDGETS: Final = (0.5, 0.2, 0.8, 0.35)


def _each_plan(fresh: list[Entry]) -> Iterator[Job]:
    """Give each plan its records, from the models that compile fastest, a third of them bisected."""
    blocky = [one for one in fresh if one.kind in _BLOCKY]
    for plan, count in _OF_EACH_PLAN.items():
        for place, one in enumerate((blocky if plan in ("eager:checkpoint", "hybrid") else fresh)[:count]):
            name = f"{plan}={_BUDGETS[place % len(_BUDGETS)]}" if plan == "inductor:budget" else plan
            yield Job(_largest(one), name, bisect=place % 3 == 0)
    for place, one in enumerate(blocky[:48]):
        yield Job(replace(_largest(one), trained="lora"), "eager" if place % 2 else "inductor")
        yield Job(replace(_small(one), trained="head"), "eager")


def _parity(one: Entry) -> int:
    """Alternate over models: which one is compiled in which precision."""
    return sum(one.name.encode()) % 2


def _largest(one: Entry) -> Case:
    return Case(one.name, one.batches[-1], "bfloat16" if _parity(one) else "none")


def _small(one: Entry) -> Case:
    return Case(one.name, one.batches[0], "none" if _parity(one) else "bfloat16")


def _inference(one: Entry) -> Case:
    return Case(one.name, one.batches[-1], "none" if _parity(one) else "bfloat16", "inference", None)


def _compile_seconds(one: Entry) -> float:
    return Job(_largest(one), "inductor").expected_seconds


def _is_bisected(one: Entry) -> bool:
    """Choose a third of the models: a bisection costs four times as many steps as the rest of a record."""
    return sum(one.name.encode()) % 3 == 0


def _both_precisions(one: Entry) -> Iterator[Job]:
    for batch in dict.fromkeys((one.batches[0], one.batches[-1])):
        yield Job(Case(one.name, batch, "none"), "eager")
        yield Job(Case(one.name, batch, "bfloat16"), "eager")


_OPTIMIZERS: Final = (
    ("adamw", "fused", "standard"),
    ("sgd", None, "standard"),
    ("adamw", "loop", "standard"),
    ("sgd_momentum", None, "standard"),
    ("adafactor", None, "standard"),
    ("adamw", None, "clip"),
    ("adamw", None, "accumulate"),
)


def _variants(place: int, one: Entry) -> Iterator[Job]:
    """Give a model two of the other optimizers and loops, in turn."""
    for shift in (0, 3):
        optimizer, implementation, loop = _OPTIMIZERS[(place + shift) % len(_OPTIMIZERS)]
        base = _small(one) if loop == "accumulate" else _largest(one)
        case = replace(base, optimizer=optimizer, implementation=implementation, loop=loop)  # type: ignore[arg-type]
        yield Job(case, "eager")
