"""Made-up records whose truth is known: priors that miss what a rule says, to test all that follows the featurizer."""

from __future__ import annotations

import numpy as np

from peakcast.models.coverage import Facts
from peakcast.models.example import CHANNELS, CONTEXT_NAMES, PLAN_KINDS, Example
from peakcast.training.dataset import Dataset

MIB = float(1 << 20)


def make_facts(**changed: object) -> Facts:
    """Return facts as a plain training step on the card has them."""
    values: dict[str, object] = {
        "op_share": {"aten.mm.default": 0.6, "aten.add.Tensor": 0.4},
        "dtypes": frozenset({"float32"}),
        "plan_kind": "eager",
        "task": "training",
        "trace_plan": "eager",
        "derived": False,
        "optimizer": "AdamW/foreach",
        "autocast": "none",
        "world_size": 1,
        "accumulates": False,
        "allocator": "default",
        "device": "sm_9",
        "card": "H200",
        "torch": "2.13",
        "traced_on": "cuda",
        "log2_nodes": 10.0,
        "log2_prior": 31.0,
        "written_bytes": 1 << 31,
        "gradients_bytes": 1 << 30,
        "unfused_bytes": 1 << 33,
        **changed,
    }
    return Facts(**values)  # type: ignore[arg-type]


def make_dataset(architectures: int = 24, records: int = 8, *, seed: int = 0, noise: float = 0.001) -> Dataset:
    """Return records of architectures of which half hold convolutions.

    Convolutions hide a workspace of 48 MiB that the prior misses; compiled plans hold 3 % less than the prior says.
    Everything else is the prior times a noise of relative size `noise`. `required` is measured for every fourth record.
    """
    random = np.random.default_rng(seed)
    examples, measured, names = [], [], []
    for architecture in range(architectures):
        conv = float(architecture % 2)
        for record in range(records):
            plan = "inductor" if record % 2 else "eager"
            prior = float(random.uniform(200, 4000)) * MIB
            prior_bytes = prior * np.array([1.0, 1.12, 0.95, 1.06, 1.05])
            truth = prior_bytes * (0.97 if plan == "inductor" else 1.0) + conv * 48 * MIB
            truth = truth * (1.0 + noise * random.standard_normal(5))
            if record % 4:
                truth[4] = np.nan
            examples.append(_example(plan, prior_bytes, conv, random))
            measured.append(truth)
            names.append(f"Architecture{architecture:02d}")
    count = len(names)
    return Dataset(
        keys=[f"record{row:04d}" for row in range(count)],
        architectures=names,
        examples=examples,
        measured_PQ=np.array(measured),
        weights_bytes_P=np.full(count, 100 * MIB),
        step_seconds_P=np.array([0.1 if example.is_eager else 0.05 for example in examples]),
        workloads=[f"workload{row // 2}" for row in range(count)],
        origins=["measured"] * count,
        reporters=[""] * count,
        torch_versions=["2.11"],
        data_sha256="0" * 64,
        created="2026-01-01",
    )


def _example(plan: str, prior_bytes: np.ndarray, conv: float, random: np.random.Generator) -> Example:
    steps = random.standard_normal((int(random.integers(20, 60)), CHANNELS)).astype(np.float32)
    steps[:, 3] += 2.0 * conv
    watermark = np.linspace(0.0, 1.0, len(steps), dtype=np.float32)
    context = np.zeros(len(CONTEXT_NAMES), np.float32)
    context[PLAN_KINDS.index(plan)] = 1.0
    return Example(
        plan=plan,
        task="training",
        prior_bytes=prior_bytes,
        parameters_bytes=int(prior_bytes[0] / 8),
        optimizer_state_bytes=int(prior_bytes[0] / 4),
        scratch_bytes=conv * 64 * MIB,
        summary={"conv_share": conv * 0.5, "distractor": float(random.standard_normal())},
        steps_TC=steps,
        watermark_T=watermark,
        peak_step=len(steps) - 1,
        context_K=context,
        facts=make_facts(plan_kind=plan, trace_plan=plan, log2_prior=float(np.log2(prior_bytes[0]))),
    )
