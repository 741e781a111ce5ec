"""Restore a checkpoint into a model under any plan and in any wrapper: all of it, or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from peakcast.client.checkpoint import ranks
from peakcast.client.checkpoint.faults import CheckpointError, Faults, RefusedError
from peakcast.client.checkpoint.manifest import Manifest, TensorSpec, read_manifest
from peakcast.client.checkpoint.names import graph_owned, named_once, tensors_of
from peakcast.client.checkpoint.optimizer_state import Pending, prepare
from peakcast.client.checkpoint.rng import restore_rng
from peakcast.client.checkpoint.tensors import read_into, spec_of
from peakcast.client.checkpoint.verification import file_faults


@dataclass(frozen=True, slots=True)
class Restored:
    """What came out of a checkpoint beside the tensors.

    `plan`, `graph_id` and `eager_fallback_map` are those it was saved under; nothing is compiled by loading. `rng` is
    false where there was no random state for this rank: more ranks than then, or the caller did not want it. `kept`
    are constants of the model's compiled graphs, left as they are.
    """

    plan: str
    graph_id: str | None
    eager_fallback_map: Mapping[str, str]
    extra: Any
    rng: bool
    kept: tuple[str, ...]


def load(path: str | Path, model: nn.Module, optimizer: Optimizer | None = None, *, rng: bool = True) -> Restored:
    """Restore model, optimizer and random state, bit for bit, after everything has been checked.

    The plan and the wrappers may differ from those of the save: tensors are matched by name, filled in place, and
    sharded as the model is. Under a process group every rank calls this, and all load or all refuse.

    Args:
        path: the folder given to `save`.
        model: wrapped or not, compiled or not.
        optimizer: of the same kind and groups; where left out, a state in the checkpoint is passed over.
        rng: set the random state of torch, Python and numpy as well.

    Raises:
        RefusedError: where names, shapes, dtypes or ties differ, with the keys. Only constants of a compiled graph
            itself may be missing on either side.
        CheckpointError: where there is no complete checkpoint, a file is damaged, or no optimizer state was saved.
        ValueError: where the model or optimizer is of a kind that a checkpoint cannot hold.
    """
    path = Path(path)
    rank, world_size = ranks.place()
    plans: list[_Plan] = []

    def check() -> tuple[Faults, list[str]]:
        manifest = read_manifest(path)
        plans.append(_Plan(manifest, model, optimizer))
        return plans[0].faults, file_faults(path, manifest, part=rank, parts=world_size)

    checked = ranks.everyone(check)
    refused = sum((faults for faults, _ in checked), Faults())
    if refused:
        raise RefusedError(str(path), refused)
    damaged = [fault for _, faults in checked for fault in faults]
    if damaged:
        raise CheckpointError(f"{path} is damaged, and nothing was loaded; {'; '.join(damaged)}")
    mine = plans[0]
    folder = path / mine.manifest.folder
    ranks.everyone(lambda: read_into(folder, mine.tensors, alone=world_size == 1))
    if mine.pending is not None:
        mine.pending.apply()
    restores_rng = rng and rank < len(mine.manifest.rng)
    if restores_rng:
        restore_rng(folder, mine.manifest.rng[rank], rank)
    manifest = mine.manifest
    return Restored(
        plan=manifest.plan,
        graph_id=manifest.graph_signature.graph_id,
        eager_fallback_map=manifest.eager_fallback_map,
        extra=manifest.extra,
        rng=restores_rng,
        kept=mine.kept,
    )


class _Plan:
    """What is to be read into which tensor, and what stands against it."""

    def __init__(self, manifest: Manifest, model: nn.Module, optimizer: Optimizer | None) -> None:
        self.manifest = manifest
        signature = manifest.graph_signature
        # A graph's constants are numbered as it was traced: those of another graph are not its own.
        own = graph_owned(model)
        self.kept = tuple(sorted(own))
        named = {name: tensor for name, tensor in tensors_of(model).items() if name not in own}
        once = named_once(named)
        passed_over = own.union(signature.own)
        self.faults = Faults(
            missing=tuple(name for name in named if name not in signature.tensors),
            unexpected=tuple(name for name in signature.tensors if name not in named and name not in passed_over),
            mismatched=(*_unlike(named, signature.tensors), *_tied_otherwise(named, signature.ids)),
        )
        self.tensors = {f"model/{name}": tensor for name, tensor in once.items() if name in signature.tensors}
        self.pending: Pending | None = None
        if optimizer is not None:
            if manifest.optimizer is None:
                raise CheckpointError("the checkpoint holds no optimizer state; load it without the optimizer")
            names = {id(tensor): name for name, tensor in once.items()}
            self.pending, faults = prepare(optimizer, manifest.optimizer, names)
            self.faults += faults
            self.tensors |= self.pending.tensors


def _unlike(named: Mapping[str, Tensor], stored: Mapping[str, TensorSpec]) -> list[str]:
    """Say which tensors have another shape or dtype."""
    pairs = ((name, spec_of(tensor), stored[name]) for name, tensor in named.items() if name in stored)
    return [
        f"{name}: {there.dtype} {there.shape} in the checkpoint, {here.dtype} {here.shape} in the model"
        for name, here, there in pairs
        if here != there
    ]


def _tied_otherwise(named: Mapping[str, Tensor], ids: Mapping[str, int]) -> list[str]:
    """Say which names share a tensor on one side and not on the other."""
    here: dict[int, str] = {}
    there: dict[int, str] = {}
    found = []
    for name in (name for name in named if name in ids):
        first_here = here.setdefault(id(named[name]), name)
        first_there = there.setdefault(ids[name], name)
        if first_here != first_there:
            found.append(f"{name}: {_tie(name, first_there)} in the checkpoint, {_tie(name, first_here)} in the model")
    return found


def _tie(name: str, first: str) -> str:
    return "by itself" if first == name else f"tied to {first}"
