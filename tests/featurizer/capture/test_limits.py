"""What cannot be captured is refused in one sentence, before anything is traced or changed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import peakcast
from peakcast import Workload
from peakcast.featurizer.capture import CaptureError, capture_workload
from peakcast.featurizer.capture.limits import one_message, refuse_what_cannot_be_captured

MISBEHAVING = Path(__file__).with_name("misbehaving.py")


class Held(nn.Module):
    """Holds a sparse matrix in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.eye(4).to_sparse_csr())


@pytest.mark.parametrize(
    ("model", "plan", "message"),
    [
        (lambda: nn.Sequential(Held()), "eager", r"^sparse_csr tensors cannot be captured \(Held at '0'\): .* COO$"),
        (
            lambda: nn.Embedding(9, 4, sparse=True),
            "inductor",
            r"^sparse gradients .* \(Embedding\): use sparse=False or plan e",
        ),
        (
            lambda: nn.Sequential(torch.ao.nn.quantized.dynamic.Linear(4, 4)),
            "eager",
            r"^quantized modules cannot be captured \(Linear at '0'\)",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_layers_and_tensors(model: Callable[[], nn.Module], plan: str, message: str) -> None:
    """The module is named, and what to give instead."""
    with pytest.raises(CaptureError, match=message):
        peakcast.capture(model(), torch.ones(2, 4), plans=[plan])


def test_sparse_gradients_are_fine_in_eager() -> None:
    """Nothing is said."""
    refuse_what_cannot_be_captured(Workload(nn.Embedding(9, 4, sparse=True), torch.ones(2).long()), ["eager"])


def test_a_dump_of_the_dispatcher_is_cut() -> None:
    """One sentence with the operator's name is left."""
    assert "\n" not in one_message(NotImplementedError(DUMP))
    assert one_message(NotImplementedError(DUMP)).endswith("'aten::empty' with arguments from the 'CUDA' backend.")


DUMP = """backend='<function x at 0x7f>' raised:
Could not run 'aten::empty' with arguments from the 'CUDA' backend. This could be because the operator is missing.

CPU: registered at RegisterCPU.cpp:1 [kernel]"""


@pytest.mark.parametrize(("name", "got"), [("a_model", "Linear"), ("nothing", r"None \(is a return missing\?\)")])
def test_a_function_that_returns_something_else(name: str, got: str) -> None:
    """Its type is told."""
    with pytest.raises(CaptureError, match=rf"^WORKLOAD\(\) must return peakcast\.Workload, got {got}$"):
        capture_workload(f"{MISBEHAVING}:{name}", plans=["eager"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"plans": "eager"}, r"a sequence of names, not one name: plans=\['eager'\]"),
        ({"plans": []}, "at least one name"),
        ({"plans": [1]}, "at least one name"),
        ({"plans": None}, "at least one name"),
        ({"plans": ["fastest"]}, "unknown plan 'fastest'; allowed: eager"),
        ({"autocast": "bfloat16"}, r"torch\.float16, torch\.bfloat16 or None, not 'bfloat16'"),
        ({"autocast": torch.float32}, r"not torch\.float32"),
    ],
)
def test_arguments_are_checked_first(options: dict[str, Any], message: str) -> None:
    """No process is started for a call that makes no sense."""
    with pytest.raises(ValueError, match=message):
        peakcast.capture(nn.Linear(2, 2), torch.ones(1, 2), timeout_sec=0.0, **options)


def test_a_step_that_cannot_be_sent_is_refused() -> None:
    """It is not called: it would change what it holds."""
    lock, calls = threading.Lock(), []

    def step() -> None:
        with lock:
            calls.append(1)

    with pytest.raises(CaptureError, match=r"cannot be sent to another process .*lock.*/file\.py:function"):
        peakcast.capture(Workload(step=step, model=nn.Linear(2, 2)), plans=["eager"])
    assert not calls


def test_a_model_that_cannot_be_sent_is_left_as_it_was() -> None:
    """Attributes, optimizer and the random state are those of before."""

    class Counts(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
            self.calls += 1
            self.seen = input.shape
            return super().forward(input) + torch.rand(2)

    model = Counts(2, 2)
    model.calls, model.lock = 0, threading.Lock()  # type: ignore[assignment]
    optimizer = torch.optim.Adam(model.parameters())
    before = torch.random.get_rng_state()
    spec = peakcast.capture(model, torch.ones(1, 2), loss=torch.sum, optimizer=optimizer, plans=["eager"])
    assert len(spec.traces["eager"]) > 0
    assert torch.equal(torch.random.get_rng_state(), before)
    assert (model.calls, hasattr(model, "seen"), len(optimizer.state)) == (0, False, 0)
