"""Measure a job in several ranks: one record with the quantities of each, and what communicators take."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, Final

import torch
import typer
from torch import distributed

from peakcast.client.measure import measure, settle
from peakcast.training.jobs import Job
from peakcast.training.measure_job import base_record, device, versions
from peakcast.training.ranks import RankError, run_ranks
from peakcast.training.zoo import build
from peakcast.training.zoo.case import RANKS

_HERE: Final = "peakcast.training.measure_ranks"  # also where this module runs as __main__
_TRACKER: Final = "peakcast.training.rank_tracker:track_rank"
# A pool gives a job up after as long; this ends the ranks before it ends their parent.
_TIMEOUT_S: Final = 280.0
_MOST_COMMUNICATORS: Final = 4
_OUT_OF_MEMORY: Final = "this rank ran out of memory"


def measure_ranks_job(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Measure a job (as `Job.to_dict` wrote it) in as many ranks as its case has, and give its record.

    `measured` holds rank 0's quantities, `ranks` those of all. An eager record's `tracker` holds the peaks by torch's
    own estimator, or None, and why in `tracker_failed`.

    Raises:
        RankError: whatever a rank raised, out of memory apart.
    """
    job = Job.from_dict(fields)
    tracker = _TRACKER if job.plan == "eager" else None
    try:
        found = run_ranks(
            f"{_HERE}:measure_rank", job.to_dict(), ranks=job.case.ranks, timeout_s=_TIMEOUT_S, afterwards=tracker
        )
    except RankError as error:
        if _OUT_OF_MEMORY not in str(error):
            raise
        return {**base_record(job), "measured": {}, "out_of_memory": True, "message": str(error), "graph_id": None}
    tracked = [one.pop("afterwards", {}) for one in found]
    peaks = [one.pop("measured") for one in found]
    about = found[0].pop("about")
    record = {**base_record(job), **found[0], **about, "measured": peaks[0], "ranks": peaks, "graph_id": None}
    return {**record, **_tracker_fields(tracked)} if tracker else record


def _tracker_fields(tracked: list[dict[str, Any]]) -> dict[str, Any]:
    failed = dict.fromkeys(str(one["failed"]) for one in tracked if "failed" in one)
    if failed:
        return {"tracker": None, "tracker_failed": "; ".join(failed)}
    return {"tracker": [one["tracker_bytes"] for one in tracked]}


def measure_rank(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Measure a job as one rank of the current process group.

    Raises:
        MemoryError: if this rank runs out of memory. The others wait for it, so that it must not end quietly.
    """
    job = Job.from_dict(fields)
    found = measure(lambda: build(job.case, place=settle), job.plan)
    if found.out_of_memory:
        raise MemoryError(_OUT_OF_MEMORY)
    return {**found.to_dict(), "about": {"device": device(), "versions": versions()}}


def communicator_bytes(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Read what the card's free memory loses with each further NCCL communicator. Nothing else may use the card.

    Gives `free_bytes`: before any, and after the first all-reduce on each of `communicators` groups.
    """
    count = int(fields.get("communicators", _MOST_COMMUNICATORS))
    mebibyte = torch.ones(1 << 18, device="cuda")
    torch.cuda.synchronize()
    free = [torch.cuda.mem_get_info()[0]]
    for number in range(count):
        group = distributed.group.WORLD if number == 0 else distributed.new_group()
        distributed.all_reduce(mebibyte, group=group)
        torch.cuda.synchronize()
        free.append(torch.cuda.mem_get_info()[0])
    return {"free_bytes": free, "about": {"device": device(), "versions": versions()}}


def communicators_command(
    communicators: Annotated[int, typer.Option(min=1, help="So many, one after the other.")] = _MOST_COMMUNICATORS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,  # noqa: FBT002
) -> None:
    """Measure what NCCL communicators take on two idle cards of this machine, by rank. Exit status 2 without them."""
    seen = torch.cuda.device_count()
    if seen < RANKS:
        typer.echo(f"error: communicators are measured between {RANKS} GPUs, and torch sees {seen}", err=True)
        raise typer.Exit(2)
    payload = {"communicators": communicators}
    found = run_ranks(f"{_HERE}:communicator_bytes", payload, ranks=RANKS, timeout_s=_TIMEOUT_S)
    taken = [[before - after for before, after in pairwise(one["free_bytes"])] for one in found]
    if as_json:
        free = [one["free_bytes"] for one in found]
        typer.echo(json.dumps({"communicator_bytes": taken, "free_bytes": free, **found[0]["about"]}))
        return
    for rank, each in enumerate(taken):
        typer.echo(f"rank {rank}: " + ", ".join(f"{size / 2**20:.0f} MiB" for size in each))


if __name__ == "__main__":
    typer.run(communicators_command)
