"""Tensors to and from a folder of safetensors files: whole by one rank, or by shards through torch's own checkpoints.

Nothing is pickled: torch.distributed.checkpoint's own metadata would be, so its safetensors format is used, where each
file says in its header which part of which tensor it holds. Both kinds of file are read by the same reader, into
tensors that are whole or sharded in any way, on any number of ranks.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.tensor import DTensor

from peakcast.client.checkpoint.faults import CheckpointError
from peakcast.client.checkpoint.files import sync
from peakcast.client.checkpoint.manifest import TensorSpec

_WHOLE = "tensors.safetensors"


def spec_of(tensor: Tensor) -> TensorSpec:
    """Describe a tensor; of a sharded one the whole."""
    return TensorSpec(shape=list(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."))


def dtype_of(spec: TensorSpec) -> torch.dtype:
    """Return the dtype a spec names; CheckpointError where this torch has none of that name."""
    found = getattr(torch, spec.dtype, None)
    if not isinstance(found, torch.dtype):
        raise CheckpointError(f"torch {torch.__version__} has no dtype {spec.dtype[:40]!a}")
    return found


def is_sharded(tensors: Mapping[str, Tensor]) -> bool:
    """Tell whether any of the tensors is a part of one that is spread over ranks."""
    return any(isinstance(tensor, DTensor) for tensor in tensors.values())


def write_whole(folder: Path, tensors: Mapping[str, Tensor], name: str = _WHOLE) -> None:
    """Write tensors into one file. Those that share memory, or have gaps, are copied first."""
    apart: dict[str, Tensor] = {}
    seen: set[int] = set()
    for key, tensor in tensors.items():
        flat = tensor.detach().contiguous()
        start = flat.untyped_storage().data_ptr()
        apart[key] = flat.clone() if start in seen else flat
        seen.add(start)
    save_file(apart, folder / name)
    sync(folder / name)


def write_shards(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write each rank's shards into a file of its own, what all ranks have alike once. All ranks call it together."""
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    state_dict_saver.save({key: tensor.detach() for key, tensor in tensors.items()}, storage_writer=writer)


def read_into(folder: Path, tensors: Mapping[str, Tensor], *, alone: bool) -> None:
    """Fill tensors in place, from files of either kind. `alone`: this process has no group to read with."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        reader = HuggingFaceStorageReader(str(folder))
        state_dict_loader.load(dict(tensors), storage_reader=reader, no_dist=alone)
