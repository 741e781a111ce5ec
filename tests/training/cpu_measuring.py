"""Measuring functions that run in real workers on the CPU: what they do is decided by the model's name in the job."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peakcast.training.jobs import Job
from peakcast.training.measure_job import base_record

CRASHED_ONCE = "PEAKCAST_TEST_CRASHED_ONCE"


def product_of_matrices(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Multiply two squares of the batch's size and record what the answer weighs."""
    job = Job.from_dict(fields)
    n = job.case.batch
    rows = [[float(i * j % 7) for j in range(n)] for i in range(n)]
    product = [
        [sum(a * b for a, b in zip(row, column, strict=True)) for column in zip(*rows, strict=True)] for row in rows
    ]
    return {**base_record(job), "measured": {"steady_allocated_bytes": 8 * sum(map(len, product))}, "pid": os.getpid()}


def fails_for_mlp4096(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Raise for one model."""
    if Job.from_dict(fields).case.model == "mlp4096":
        raise ZeroDivisionError("this model divides by zero")
    return product_of_matrices(fields)


def always_kills_itself_for_mlp4096(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Die by SIGKILL for one model."""
    if Job.from_dict(fields).case.model == "mlp4096":
        os.kill(os.getpid(), signal.SIGKILL)
    return product_of_matrices(fields)


def kills_itself_once(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Die by SIGKILL at the first job of all, then work."""
    marker = Path(os.environ[CRASHED_ONCE])
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return product_of_matrices(fields)


def hangs_for_mlp4096(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Never end for one model."""
    if Job.from_dict(fields).case.model == "mlp4096":
        time.sleep(3600)
    return product_of_matrices(fields)


def takes_half_a_second(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Take long enough to be killed in the middle of a collection."""
    time.sleep(0.5)
    return product_of_matrices(fields)


def runs_out_beside_others(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Run out of memory unless the card is its own."""
    job = Job.from_dict(fields)
    return {**product_of_matrices(fields), "out_of_memory": not job.alone}


def sum_over_ranks(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Add up the ranks' numbers, each with the payload's number on top."""
    import torch

    mine = torch.tensor(float(torch.distributed.get_rank() + fields["add"]))
    torch.distributed.all_reduce(mine)
    return {"rank": torch.distributed.get_rank(), "sum": mine.item()}


def second_rank_fails(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Leave rank 0 waiting for a rank that raises."""
    import torch

    if torch.distributed.get_rank() == 1:
        raise ZeroDivisionError("this rank divides by zero")
    return sum_over_ranks({"add": 0})


def second_rank_dies(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Leave rank 0 waiting for a rank that is killed."""
    import torch

    if torch.distributed.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return sum_over_ranks({"add": 0})


def loss_of_a_spread_model(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Train a spread model of the zoo for two steps, and say what it holds."""
    import torch

    from peakcast.training.zoo.build import make_optimizer
    from peakcast.training.zoo.parallel import spread

    torch.manual_seed(0)
    layers = [torch.nn.Linear(32, 32, bias=False) for _ in range(4)]
    model = spread(torch.nn.Sequential(*layers), fields["parallel"])
    optimizer = make_optimizer("sgd", None, model.parameters())
    inputs = torch.ones(2, 32) * (1 + torch.distributed.get_rank())
    losses = []
    for _ in range(2):
        loss = model(inputs).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    held = sum(getattr(p, "_local_tensor", p).numel() for p in model.parameters())
    return {"losses": losses, "held": held}


def tracked_peak_of_a_spread_model(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Train a spread model under torch's tracker, on the CPU."""
    import torch

    from peakcast.featurizer.capture.workload import Workload
    from peakcast.training.rank_tracker import tracked_peak_bytes
    from peakcast.training.zoo.build import make_optimizer
    from peakcast.training.zoo.parallel import spread

    layers = [torch.nn.Linear(256, 256, bias=False) for _ in range(4)]
    model = spread(torch.nn.Sequential(*layers), fields["parallel"])
    optimizer = make_optimizer("adamw", None, model.parameters())
    loss = torch.nn.MSELoss()
    target = torch.zeros(2, 256)
    work = Workload(model, torch.ones(2, 256), lambda output: loss(output, target), optimizer)
    return {"tracker_bytes": tracked_peak_bytes(work)}


def second_rank_raises(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Leave rank 0 waiting for a rank whose error has two lines."""
    import torch

    if torch.distributed.get_rank() == 1:
        raise ZeroDivisionError("this rank divides by zero\nand says more")
    return sum_over_ranks({"add": 0})


def visible_cards(job: Mapping[str, Any]) -> dict[str, Any]:
    """Say which cards this process may see, and stay a moment, so that one worker does not take every job."""
    time.sleep(0.3)
    return {"key": Job.from_dict(job).key, "card": os.environ["CUDA_VISIBLE_DEVICES"]}
