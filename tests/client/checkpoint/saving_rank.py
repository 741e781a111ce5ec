"""One of two ranks that save and restore under DDP and FSDP2. Run by torchrun; prints one JSON line of findings."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from small_nets import NETS, Gpt, Net, train
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from peakcast.client.checkpoint import CheckpointError, RefusedError, load, save, unwrapped
from peakcast.client.checkpoint.names import tensors_of

Bits = dict[str, Tensor]
WRAPS = ("plain", "ddp", "compile(ddp)", "ddp(compile)", "fsdp2")


def wrap(model: nn.Module, how: str) -> nn.Module:
    """Wrap a model for two ranks. torch.compile around a module compiles nothing before its first call."""
    if how == "fsdp2":
        for block in model.blocks:  # type: ignore[union-attr]
            fully_shard(block)
        return fully_shard(model)
    if how == "ddp(compile)":
        model = torch.compile(model)  # type: ignore[assignment]
    if how != "plain":
        model = DistributedDataParallel(model)
    return torch.compile(model) if how == "compile(ddp)" else model  # type: ignore[return-value]


def made(net: Net, how: str, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Give a fresh model in its wrapper, and its optimizer."""
    torch.manual_seed(seed)
    model = wrap(net.model(), how)
    return model, net.optimizer(model)


def whole(tensor: Tensor) -> Tensor:
    """Give all of a tensor, whatever part of it lies here."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> Bits:
    """Give copies of all tensors of model and optimizer, by plain names."""
    named = tensors_of(model)
    found = {name: whole(tensor) for name, tensor in named.items()}
    for name, tensor in named.items():
        for key, value in optimizer.state.get(tensor, {}).items():
            found[f"{name} {key}"] = whole(value)
    return found


def same(left: Bits, right: Bits) -> bool:
    """Tell whether two states are equal to the bit."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def round_trips(path: Path, found: dict[str, Any]) -> None:
    """Train in one wrapper, save, and restore in each: equal now, and in the same wrapper equal three steps on."""
    net = NETS["gpt"]
    for source in ("ddp", "fsdp2"):
        model, optimizer = made(net, source, seed=1)
        # Each rank has data and dropout of its own.
        torch.manual_seed(100 + dist.get_rank())
        train(net, model, optimizer, 2)
        save(path / source, model, optimizer, plan="eager", extra={"step": 2})
        saved = everything(model, optimizer)
        losses = train(net, model, optimizer, 3)
        in_memory = everything(model, optimizer)
        for target in WRAPS:
            other, other_optimizer = made(net, target, seed=9)
            restored = load(path / source, other, other_optimizer)
            found[f"{source} into {target}"] = same(saved, everything(other, other_optimizer)) and restored.rng
            if target == source:
                goes_on = train(net, other, other_optimizer, 3) == losses
                found[f"{source} goes on"] = goes_on and same(in_memory, everything(other, other_optimizer))


def from_one_process(path: Path, found: dict[str, Any]) -> None:
    """Restore what a single process saved: rank 1 had no random state then."""
    for target in WRAPS:
        model, optimizer = made(NETS["gpt"], target, seed=9)
        restored = load(path / "single", model, optimizer)
        sums = sum(float(tensor.double().abs().sum()) for tensor in everything(model, optimizer).values())
        found[f"single into {target}"] = [sums, restored.rng]


def refusals(path: Path, found: dict[str, Any]) -> None:
    """Fail on rank 1 alone: both must stop, and soon."""
    rank = dist.get_rank()
    model = Gpt()
    if rank == 1:
        model.blocks[0].out = nn.Linear(16, 17)
    before = unwrapped(model).embedding.weight.detach().clone()
    try:
        load(path / "ddp", model)
    except RefusedError as error:
        found["refused"] = list(error.mismatched)
    found["untouched"] = torch.equal(before, model.embedding.weight)
    try:
        save(path / "never", model, plan="eager")
    except CheckpointError as error:
        found["other models"] = str(error)
    parallel = DistributedDataParallel(Gpt())
    spread = ZeroRedundancyOptimizer(parallel.parameters(), torch.optim.AdamW, lr=1e-3)
    train(NETS["gpt"], parallel, spread, 1)
    try:
        save(path / "never", parallel, spread, plan="eager")
    except (CheckpointError, ValueError) as error:
        found["spread optimizer"] = str(error)
    try:
        save(path / "never", Gpt(), plan="eager", extra=object() if rank == 1 else None)
    except (CheckpointError, ValueError) as error:
        found["one failed"] = f"{type(error).__name__}: {error}"
    found["nothing written"] = not (path / "never").exists()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    results: dict[str, Any] = {"rank": dist.get_rank()}
    for part in (round_trips, from_one_process, refusals):
        part(Path(sys.argv[1]), results)
    sys.stdout.write(json.dumps(results) + "\n")
    sys.stdout.flush()
    dist.barrier()  # nobody leaves while another still talks to it
    # Past the teardown of the group, whose threads now and then abort a process that is done.
    os._exit(0)
