"""Steps that run out of memory in forward, backward and optimizer, eager and compiled, and are run again."""

from __future__ import annotations

import gc
import logging
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from limited_memory import LimitedMemory, resident_bytes
from running_out import InBackward, Raising, equal, everything, fresh_compiler, limited_training
from torch import nn

from peakcast.client.rescue.out_of_memory import is_out_of_memory
from peakcast.client.rescue.rescue import MemoryNotReturnedError, NothingSmallerError, Rescue
from peakcast.featurizer.capture.plans import install

__all__ = ["fresh_compiler"]

pytestmark = pytest.mark.usefixtures("fresh_compiler")


MIB = 1 << 20


class Network(nn.Module):
    """Two layers, dropout and batch norm: draws random numbers and changes buffers in its forward."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width), nn.Linear(width, width)])
        self.norm = nn.BatchNorm1d(width)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a number a row."""
        for layer in self.layers:
            x = self.dropout(torch.relu(layer(x)))
        return self.norm(x).square().mean(dim=1)


def seed_all() -> None:
    """Seed the generators that the step draws from."""
    torch.manual_seed(11)
    random.seed(11)
    np.random.seed(11)  # noqa: NPY002 - the global generator is what is put back


def training(raising: Raising) -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], float]]:
    """Return a model with its optimizer, one step behind it, and its next step."""
    seed_all()
    model = Network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x = torch.randn(32, 256)

    def step() -> float:
        hidden = model.layers[0](x)
        raising.at("forward")
        out = model(InBackward.apply(hidden, raising) + random.random() + float(np.random.rand()))  # noqa: NPY002
        loss = out.mean()
        loss.backward()
        raising.at("optimizer")
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    before, raising.big = raising.big, False
    step()
    raising.big = before
    return model, optimizer, step


@pytest.mark.parametrize("place", ["forward", "backward", "optimizer"])
def test_a_rescued_step_is_the_step_that_fitted_at_once(place: str) -> None:
    """Loss, parameters, statistics, moments and the generators afterwards are the same bit for bit."""
    calm = Raising("nowhere")
    model, optimizer, step = training(calm)
    seed_all()
    expected_loss = step()
    expected, drawn = everything(model, optimizer), (torch.rand(3), random.random(), np.random.rand())  # noqa: NPY002

    raising = Raising(place)
    model, optimizer, step = training(raising)
    seed_all()
    rescue = Rescue(raising.fall_back, model=model, optimizer=optimizer)
    assert rescue.run(step) == expected_loss
    assert (raising.times, rescue.rescues) == (1, 1)
    assert equal(everything(model, optimizer), expected)
    assert torch.equal(torch.rand(3), drawn[0])
    assert (random.random(), np.random.rand()) == drawn[1:]  # noqa: NPY002


def test_dropped_without_putting_back_the_second_run_would_differ() -> None:
    """The test above can fail: the same step twice in a row changes statistics and draws other numbers."""
    raising = Raising("backward")
    model, optimizer, step = training(raising)
    before = everything(model, optimizer)
    with pytest.raises(torch.OutOfMemoryError):
        step()
    assert not equal(everything(model, optimizer), before)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8, 0.99])
def test_memory_that_really_runs_out_comes_back_to_the_byte(share: float) -> None:
    """Wherever the limit is crossed, what is alive before the second run is what was alive before the first."""
    with LimitedMemory() as memory:
        model, optimizer, step = limited_training(torch.optim.Adam)
        step()
        gc.collect()
        baseline_bytes = memory.live()
        memory.reset_peak()
        step()
        alive: list[int] = []

        def fall_back() -> bool:
            alive.append(memory.live())
            memory.limit_bytes = None
            return True

        rescue = Rescue(fall_back, model=model, optimizer=optimizer, live_bytes=memory.live, slack_bytes=0)
        memory.limit_bytes = baseline_bytes + int(share * (memory.peak_bytes - baseline_bytes))
        rescue.run(step)
    # Two weights of 1 MiB and two moments of each are at least there, and a step takes two activations of 2 MiB.
    assert baseline_bytes >= 6 * MIB
    assert memory.peak_bytes - baseline_bytes >= 4 * MIB
    assert alive == [baseline_bytes]


class Scaled(nn.Module):
    """Save one activation as large as its input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1024))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return as many values."""
        return torch.sigmoid(x * self.weight)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_an_out_of_memory_error_in_a_compiled_backward_gives_its_memory_back(backend: str) -> None:
    """256 MiB of saved activations are gone from the process before the step runs again, eager."""
    model = nn.Sequential(*[Scaled() for _ in range(4)])
    x = torch.ones(16_384, 1024)  # 64 MiB, and so is each activation
    raising = Raising("backward")
    undo = install(model, "inductor", backend=backend)
    held: list[int] = []

    def fall_back() -> bool:
        held.append(resident_bytes())
        undo()
        return raising.fall_back()

    def step() -> float:
        loss = InBackward.apply(model(x), raising).square().mean()
        loss.backward()
        return float(loss.detach())

    raising.big = False
    step()
    model.zero_grad()
    gc.collect()
    raising.big = True
    baseline_bytes = resident_bytes()
    rescue = Rescue(fall_back, model=model, live_bytes=resident_bytes, slack_bytes=60 * MIB)
    first = rescue.run(step)
    assert rescue.rescues == 1
    assert held[0] - baseline_bytes < 60 * MIB
    assert "_compiled_call_impl" not in vars(model)
    assert first == pytest.approx(step(), rel=1e-6)


def test_memory_that_stays_is_told_with_its_size() -> None:
    """A cache of the user's own keeps 8 MiB: the fall-back is not tried, and the error says what to do."""
    kept = []
    fallen = []

    def step() -> None:
        kept.append(torch.ones(2 * MIB))
        raising.at("forward")

    raising = Raising("forward")
    with LimitedMemory() as memory:
        rescue = Rescue(lambda: bool(fallen.append(1)), live_bytes=memory.live, slack_bytes=MIB)
        with pytest.raises(MemoryNotReturnedError, match=r"8,388,608 bytes more .* restore from the last checkpoint"):
            rescue.run(step)
    assert fallen == []


def test_other_errors_pass_untouched() -> None:
    """The same object with its own traceback and cause, and nothing was put back or called."""
    model = nn.Linear(2, 1)
    cause = KeyError("cause")
    error = ValueError("not memory")

    def step() -> None:
        model(torch.ones(1, 2)).sum().backward()
        raise error from cause

    rescue = Rescue(lambda: pytest.fail("no fall-back"), model=model)
    with pytest.raises(ValueError, match="not memory") as caught:
        rescue.run(step)
    assert caught.value is error
    assert error.__cause__ is cause
    assert [entry.name for entry in caught.traceback][-1] == "step"
    assert model.weight.grad is not None


def test_nothing_smaller_reads_as_an_out_of_memory_error() -> None:
    """Who catches torch's error catches this one."""
    raising = Raising("forward")
    with pytest.raises(torch.OutOfMemoryError, match=r"no other plan is left: .*2\.00 GiB") as caught:
        Rescue(lambda: False).run(lambda: raising.at("forward"))
    assert isinstance(caught.value, NothingSmallerError)
    assert is_out_of_memory(caught.value)


def test_the_step_is_run_again_once_and_then_fails_as_itself() -> None:
    """Still out of memory under the smaller plan: torch's own error comes through, after two runs."""
    runs = []

    def step() -> None:
        runs.append(1)
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(torch.OutOfMemoryError) as caught:
        Rescue(lambda: True).run(step)
    assert type(caught.value) is torch.OutOfMemoryError
    assert len(runs) == 2
    with pytest.raises(torch.OutOfMemoryError):
        Rescue(lambda: True, reruns=3).run(step)
    assert len(runs) == 2 + 4


def test_one_warning_a_graph_which_is_remembered(caplog: pytest.LogCaptureFixture) -> None:
    """Two rescues of one signature warn once; another signature warns again."""
    raising = Raising("forward")
    rescue = Rescue(raising.fall_back)
    with caplog.at_level(logging.WARNING, "peakcast.client.rescue.rescue"):
        for signature in ("a", "a", "b"):
            raising.big = True
            rescue.run(lambda: raising.at("forward"), signature=signature)
    assert len(caplog.records) == 2
    assert "CUDA out of memory" in caplog.text
    assert rescue.remembers("a")
    assert not rescue.remembers("c")
    assert rescue.rescues == 3


def test_an_out_of_memory_error_under_the_compiler_reads_as_one() -> None:
    """A backend that runs out is rescued, though what arrives is BackendCompilerFailed raised from None."""
    raising = Raising("compile")
    model = nn.Linear(4, 4)

    def backend(graph: Any, _: Any) -> Any:
        raising.at("compile")
        return graph.forward

    undo = install(model, "inductor", backend=backend)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        model(torch.ones(2, 4))
    assert is_out_of_memory(caught.value)
    torch.compiler.reset()

    def fall_back() -> bool:
        undo()
        return raising.fall_back()

    assert Rescue(fall_back, model=model).run(lambda: model(torch.ones(2, 4))).shape == (2, 4)
    assert raising.times == 2


def test_values_that_cannot_be_are_refused() -> None:
    """With the value and what is allowed."""
    with pytest.raises(ValueError, match="reruns must be 1 or more, got 0"):
        Rescue(lambda: True, reruns=0)
    with pytest.raises(ValueError, match="slack_bytes must be 0 or more, got -1"):
        Rescue(lambda: True, slack_bytes=-1)
    with pytest.raises(ValueError, match="keep must be 'references' or 'host', got 'disk'"):
        Rescue(lambda: True, keep="disk")  # type: ignore[arg-type]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("plan", ["eager", "inductor"])
def test_a_gpu_that_really_runs_out_is_rescued_bit_for_bit(plan: str) -> None:
    """Under a limit the step dies in torch's own allocator; run again without it, dropout draws the same numbers."""
    total_bytes = torch.cuda.get_device_properties(0).total_memory

    def run(room_bytes: int | None) -> tuple[list[Any], float, int]:
        torch.manual_seed(0)
        model = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.Dropout(0.5)) for _ in range(4)]).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        x = torch.randn(16_384, 1024, device="cuda")  # 64 MiB, and so is each activation
        undo = install(model, plan)

        def step() -> float:
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return float(loss.detach())

        def fall_back() -> bool:
            torch.cuda.set_per_process_memory_fraction(1.0, 0)
            return True

        step()
        rescue = Rescue(fall_back, model=model, optimizer=optimizer)
        gc.collect()
        torch.cuda.empty_cache()
        if room_bytes is not None:
            limit_bytes = torch.cuda.memory_reserved() + room_bytes
            torch.cuda.set_per_process_memory_fraction(limit_bytes / total_bytes, 0)
        try:
            loss = rescue.run(step)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, 0)
            undo()
        return everything(model, optimizer), loss, rescue.rescues

    expected, expected_loss, none = run(None)
    found, loss, rescues = run(96 * MIB)
    assert (none, rescues) == (0, 1)
    assert loss == expected_loss
    assert equal(found, expected)
