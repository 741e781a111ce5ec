"""Steps that all ranks of a process group take together: all succeed, or all raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

from peakcast.client.checkpoint.faults import CheckpointError

T = TypeVar("T")


def place() -> tuple[int, int]:
    """Return this process's rank and the world size: 0 of 1 without a process group."""
    if not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def everyone(work: Callable[[], T]) -> list[T]:
    """Do `work` on every rank and return what each made of it, by rank.

    Raises:
        Exception: on the rank whose work raised it.
        CheckpointError: on the others, so that none waits for a rank that has given up.
    """
    rank, world_size = place()
    if world_size == 1:
        return [work()]
    raised: Exception | None = None
    result: T | None = None
    try:
        result = work()
    except Exception as error:  # noqa: BLE001 - raised below, once the others know
        raised = error
    # The group's own transport between the job's own processes, which torch.distributed.checkpoint uses too.
    said: list[tuple[T, str]] = [None] * world_size  # type: ignore[list-item]
    dist.all_gather_object(said, (result, f"{type(raised).__name__}: {raised}" if raised else ""))
    if raised is not None:
        raise raised
    failed = [f"rank {other}: {message}" for other, (_, message) in enumerate(said) if message]
    if failed:
        raise CheckpointError(f"rank {rank} stops because of {'; '.join(failed)}")
    return [value for value, _ in said]
