"""The random state of one process: torch on CPU and the current GPU, Python, numpy."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from peakcast.client.checkpoint.manifest import RngSpec
from peakcast.client.checkpoint.tensors import write_whole


def write_rng(folder: Path, rank: int) -> RngSpec:
    """Write this process's random state into a file of its own, and return the rest of it."""
    name = f"rng-{rank:05d}.safetensors"
    version, words, gauss = random.getstate()
    state: dict[str, Any] = np.random.get_state(legacy=False)  # noqa: NPY002
    # Asking an uninitialised CUDA for its state would create a context of half a gigabyte.
    cuda = torch.cuda.is_initialized()
    tensors = {"torch": torch.get_rng_state(), "python": torch.tensor(words, dtype=torch.int64)}
    if cuda:
        tensors["cuda"] = torch.cuda.get_rng_state()
    numpy = None
    # Another generator than numpy's default can be set as the global one; its state has other fields.
    if state["bit_generator"] == "MT19937":
        tensors["numpy"] = torch.from_numpy(state["state"]["key"].astype(np.int64))
        numpy = {
            "pos": int(state["state"]["pos"]),
            "has_gauss": int(state["has_gauss"]),
            "gauss": float(state["gauss"]),
        }
    write_whole(folder, {f"rng/{rank}/{key}": tensor for key, tensor in tensors.items()}, name)
    return RngSpec(file=name, python_version=version, python_gauss=gauss, numpy=numpy, cuda=cuda)


def restore_rng(folder: Path, spec: RngSpec, rank: int) -> None:
    """Set this process's random state to what was written."""
    found: dict[str, Tensor] = load_file(folder / spec.file)
    prefix = f"rng/{rank}/"
    torch.set_rng_state(found[f"{prefix}torch"])
    if spec.cuda and torch.cuda.is_available():
        torch.cuda.set_rng_state(found[f"{prefix}cuda"])
    random.setstate((spec.python_version, tuple(found[f"{prefix}python"].tolist()), spec.python_gauss))
    if spec.numpy is not None:
        key = found[f"{prefix}numpy"].numpy().astype(np.uint32)
        np.random.set_state({**spec.numpy, "bit_generator": "MT19937", "state": {"key": key, "pos": spec.numpy["pos"]}})  # noqa: NPY002
