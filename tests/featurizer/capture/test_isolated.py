"""The capturing process: its graph comes back, or one clear error whatever it died of."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from captured import WORKLOADS, Captured
from torch import nn

import peakcast
from peakcast import Workload
from peakcast.featurizer.capture import CaptureError, capture_workload

MISBEHAVING = Path(__file__).with_name("misbehaving.py")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("crashes", r"the capturing process died \(signal 9\): .*about to crash"),
        ("leaves", "SystemExit: 3"),
        ("mistaken", "KeyError: 'learning_rate'"),
        ("missing", "has no function 'missing'; it has: a_model, crashes, hangs, leaves, mistaken, nothing"),
    ],
)
def test_each_end_is_told(name: str, message: str) -> None:
    """A crash by signal, an exit, an error of the user's code, and a name that is not there."""
    with pytest.raises(CaptureError, match=message) as caught:
        capture_workload(f"{MISBEHAVING}:{name}", plans=["eager"])
    if name == "mistaken":  # the traceback of the other process is kept, with the user's line
        assert "misbehaving.py" in caught.value.details
        assert 'raise KeyError("learning_rate")' in caught.value.details


def test_a_time_limit_ends_it() -> None:
    """A workload that hangs is killed when its time is up."""
    with pytest.raises(CaptureError, match="did not end within 2 s"):
        capture_workload(f"{MISBEHAVING}:hangs", plans=["eager"], timeout_sec=2.0)


def test_file_and_live_model_give_one_graph(captured: Captured) -> None:
    """The workload named by its file, shipped live from here, and captured among others: the same graph."""
    told: list[str] = []
    plans = ["eager", "inductor"]
    from_file = capture_workload(f"{WORKLOADS}:tied", plans=plans, progress=told.append)
    assert told == ["capturing eager", "capturing inductor"]
    assert from_file.captured_with["traced_on"] in ("cuda", "cuda-shim")
    assert from_file.graph_id == captured.spec("tied").graph_id

    table = nn.Embedding(100, 64)
    head = nn.Linear(64, 100, bias=False)
    head.weight = table.weight
    model = nn.Sequential(table, head)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    ids = torch.randint(100, (4,))
    live = peakcast.capture(Workload(model, ids, loss=torch.sum, optimizer=optimizer), plans=plans)
    assert live.graph_id == from_file.graph_id
    # No step was run: the weights are as they were.
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not optimizer.state


def test_arguments_that_do_not_fit() -> None:
    """A Workload brings its own inputs, and a plan must have a known name."""
    workload = Workload(nn.Linear(2, 2), torch.ones(1, 2))
    with pytest.raises(ValueError, match="takes inputs, loss, optimizer and autocast from the workload"):
        peakcast.capture(workload, torch.ones(1, 2))
    with pytest.raises((ValueError, CaptureError), match="fastest"):
        peakcast.capture(workload, plans=["fastest"])
