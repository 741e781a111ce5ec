"""A workload traced without a GPU gives the prior of the same workload traced with one.

The graphs traced with a GPU are those of the corpus (`traced_on: cuda`, torch 2.11 on an H200).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from peakcast.featurizer.prior import simulate
from peakcast.featurizer.run import DeviceSpec, RunSpec
from peakcast.featurizer.spec import GraphSpec
from peakcast.training import corpus as store

CORPUS = Path(__file__).parents[3] / "training" / "corpus"
HALF = "bfloat16"
# Model, batch, autocast.
EAGER = [
    ("mlp4096", 4096, HALF),
    ("deit_small", 128, HALF),
    ("beit_base_patch16_224", 48, HALF),  # its attention's bias learns
    ("opt_125m", 2, HALF),
    ("gpt2_small", 8, HALF),
    ("resnet18", 8, "none"),
    ("bert_base", 8, "none"),
    ("t5_small", 4, "none"),
    ("attn_manual", 32, "none"),
]
SAMPLE = [case for case in EAGER if case[0] in {"mlp4096", "gpt2_small", "resnet18", "attn_manual"}]
# ResNet-18 is not among them: torch 2.11's partitioner saves 24 MiB (6 %) more than 2.13's. BEiT is there for eager
# attention alone.
COMPILED = [case for case in EAGER if case[0] not in {"resnet18", "beit_base_patch16_224"}]


def fields(model: str, batch: int, autocast: str) -> dict[str, Any]:
    """Return the fields of a training case with AdamW."""
    return {"model": model, "batch": batch, "autocast": autocast, "task": "training", "optimizer": "adamw"}


def traced_with_gpu(case: dict[str, Any], plan: str) -> GraphSpec:
    """Return the corpus' graph of a case."""
    for record in store.read(CORPUS):
        if record["plan"] == plan and case.items() <= record["case"].items() and record["graph_id"]:
            spec = store.read_graph(CORPUS, record["graph_id"])
            if spec.captured_with["traced_on"] == "cuda":
                return spec
    raise LookupError(f"the corpus has no graph of {case} under {plan} that was traced with a GPU")


def traced_without(cases: list[dict[str, Any]], plan: str, folder: Path) -> list[GraphSpec]:
    """Capture cases in one process that fakes the card."""
    request = folder / "cases.json"
    request.write_text(json.dumps([[case, [plan]] for case in cases]))
    script = Path(__file__).with_name("capture_zoo.py")
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_FX_GRAPH_CACHE": "0"}
    command = [sys.executable, "-W", "ignore", str(script), str(folder), str(request)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1500, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [GraphSpec.from_json((folder / f"{position}.json").read_bytes()) for position in range(len(cases))]


def compare(cases: list[tuple[str, int, str]], plan: str, folder: Path) -> dict[str, float]:
    """Return, by model, the ratio of the prior without a GPU to the one with it."""
    wanted = [fields(*case) for case in cases]
    ratios = {}
    for case, without in zip(wanted, traced_without(wanted, plan, folder), strict=True):
        run = RunSpec(
            optimizer="AdamW", implementation="foreach", autocast=None if case["autocast"] == "none" else HALF
        )
        with_gpu = traced_with_gpu(case, plan)
        assert without.captured_with["traced_on"] == "cuda-shim"
        priors = [simulate(spec, plan, run, DeviceSpec()).steady_allocated_bytes for spec in (without, with_gpu)]
        ratios[case["model"]] = priors[0] / priors[1]
    return ratios


@pytest.mark.parametrize(
    "cases", [pytest.param(SAMPLE, id="sample"), pytest.param(EAGER, id="all", marks=pytest.mark.slow)]
)
def test_eager_priors_agree(cases: list[tuple[str, int, str]], tmp_path: Path) -> None:
    """Nine eager steps, five under autocast, within 2 % of what they are traced on the card; always four of them."""
    ratios = compare(cases, "eager", tmp_path)
    assert len(ratios) == len(cases)
    assert {model: ratio for model, ratio in ratios.items() if abs(ratio - 1) > 0.02} == {}


@pytest.mark.slow
def test_compiled_priors_agree(tmp_path: Path) -> None:
    """Seven compiled steps, four under autocast, within 2 % of what they are traced on the card."""
    ratios = compare(COMPILED, "inductor", tmp_path)
    assert len(ratios) == 7
    assert {model: ratio for model, ratio in ratios.items() if abs(ratio - 1) > 0.02} == {}
