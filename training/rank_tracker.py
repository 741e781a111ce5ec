"""What torch's own estimators say of a spread model, to be put beside what was measured: private there, so guarded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves

from peakcast.client.measure import clean, settle
from peakcast.featurizer.capture.workload import Workload
from peakcast.training.jobs import Job
from peakcast.training.zoo import build

# As a steady peak needs: the first step makes the optimizer's state.
_STEPS: Final = 2


def track_rank(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Run an eager job (as `Job.to_dict` wrote it) afresh as one rank, under torch's tracker, and give its peak.

    Raises:
        Exception: whatever the tracker, or a torch without it, raises.
    """
    job = Job.from_dict(fields)
    torch.manual_seed(0)
    with torch.device("cuda"):
        workload = build(job.case, place=settle)
    found = tracked_peak_bytes(workload)
    del workload
    clean()
    return {"tracker_bytes": found}


def tracked_peak_bytes(workload: Workload) -> int:
    """Give the peak over two steps on the model's device: FSDPMemTracker's for FSDP2, MemTracker's for all else."""
    from torch.distributed.fsdp import FSDPModule

    assert workload.model is not None
    tensors = [leaf for leaf in tree_leaves(workload.inputs) if isinstance(leaf, torch.Tensor)]
    tracker: Any
    if isinstance(workload.model, FSDPModule):
        from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker

        tracker = FSDPMemTracker(workload.model, workload.optimizer)
        tracker.track_inputs(tuple(tensors))
    else:
        from torch.distributed._tools.mem_tracker import MemTracker

        tracker = MemTracker()
        tracker.track_external(workload.model, workload.optimizer, *tensors)
    kind = next(workload.model.parameters()).device.type
    with tracker:
        for _ in range(_STEPS):
            workload.run()
            tracker.reset_mod_stats()  # else it refuses the second step
    peaks = tracker.get_tracker_snapshot("peak")
    return int(sum(snapshot["Total"] for device, snapshot in peaks.items() if device.type == kind))
