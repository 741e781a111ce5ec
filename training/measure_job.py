"""Run one job in this process and give its record. This is what the workers of a collection do on a GPU."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from peakcast.client.guard.memory_facts import allocator_settings
from peakcast.client.measure import measure, settle
from peakcast.training.jobs import Job
from peakcast.training.zoo import build, entry


def measure_job(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Measure a job (as `Job.to_dict` wrote it) and give its record.

    Raises:
        NoGpuError: without a CUDA device.
        ValueError: if this process runs under another allocator configuration than the job's.
        Exception: whatever building or running the case raised, out of memory apart.
    """
    job = Job.from_dict(fields)
    here = allocator_settings()
    if job.case.allocator != here:
        raise ValueError(f"the job is to run under the allocator settings {job.case.allocator!r}, here are {here!r}")
    found = measure(lambda: build(job.case, place=settle), job.plan, bisect=job.bisect)
    return {**base_record(job), **found.to_dict(), "device": device(), "versions": versions(), "graph_id": None}


def base_record(job: Job) -> dict[str, Any]:
    """Give the fields of a record that do not need a measurement."""
    return {
        "key": job.key,
        "architecture": entry(job.case.model).architecture,
        "case": job.case.to_dict(),
        "run": job.case.run(),
        "plan": job.plan,
        "source": "measured",
        "alone": job.alone,
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


@cache
def device() -> dict[str, Any]:
    """Name the card of this process."""
    properties = torch.cuda.get_device_properties(0)
    return {"name": properties.name, "total_bytes": int(properties.total_memory)}


@cache
def versions() -> dict[str, str]:
    """Give the versions that a peak can depend on."""
    found = {"torch": torch.__version__, "cuda": str(torch.version.cuda), "cudnn": str(torch.backends.cudnn.version())}
    for name in ("transformers", "timm", "torchvision", "triton"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    found["driver"] = _driver()
    return found


def _driver() -> str:
    """Read the driver's version from NVML, else from the kernel module's page."""
    try:
        import pynvml

        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
        return version.decode() if isinstance(version, bytes) else str(version)
    except Exception:  # noqa: BLE001 - a label, not worth failing a measurement for
        page = Path("/proc/driver/nvidia/version")
        return page.read_text().splitlines()[0] if page.exists() else "unknown"
