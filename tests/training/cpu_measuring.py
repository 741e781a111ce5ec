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
