"""Staging: a live workload goes onto fake tensors and comes back as it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from peakcast import Workload
from peakcast.featurizer.capture.fake_step import whole_steps_on_fake_tensors
from peakcast.featurizer.capture.stage import build_on_fake_tensors, placed

CPU = torch.device("cpu")


class Holder(nn.Module):
    """Holds tensors in every way a module can."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.tied = nn.Linear(3, 4)
        self.tied.weight = self.linear.weight
        self.register_buffer("mean", torch.ones(4))
        self.plain = torch.arange(4.0)
        self.listed = [torch.ones(2), {"inner": torch.ones(3)}]


def _workload() -> Workload:
    model = Holder()
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return Workload(model, {"x": torch.randn(2, 3), "flags": [True, torch.zeros(2)]}, optimizer=optimizer)


def test_every_tensor_is_fake_inside() -> None:
    """Parameters, buffers, plain attributes, nested ones, inputs and optimizer state."""
    workload, mode = _workload(), FakeTensorMode(allow_non_fake_inputs=True)
    model, optimizer = workload.model, workload.optimizer
    assert isinstance(model, Holder)
    assert optimizer is not None
    with placed(workload, mode, CPU):
        inner = model.listed[1]
        assert isinstance(inner, dict)
        found = [*model.parameters(), *model.buffers(), model.plain, model.listed[0], inner["inner"]]
        found += [workload.inputs["x"], workload.inputs["flags"][1]]
        states = [state["exp_avg"] for state in optimizer.state.values()]
        assert all(isinstance(tensor, FakeTensor) for tensor in [*found, *states])
        assert all(isinstance(parameter, nn.Parameter) for parameter in model.parameters())
        assert set(optimizer.state) == set(optimizer.param_groups[0]["params"]) == set(model.parameters())
        # Step counters stay real: optimizers read them.
        assert [float(state["step"]) for state in optimizer.state.values()] == [1.0] * 3


def test_ties_survive() -> None:
    """One tensor held twice is one fake tensor."""
    workload = _workload()
    assert isinstance(workload.model, Holder)
    with placed(workload, FakeTensorMode(), CPU):
        assert workload.model.tied.weight is workload.model.linear.weight


def test_everything_is_restored() -> None:
    """Afterwards the very same tensors are there, with their values."""
    workload = _workload()
    model, optimizer, inputs = workload.model, workload.optimizer, workload.inputs
    assert isinstance(model, Holder)
    assert optimizer is not None
    tensors = [*model.parameters(), *model.buffers(), model.plain, *(s["exp_avg"] for s in optimizer.state.values())]
    values = [tensor.detach().clone() for tensor in tensors]
    names, keys = set(vars(model)), list(model.state_dict())
    with placed(workload, FakeTensorMode(), CPU):
        pass
    after = [*model.parameters(), *model.buffers(), model.plain, *(s["exp_avg"] for s in optimizer.state.values())]
    assert all(one is other for one, other in zip(tensors, after, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(values, after, strict=True))
    assert workload.inputs is inputs
    assert (set(vars(model)), list(model.state_dict())) == (names, keys)


def test_the_optimizer_is_as_it_was() -> None:
    """A step inside moves neither its counters nor its learning rate, be it a number or a tensor."""
    workload = _workload()
    optimizer = workload.optimizer
    assert optimizer is not None
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], "lr": torch.tensor(0.5), "foreach": False})
    counters = [state["step"] for state in optimizer.state.values()]
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with placed(workload, mode, CPU), whole_steps_on_fake_tensors(), mode:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        optimizer.param_groups[0]["lr"] = 7.0
        optimizer.param_groups[0]["initial_lr"] = 7.0
        optimizer.param_groups[1]["lr"].mul_(2)
    assert all(state["step"] is counter for state, counter in zip(optimizer.state.values(), counters, strict=True))
    assert [float(counter) for counter in counters] == [1.0] * 3
    assert [float(group["lr"]) for group in optimizer.param_groups] == [1e-3, 0.5]
    assert "initial_lr" not in optimizer.param_groups[0]


def test_restored_after_an_error_and_without_caches() -> None:
    """A step that fails, or that caches a fake tensor on the module, leaves nothing behind."""
    workload, mode = _workload(), FakeTensorMode()
    model = workload.model
    assert isinstance(model, Holder)
    plain = model.plain

    def fails_after_caching() -> None:
        with placed(workload, mode, CPU), mode:
            model.plain = torch.zeros(9)
            model.cache = torch.zeros(9)
            model.register_buffer("late", torch.zeros(9))
            raise KeyError("user")

    with pytest.raises(KeyError, match="user"):
        fails_after_caching()
    assert model.plain is plain
    assert not hasattr(model, "cache")
    assert "late" not in model.state_dict()


def test_a_build_costs_no_memory() -> None:
    """A model of 4 TB is built on fake tensors."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    workload = build_on_fake_tensors(lambda: Workload(nn.Linear(10**6, 10**6), torch.zeros(1, 10**6)), mode, CPU)
    assert workload.model is not None
    assert sum(p.numel() for p in workload.model.parameters()) == 10**12 + 10**6


def test_a_build_that_needs_values_is_done_for_real_and_then_faked(capsys: pytest.CaptureFixture[str]) -> None:
    """Tensors of closures and plain attributes end up fake, too; the reason is told."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    target = []

    def factory() -> Workload:
        assert torch.randint(3, 4, (1,)).item() == 3
        labels = torch.zeros(2)
        target.append(labels)
        return Workload(Holder(), torch.zeros(2, 3), loss=lambda out: (out - labels).sum())

    workload = build_on_fake_tensors(factory, mode, CPU)
    assert isinstance(workload.model, Holder)
    assert isinstance(workload.model.plain, FakeTensor)
    assert workload.loss is not None
    with mode:
        assert isinstance(workload.loss(torch.ones(2)), FakeTensor)
    assert not isinstance(target[0], FakeTensor)
    assert "done for real" in capsys.readouterr().err


def test_the_users_own_mistake_is_raised() -> None:
    """A factory that fails either way raises what it raises."""

    def factory() -> Workload:
        raise LookupError("no such thing")

    with pytest.raises(LookupError, match="no such thing"):
        build_on_fake_tensors(factory, FakeTensorMode(), CPU)
