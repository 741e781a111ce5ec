"""Measure a job in several ranks: one record with the quantities of each, and what communicators take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import distributed

from peakcast.client.measure import measure, settle
from peakcast.training.jobs import Job
from peakcast.training.measure_job import base_record, device, versions
from peakcast.training.ranks import run_ranks
from peakcast.training.zoo import build

# A pool gives a job up after as long; this ends the ranks before it ends their parent.
_TIMEOUT_S: Final = 280.0
_MOST_COMMUNICATORS: Final = 4


def measure_ranks_job(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Measure a job (as `Job.to_dict` wrote it) in as many ranks as its case has, and give its record.

    `measured` holds rank 0's quantities, `ranks` those of all.

    Raises:
        RankError: whatever a rank raised, out of memory apart.
    """
    job = Job.from_dict(fields)
    found = run_ranks(f"{__name__}:measure_rank", job.to_dict(), ranks=job.case.ranks, timeout_s=_TIMEOUT_S)
    peaks = [one.pop("measured") for one in found]
    about = found[0].pop("about")
    return {**base_record(job), **found[0], **about, "measured": peaks[0], "ranks": peaks, "graph_id": None}


def measure_rank(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Measure a job as one rank of the current process group."""
    job = Job.from_dict(fields)
    found = measure(lambda: build(job.case, place=settle), job.plan)
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
