"""Cases that train only a part of a model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from peakcast.training.jobs import plan_jobs
from peakcast.training.zoo import Case, build
from peakcast.training.zoo.trained import Adapted, train_only


def small() -> nn.Module:
    """Return a convolution and two linear layers with a norm between."""
    return nn.Sequential(nn.Conv1d(4, 4, 1), nn.Linear(10, 30), nn.LayerNorm(30), nn.Linear(30, 20))


def trained_numbers(model: nn.Module) -> int:
    """Count what would be trained."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def test_the_head_is_the_last_layer_with_weights() -> None:
    """Only the last linear layer is trained: 30 x 20 weights and 20 biases."""
    assert trained_numbers(train_only(small(), "head")) == 30 * 20 + 20


def test_adapters_are_all_that_is_trained() -> None:
    """Each linear layer gets 8 x (in + out) numbers; before training they change nothing."""
    torch.manual_seed(0)
    model = small()
    x = torch.randn(2, 4, 10)
    before = model(x)
    adapted = train_only(model, "lora")
    assert trained_numbers(adapted) == 8 * (10 + 30) + 8 * (30 + 20)
    assert sum(isinstance(module, Adapted) for module in adapted.modules()) == 2
    torch.testing.assert_close(adapted(x), before)


def test_a_model_without_linear_layers_is_refused() -> None:
    """There is nothing to adapt, and it says so."""
    with pytest.raises(ValueError, match="no linear layer"):
        train_only(nn.Sequential(nn.Conv1d(4, 4, 1)), "lora")


def test_a_case_trains_its_part_with_an_optimizer_of_that_part() -> None:
    """The optimizer holds the adapters alone; one step leaves the frozen weights as they were."""
    case = Case("mlp1024x12", 2, optimizer="sgd", trained="lora")
    assert case.key.endswith("|standard|lora")
    assert Case.from_dict(case.to_dict()) == case
    workload = build(case)
    assert workload.optimizer is not None
    assert workload.model is not None
    held = sum(parameter.numel() for group in workload.optimizer.param_groups for parameter in group["params"])
    assert held == trained_numbers(workload.model) == 8 * (12 * (1024 + 1024) + 1024 + 1000)
    with pytest.raises(ValueError, match="training"):
        Case("mlp1024x12", 2, task="inference", optimizer=None, trained="head")


def test_every_plan_gets_its_records() -> None:
    """As many jobs of each further plan as the corpus is to hold, and each key once."""
    jobs = plan_jobs()
    assert len({job.key for job in jobs}) == len(jobs)
    plans = [job.plan for job in jobs]
    assert sum(plan.startswith("inductor:budget=") for plan in plans) >= 120
    for plan, least in (("hybrid", 60), ("eager:checkpoint", 60), ("inductor:reduce-overhead", 60)):
        assert plans.count(plan) >= least
    assert plans.count("inductor:max-autotune") >= 20
