"""Saved under one plan, restored under another: five steps on are those of the state in memory, bit for bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from small_nets import NETS, Net, train
from torch import Tensor, nn

from peakcast.client.checkpoint import load, read_manifest, save
from peakcast.featurizer.capture.plans import install

PLANS = ("inductor", "hybrid", "eager")
PAIRS = list(itertools.product(PLANS, PLANS))
# Compiling is what takes time: one small network both ways, and eager those with tied weights and batch norm.
QUICK = [
    ("mlp", "inductor", "hybrid"),
    ("mlp", "hybrid", "inductor"),
    ("gpt", "eager", "eager"),
    ("conv", "eager", "eager"),
]
# Dynamo looks at `.grad` of a block's input, which an error instead of a warning would end.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
Bits = dict[str, Tensor]


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> Bits:
    """Give a copy of all state of model and optimizer."""
    found = {f"model {name}": tensor.detach().clone() for name, tensor in model.state_dict().items()}
    for at, state in enumerate(optimizer.state.values()):
        found |= {f"optimizer {at} {key}": value.clone() for key, value in state.items() if isinstance(value, Tensor)}
    return found


def run(
    net: Net, model: nn.Module, optimizer: torch.optim.Optimizer, plan: str, steps: int
) -> tuple[list[float], Bits]:
    """Train under a plan, compiled afresh."""
    torch._dynamo.reset()
    undo: Callable[[], None] = install(model, plan)
    try:
        losses = train(net, model, optimizer, steps)
    finally:
        undo()
    return losses, everything(model, optimizer)


def check(net: Net, source: str, target: str, path: Path) -> None:
    """Train under the source plan, save, and go on under the target plan in memory and from the checkpoint."""
    model, optimizer = net.make()
    torch._dynamo.reset()
    undo = install(model, source)
    train(net, model, optimizer, 3)
    save(path, model, optimizer, plan=source)
    undo()
    saved = everything(model, optimizer)
    compiled = "compiled" in read_manifest(path).eager_fallback_map.values()
    assert compiled == (source != "eager")

    in_memory_losses, in_memory = run(net, model, optimizer, target, 5)

    # Other initial weights, another random state: everything must come from the checkpoint.
    other, other_optimizer = net.make(seed=17)
    restored = load(path, other, other_optimizer)
    assert restored.plan == source
    found = everything(other, other_optimizer)
    assert {name for name in saved if not torch.equal(saved[name], found[name])} == set()
    losses, on_disk = run(net, other, other_optimizer, target, 5)

    assert losses == in_memory_losses
    assert on_disk.keys() == in_memory.keys()
    assert {name for name in in_memory if not torch.equal(in_memory[name], on_disk[name])} == set()
    # Equal because nothing moved would prove nothing.
    moved = {name for name in saved if not torch.equal(saved[name], in_memory[name])}
    assert moved >= {f"model {name}" for name, _ in model.named_parameters()}


@pytest.mark.parametrize(("name", "source", "target"), QUICK)
def test_a_restored_run_is_the_run_in_memory(name: str, source: str, target: str, tmp_path: Path) -> None:
    """Losses, weights, buffers and optimizer state after five steps are equal to the last bit."""
    check(NETS[name], source, target, tmp_path / "checkpoint")


@pytest.mark.slow
@pytest.mark.parametrize(("source", "target"), PAIRS)
@pytest.mark.parametrize("name", sorted(NETS))
def test_every_pair_of_plans_of_every_network(name: str, source: str, target: str, tmp_path: Path) -> None:
    """The same for 3 x 3 plans and four networks."""
    check(NETS[name], source, target, tmp_path / "checkpoint")
