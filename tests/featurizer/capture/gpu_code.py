"""Workloads that put themselves on the card, in the ways GPU code does."""

from __future__ import annotations

import torch
from torch import nn

from peakcast import Workload


def _trained(model: nn.Module, batch: torch.Tensor) -> Workload:
    return Workload(model, batch, loss=torch.sum, optimizer=torch.optim.AdamW(model.parameters()))


def on_cuda_unsaid() -> Workload:
    """Leave the device to the capture."""
    return _trained(nn.Linear(64, 64), torch.randn(4, 64))


def on_cuda_by_method() -> Workload:
    """`.cuda()`."""
    return _trained(nn.Linear(64, 64).cuda(), torch.randn(4, 64).cuda())


def on_cuda_by_name() -> Workload:
    """`.to("cuda")`."""
    return _trained(nn.Linear(64, 64).to("cuda"), torch.randn(4, 64).to("cuda"))


def on_cuda_by_device() -> Workload:
    """`.to(device)`, `device=`."""
    device = torch.device("cuda:0")
    return _trained(nn.Linear(64, 64).to(device), torch.randn(4, 64, device=device))


def on_cuda_by_number() -> Workload:
    """`.cuda(0)`, `.to(0)`."""
    return _trained(nn.Linear(64, 64).cuda(0), torch.randn(4, 64).to(0))


def on_cuda_from_cpu() -> Workload:
    """From one to the other."""
    return _trained(nn.Linear(64, 64).to("cpu").cuda(), torch.randn(4, 64, device="cpu").cuda())


def on_cuda_after_reading_values() -> Workload:
    """Read a drawn number first, so that the build on fake tensors fails."""
    if int(torch.randint(3, 4, (1,)).item()) != 3:
        raise RuntimeError("real numbers are needed")
    batch = torch.randn(4, 64).to("cuda") + torch.tensor([1.0], device="cuda:0") + torch.zeros(1).cuda(0)
    return _trained(nn.Linear(64, 64).cuda(), batch)


def halved_and_tied() -> Workload:
    """Convert two layers that share a weight."""
    first, second = nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)
    second.weight = first.weight
    model = nn.Sequential(first, second).half().cuda()
    return _trained(model, torch.randn(4, 64).half().cuda())
