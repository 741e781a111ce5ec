"""Shipping: a live workload's code and shapes travel, never its contents."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from peakcast import Workload
from peakcast.featurizer.capture.ship import pack, unpack


def test_contents_stay_at_home() -> None:
    """A model of 4 MiB travels in a few KiB, and arrives with its shapes, strides and flags."""
    model = nn.Linear(1024, 1024)
    model.bias.requires_grad_(False)
    packed = pack(Workload(model, torch.randn(8, 1024).t().contiguous().t()))
    assert len(packed) < 20_000
    arrived = unpack(packed)
    assert isinstance(arrived.model, nn.Linear)
    assert arrived.model.weight.shape == (1024, 1024)
    assert isinstance(arrived.model.weight, nn.Parameter)
    assert (arrived.model.weight.requires_grad, arrived.model.bias.requires_grad) == (True, False)
    assert arrived.inputs.stride() == (1, 8)


def test_ties_and_optimizer_survive() -> None:
    """Tied weights are one tensor there, and the optimizer holds the model's own."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    arrived = unpack(pack(Workload(model, torch.ones(1, 4), optimizer=torch.optim.Adam(model.parameters()))))
    assert isinstance(arrived.model, nn.Sequential)
    assert arrived.model[0].weight is arrived.model[1].weight
    assert arrived.optimizer is not None
    assert arrived.optimizer.param_groups[0]["params"][0] is arrived.model[0].weight


def test_the_precision_of_products_travels_along() -> None:
    """Products in float32 are padded where the caller lets them be rounded to TF32, which the other process is told."""
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        packed = pack(Workload(nn.Linear(2, 2), torch.ones(1, 2)))
        torch.set_float32_matmul_precision("highest")
        unpack(packed)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


def test_closures_travel_with_their_tensors() -> None:
    """A lambda over a local tensor arrives, with a tensor of the same shape."""
    target = torch.ones(3, 2)
    arrived = unpack(pack(Workload(nn.Linear(2, 2), torch.ones(3, 2), loss=lambda out: (out - target).sum())))
    assert arrived.loss is not None
    assert arrived.loss(torch.ones(3, 2)).shape == ()
    with pytest.raises(RuntimeError, match="size"):
        arrived.loss(torch.ones(5, 7))


def test_step_counters_keep_their_value() -> None:
    """An optimizer reads its counters: those are real there."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    arrived = unpack(pack(Workload(model, torch.ones(1, 2), optimizer=optimizer)))
    assert arrived.optimizer is not None
    assert [float(state["step"]) for state in arrived.optimizer.state.values()] == [1.0, 1.0]


def test_what_cannot_travel_raises() -> None:
    """A lock is no code and no shape."""
    model = nn.Linear(2, 2)
    model.lock = threading.Lock()  # type: ignore[assignment]
    with pytest.raises(TypeError, match="lock"):
        pack(Workload(model, torch.ones(1, 2)))


SCRIPT = """
import torch
from torch import nn
import peakcast
calls, factor = [], 3.0
def hook(module, args, output):
    calls.append(1)
    return output * factor
model = nn.Sequential(nn.Linear(4, 4))
model[0].register_forward_hook(hook)
spec = peakcast.capture(model, torch.ones(2, 4), plans=["inductor"])
print(spec.captured_with["traced_on"], [spec.ops[op] for op in spec.traces["inductor"].op], calls)
"""


def test_globals_of_a_script_are_found_by_the_compiler(tmp_path: Path) -> None:
    """A hook defined in a script reads and changes the script's globals, as they are in the other process."""
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "aten.mul.Tensor" in done.stdout
    assert done.stdout.strip().endswith(" []")  # the call was not made here
