"""Two real processes under DDP and FSDP2 save and restore, into each other's wrappers, one process, and back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from small_nets import NETS, train

from peakcast.client.checkpoint import load, read_manifest, save, verify
from peakcast.client.checkpoint.names import tensors_of

WRAPS = ("plain", "ddp", "compile(ddp)", "ddp(compile)", "fsdp2")


def _sum(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """Add up all numbers of model and optimizer, tied ones under each name, as the ranks do."""
    named = tensors_of(model)
    tensors = [*named.values(), *(value for tensor in named.values() for value in optimizer.state[tensor].values())]
    return sum(float(tensor.detach().double().abs().sum()) for tensor in tensors)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of all checkpoints of this file."""
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def single(folder: Path) -> float:
    """Save a GPT trained in this process, and give the sum of what was saved."""
    model, optimizer = NETS["gpt"].make()
    train(NETS["gpt"], model, optimizer, 2)
    save(folder / "single", model, optimizer, plan="eager")
    return _sum(model, optimizer)


@pytest.fixture(scope="module")
def ranks(folder: Path, single: float) -> list[dict[str, Any]]:
    """Give the findings of two ranks."""
    logs = folder / "logs"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = Path(__file__).with_name("saving_rank.py")
    ran = subprocess.run(
        [*launch, "--log-dir", str(logs), "--redirects", "1", str(script), str(folder)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    lines = [json.loads(path.read_text().splitlines()[-1]) for path in logs.rglob("stdout.log")]
    return sorted(lines, key=lambda line: line["rank"])


@pytest.mark.parametrize("target", WRAPS)
@pytest.mark.parametrize("source", ["ddp", "fsdp2"])
def test_what_one_wrapper_saved_another_restores(ranks: list[dict[str, Any]], source: str, target: str) -> None:
    """Weights and optimizer state are equal to the bit, whole or sharded, tied weights included."""
    assert [found[f"{source} into {target}"] for found in ranks] == [True, True]


@pytest.mark.parametrize("source", ["ddp", "fsdp2"])
def test_a_restored_job_goes_on_as_the_one_in_memory(ranks: list[dict[str, Any]], source: str) -> None:
    """Three steps on, with each rank's own data and dropout, losses and all state are equal to the bit."""
    assert [found[f"{source} goes on"] for found in ranks] == [True, True]


@pytest.mark.parametrize("target", WRAPS)
def test_a_job_takes_over_from_one_process(ranks: list[dict[str, Any]], single: float, target: str) -> None:
    """A checkpoint of one process spreads over two, of which only the first finds a random state."""
    sums, restored_rng = zip(*(found[f"single into {target}"] for found in ranks), strict=True)
    assert sums == pytest.approx((single, single), rel=1e-12)
    assert restored_rng == (True, False)


@pytest.mark.parametrize(("source", "sharded"), [("ddp", False), ("fsdp2", True)])
def test_one_process_takes_over_from_a_job(
    ranks: list[dict[str, Any]], folder: Path, source: str, sharded: bool
) -> None:
    """Without a process group, a sharded checkpoint is put together; nothing in it is a pickle."""
    manifest = read_manifest(folder / source)
    assert (manifest.sharded, manifest.world_size, verify(folder / source)) == (sharded, 2, [])
    assert {Path(name).suffix for name in manifest.files} == {".safetensors"}
    assert len(manifest.files) == (4 if sharded else 3)
    model, optimizer = NETS["gpt"].make(seed=5)
    restored = load(folder / source, model, optimizer)
    assert restored.extra == {"step": 2}
    assert len(optimizer.state) == len(list(model.parameters()))
    assert {float(state["step"]) for state in optimizer.state.values()} == {2.0}
    save(folder / f"{source} again", model, optimizer, plan="eager")
    signature = read_manifest(folder / f"{source} again").graph_signature_sha256
    assert signature == manifest.graph_signature_sha256


def test_a_rank_that_refuses_stops_all(ranks: list[dict[str, Any]]) -> None:
    """A shape that differs on rank 1 alone is named on both, and neither has loaded anything."""
    keys = ["blocks.0.out.weight", "blocks.0.out.bias"]
    assert [[fault.split(":")[0] for fault in found["refused"]] for found in ranks] == [keys, keys]
    assert [found["untouched"] for found in ranks] == [True, True]


def test_a_rank_that_cannot_save_stops_all(ranks: list[dict[str, Any]]) -> None:
    """Different models, an optimizer spread over ranks, a fault on one rank: no rank waits, nothing is written."""
    assert ["different tensors" in found["other models"] for found in ranks] == [True, True]
    assert ["ZeroRedundancyOptimizer" in found["spread optimizer"] for found in ranks] == [True, True]
    assert ranks[0]["one failed"].startswith("CheckpointError: rank 0 stops because of rank 1: ValueError: extra must")
    assert ranks[1]["one failed"].startswith("ValueError: extra must be a JSON value")
    assert [found["nothing written"] for found in ranks] == [True, True]
