"""What a step that ran out of memory had changed: put back, or named so that nobody repeats it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from limited_memory import LimitedMemory
from running_out import Raising, equal, everything, fresh_compiler, limited_training
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from peakcast.client.rescue.rescue import Rescue, StepNotRepeatableError

__all__ = ["fresh_compiler"]

pytestmark = pytest.mark.usefixtures("fresh_compiler")


MIB = 1 << 20


@pytest.mark.parametrize("foreach", [True, False], ids=["foreach", "loop"])
def test_adam_that_runs_out_making_its_first_state_is_repeatable(foreach: bool) -> None:
    """The moments appear at the first step; those already made are dropped, and the second run makes them anew."""
    made = []
    for room_bytes in (None, 3 * MIB):  # one layer's moments take 2 MiB, both layers' 4
        torch.manual_seed(1)
        with LimitedMemory() as memory:
            model, optimizer, _ = limited_training(torch.optim.Adam, foreach=foreach)
            model(torch.randn(1024, 512)).square().mean().backward()
            gc.collect()
            memory.limit_bytes = None if room_bytes is None else memory.live() + room_bytes

            def fall_back(memory: LimitedMemory = memory) -> bool:
                memory.limit_bytes = None
                return True

            rescue = Rescue(fall_back, optimizer=optimizer, live_bytes=memory.live, slack_bytes=0)
            rescue.run(optimizer.step)
        assert rescue.rescues == (room_bytes is not None)
        made.append(everything(model, optimizer))
    assert equal(*made)


class SecondUpdate(TorchDispatchMode):
    """Let the optimizer's kernels run, and its memory run out after the first of them."""

    def __init__(self, raising: Raising) -> None:
        super().__init__()
        self.raising = raising

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if "addcdiv" in str(func) or "_fused_adamw" in str(func):
            self.raising.at("second update")
        return result


def halfway(keep: Any, **options: bool) -> tuple[Rescue, nn.Module, torch.optim.Optimizer, Callable[[], None], Raising]:
    """Return a rescue around a step whose optimizer fails once, after the update of its first group."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW([{"params": list(layer.parameters())} for layer in model], lr=0.1, **options)
    raising = Raising("second update")
    x = torch.randn(4, 8)

    def step() -> None:
        model(x).square().mean().backward()
        with SecondUpdate(raising):
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return Rescue(raising.fall_back, model=model, optimizer=optimizer, keep=keep), model, optimizer, step, raising


@pytest.mark.parametrize(
    "options", [{"foreach": True}, {"foreach": False}, {"fused": True}], ids=["foreach", "loop", "fused"]
)
def test_a_half_done_update_is_not_repeated(options: dict[str, bool]) -> None:
    """Some parameters were updated: the error says so, that the last checkpoint is needed, and where memory ran out."""
    rescue, _, _, step, raising = halfway("references", **options)
    with pytest.raises(StepNotRepeatableError, match=r"restore from the last checkpoint .*2\.00 GiB") as caught:
        rescue.run(step)
    assert "already changed" in str(caught.value)
    assert "in step" in "".join(caught.value.__notes__)
    # It fell back nevertheless: whoever restores the checkpoint goes on under the smaller plan.
    assert (raising.big, raising.times) == (False, 1)


@pytest.mark.parametrize(
    "options", [{"foreach": True}, {"foreach": False}, {"fused": True}], ids=["foreach", "loop", "fused"]
)
def test_host_copies_undo_even_a_half_done_update(options: dict[str, bool]) -> None:
    """With keep="host" the rescued step ends as the undisturbed one, from a first and from a second step."""
    for steps_before in (0, 1):
        _, model, optimizer, step, raising = halfway("references", **options)
        raising.big = False
        for _ in range(steps_before + 1):
            step()
        expected = everything(model, optimizer)

        rescue, model, optimizer, step, raising = halfway("host", **options)
        raising.big = False
        for _ in range(steps_before):
            step()
        raising.big = True
        rescue.run(step)
        assert rescue.rescues == 1
        assert equal(everything(model, optimizer), expected)


class WritesToData(torch.optim.Optimizer):
    """An optimizer that writes past the version counters, as many outside torch do."""

    def __init__(self, parameters: Any, raising: Raising) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.raising = raising

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update one parameter, run out, update the others."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.add_(parameter.grad, alpha=-group["lr"])
                self.raising.at("optimizer")


def test_an_optimizer_that_hides_its_updates_is_not_repeated() -> None:
    """Version counters say nothing there, so that it had begun is enough; a forward that ran out is still repeated."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    raising = Raising("optimizer")
    optimizer = WritesToData(model.parameters(), raising)
    x = torch.randn(2, 4)

    def step() -> None:
        raising.at("forward")
        model(x).sum().backward()
        optimizer.step()

    versions = [p._version for p in model.parameters()]
    rescue = Rescue(raising.fall_back, model=model, optimizer=optimizer)
    with pytest.raises(StepNotRepeatableError, match="the parameters, which WritesToData had begun to update"):
        rescue.run(step)
    assert [p._version for p in model.parameters()] == versions
    raising.place, raising.big = "forward", True
    rescue.run(step)
    assert rescue.rescues == 1
    rescue.close()
    assert optimizer._optimizer_step_pre_hooks == {}


def test_gradients_accumulated_before_are_kept_or_the_step_is_refused() -> None:
    """Out in the forward: they stay. Out after the backward added to them: they cannot be had back without copies."""
    model = nn.Linear(4, 1, bias=False)
    x = torch.ones(1, 4)

    def micro_step(raising: Raising) -> Callable[[], None]:
        def step() -> None:
            raising.at("forward")
            model(x).sum().backward()
            raising.at("optimizer")

        return step

    micro_step(Raising("nowhere"))()
    early = Raising("forward")
    Rescue(early.fall_back, model=model).run(micro_step(early))
    assert model.weight.grad is not None
    assert model.weight.grad.tolist() == [[2.0] * 4]
    late = Raising("optimizer")
    with pytest.raises(StepNotRepeatableError, match="changed the gradient of weight"):
        Rescue(late.fall_back, model=model).run(micro_step(late))
    model.zero_grad()
    micro_step(Raising("nowhere"))()
    late = Raising("optimizer")
    Rescue(late.fall_back, model=model, keep="host").run(micro_step(late))
    assert model.weight.grad.tolist() == [[2.0] * 4]


def test_an_input_changed_in_place_makes_the_step_unrepeatable() -> None:
    """The closure's batch was normalised in place before memory ran out: a second run would do it twice."""
    model = nn.Linear(4, 1)
    batch = {"x": [torch.ones(2, 4)]}

    def step() -> None:
        batch["x"][0].div_(2)
        model(batch["x"][0])
        raising.at("forward")

    raising = Raising("forward")
    with pytest.raises(StepNotRepeatableError, match=r"an input of shape \(2, 4\)"):
        Rescue(raising.fall_back, model=model).run(step)


def test_a_generator_of_the_step_is_put_back() -> None:
    """A torch.Generator in the closure draws the same numbers again."""
    generator = torch.Generator().manual_seed(9)
    expected = torch.rand(4, generator=torch.Generator().manual_seed(9))
    raising = Raising("forward")

    def step() -> torch.Tensor:
        drawn = torch.rand(4, generator=generator)
        raising.at("forward")
        return drawn

    assert torch.equal(Rescue(raising.fall_back).run(step), expected)


def test_the_peak_of_the_step_is_what_it_is_without() -> None:
    """Recording holds no gradient alive: a step that drops its gradients first has the same peak, to the byte."""
    peaks = []
    for rescued in (False, True):
        with LimitedMemory() as memory:
            model, optimizer, _ = limited_training(torch.optim.Adam)
            x = torch.randn(1024, 512)

            def step(model: Any = model, optimizer: Any = optimizer, x: torch.Tensor = x) -> None:
                optimizer.zero_grad(set_to_none=True)
                model(x).square().mean().backward()
                optimizer.step()

            run = Rescue(lambda: False, model=model, optimizer=optimizer).run if rescued else (lambda each: each())
            run(step)
            memory.reset_peak()
            run(step)
            peaks.append(memory.peak_bytes)
    assert peaks[0] == peaks[1]


def test_a_gradient_scaler_scales_and_unscales_the_second_run_anew() -> None:
    """An optimizer that ran out after unscaling must not be stepped with gradients still scaled."""

    def run(raising: Raising) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        x = torch.ones(2, 4)

        def step() -> None:
            scaler.scale(model(x).mean()).backward()
            scaler.unscale_(optimizer)
            raising.at("optimizer")
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

        Rescue(raising.fall_back, model=model, optimizer=optimizer).run(step)
        return model.weight.detach().clone()

    raising = Raising("optimizer")
    assert torch.equal(run(raising), run(Raising("nowhere")))
    assert raising.times == 1
