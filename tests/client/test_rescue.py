"""Steps that run out of memory in forward, backward and optimizer, eager and compiled, and what is put back."""

from __future__ import annotations

import gc
import logging
import random
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from limited_memory import LimitedMemory, resident_bytes
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from peakcast.client.out_of_memory import is_host_out_of_memory, is_out_of_memory, let_go
from peakcast.client.rescue import MemoryNotReturnedError, NothingSmallerError, Rescue, StepNotRepeatableError
from peakcast.featurizer.capture.plans import install

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    # A collection then walks through the test's own objects, not through all of torch's.
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    torch.compiler.reset()


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


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
    """Return copies of all that a step may change."""
    tensors = [*model.parameters(), *model.buffers()]
    state = [optimizer.state[p] for p in model.parameters() if p in optimizer.state]
    kept = [value for entries in state for value in entries.values() if isinstance(value, torch.Tensor)]
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return [tensor.detach().clone() for tensor in [*tensors, *kept]] + gradients


def equal(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    """Say whether all are the same bit for bit."""
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


class Raising:
    """Raise torch's out-of-memory error at one place of a step, as long as the plan is the big one."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.big = True
        self.times = 0

    def at(self, place: str) -> None:
        """Run out here, if this is the place."""
        if self.big and place == self.place:
            self.times += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    def fall_back(self) -> bool:
        """Take a plan that fits."""
        self.big = False
        return True


class InBackward(torch.autograd.Function):
    """Pass a tensor through; run out of memory in its backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, raising: Raising) -> torch.Tensor:
        """Return the same values."""
        ctx.raising = raising
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Return the same gradient, unless memory runs out here."""
        ctx.raising.at("backward")
        return gradients[0], None


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


def limited_training(optimizer_type: type[torch.optim.Optimizer], **options: Any) -> Any:
    """Return model, optimizer and step of two layers of 1 MiB each; activations take 2 MiB each."""
    model = nn.Sequential(nn.Linear(512, 512, bias=False), nn.ReLU(), nn.Linear(512, 512, bias=False), nn.ReLU())
    optimizer = optimizer_type(model.parameters(), lr=0.01, **options)  # type: ignore[call-arg]
    x = torch.randn(1024, 512)

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return model, optimizer, step


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


def test_recovery_inside_the_except_block_would_hold_the_activations() -> None:
    """Why the fall-back waits: inside `except` the traceback keeps 128 MiB of frames' tensors, outside nothing does."""

    def step() -> None:
        hidden = torch.zeros(32 * MIB)
        raising.at("forward")
        hidden.add_(1)

    raising = Raising("forward")
    before_bytes = resident_bytes()
    try:
        step()
    except torch.OutOfMemoryError as error:
        gc.collect()
        # Frames hold the local; zeros are mapped lazily, so it is its size that counts, read from the frame.
        frame = error.__traceback__.tb_next.tb_frame  # type: ignore[union-attr]
        assert frame.f_locals["hidden"].nbytes == 128 * MIB
        reference = weakref.ref(frame.f_locals["hidden"])
        del frame
        let_go(error)
    assert reference() is None
    assert resident_bytes() - before_bytes < 64 * MIB


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
    with pytest.raises(torch.OutOfMemoryError, match=r"no plan needs less: .*2\.00 GiB") as caught:
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
    with caplog.at_level(logging.WARNING, "peakcast.client.rescue"):
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


def test_a_failed_allocation_of_the_host_is_rescued_too() -> None:
    """A real one: the CPU allocator is asked for 32 TiB."""
    sizes = [1 << 45, 16]

    def step() -> int:
        return torch.empty(sizes[0], dtype=torch.uint8).numel()

    assert Rescue(lambda: bool(sizes.pop(0))).run(step) == 16
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 45, dtype=torch.uint8)
    assert is_host_out_of_memory(caught.value)
    assert not is_out_of_memory(caught.value)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("cuBLAS error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("Triton Error [CUDA]: out of memory"), True),
        (ExceptionGroup("two", [ValueError("x"), torch.OutOfMemoryError("y")]), True),
        (ValueError("the page on CUDA out of memory"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (MemoryError(), False),
    ],
    ids=["driver", "cublas", "triton", "group", "words of another error", "shapes", "python"],
)
def test_what_is_an_out_of_memory_error(error: BaseException, expected: bool) -> None:
    """Told by torch's class, or by the words of a library's RuntimeError."""
    assert is_out_of_memory(error) is expected


def test_an_error_raised_from_none_is_not_the_one_before() -> None:
    """Who replaces an out-of-memory error on purpose gets that error; a cycle of causes ends."""

    def replace() -> None:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        except torch.OutOfMemoryError:
            raise LookupError("too long a text") from None

    with pytest.raises(LookupError) as caught:
        replace()
    assert not is_out_of_memory(caught.value)
    first, second = RuntimeError("a"), RuntimeError("b")
    first.__cause__, second.__cause__ = second, first
    assert not is_out_of_memory(first)


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
