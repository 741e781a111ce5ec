"""Save a model, its optimizer and the random state, so that they can go on under another plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import torch
from torch import nn
from torch.optim import Optimizer

from peakcast._version import __version__
from peakcast.client.checkpoint import files, ranks
from peakcast.client.checkpoint.faults import CheckpointError
from peakcast.client.checkpoint.manifest import (
    SCHEMA,
    FileSpec,
    GraphSignature,
    Manifest,
    OptimizerSpec,
    RngSpec,
    canonical_sha256,
)
from peakcast.client.checkpoint.names import fallback_map, graph_owned, named_once, tensor_ids, tensors_of
from peakcast.client.checkpoint.optimizer_state import collect
from peakcast.client.checkpoint.rng import write_rng
from peakcast.client.checkpoint.tensors import is_sharded, spec_of, write_shards, write_whole
from peakcast.featurizer.plans import parse_plan


def save(
    path: str | Path,
    model: nn.Module,
    optimizer: Optimizer | None = None,
    *,
    plan: str,
    graph_id: str | None = None,
    extra: Any = None,
) -> None:
    """Write a checkpoint to the folder `path`, whole or not at all; one that is there before is replaced.

    Save between two steps: gradients are not kept. Under a process group every rank calls this; whole tensors are
    written by rank 0, sharded ones by every rank, into a folder that all of them see.

    Args:
        path: a folder of the checkpoint's own; made where it is missing.
        model: wrapped or not, compiled or not.
        optimizer: its state goes along, where given.
        plan: the plan the model runs under, such as `hybrid`.
        graph_id: the id of its captured graph, kept beside the names.
        extra: a JSON value of the caller's: step number, `scheduler.state_dict()`, `scaler.state_dict()`.

    Raises:
        ValueError: for an unknown plan, or state that a checkpoint cannot hold, named.
        CheckpointError: where `path` cannot be written, or another rank could not.
    """
    path = Path(path)
    rank, world_size = ranks.place()
    drafts: list[_Draft] = []

    def draft() -> str:
        drafts.append(_Draft(model, optimizer, plan=plan, graph_id=graph_id, extra=extra))
        return drafts[0].likeness()

    if len(set(ranks.everyone(draft))) > 1:
        raise CheckpointError("the ranks hold different tensors, and one checkpoint would not hold them all")
    mine = drafts[0]
    folder = ranks.everyone(lambda: files.make_folder(path) if rank == 0 else "")[0]
    try:
        rng = ranks.everyone(lambda: mine.write(path / folder, rank))
        parts = ranks.everyone(lambda: files.describe(path / folder, part=rank, parts=world_size))
        described = {name: spec for part in parts for name, spec in part.items()}
        ranks.everyone(lambda: files.commit(path, folder, mine.manifest(folder, described, rng)) if rank == 0 else None)
    except BaseException:
        if rank == 0:
            files.discard(path, folder)
        raise


class _Draft:
    """What one rank is about to write."""

    def __init__(
        self, model: nn.Module, optimizer: Optimizer | None, *, plan: str, graph_id: str | None, extra: Any
    ) -> None:
        self.plan = parse_plan(plan).name
        self.extra = _json(extra)
        self.fallback = fallback_map(model)
        named = tensors_of(model)
        once = named_once(named)
        self.signature = GraphSignature(
            graph_id=graph_id,
            tensors={name: spec_of(tensor) for name, tensor in named.items()},
            ids=tensor_ids(named),
            own=sorted(graph_owned(model)),
        )
        self.tensors = {f"model/{name}": tensor for name, tensor in once.items()}
        self.optimizer: OptimizerSpec | None = None
        if optimizer is not None:
            self.optimizer, state = collect(optimizer, {id(tensor): name for name, tensor in once.items()})
            self.tensors |= state
        self.sharded = is_sharded(self.tensors)

    def likeness(self) -> str:
        """Return a hash of what every rank must have alike: of an optimizer that is spread over ranks they have not."""
        optimizer = self.optimizer.model_dump() if self.optimizer else None
        return canonical_sha256({"signature": self.signature.model_dump(), "optimizer": optimizer})

    def write(self, folder: Path, rank: int) -> RngSpec:
        """Write what is this rank's to write."""
        if self.sharded:
            write_shards(folder, self.tensors)
        elif rank == 0:
            write_whole(folder, self.tensors)
        return write_rng(folder, rank)

    def manifest(self, folder: str, described: dict[str, FileSpec], rng: list[RngSpec]) -> bytes:
        """Return the manifest as indented JSON."""
        manifest = Manifest(
            schema=SCHEMA,
            peakcast=__version__,
            torch=torch.__version__,
            plan=self.plan,
            sharded=self.sharded,
            world_size=len(rng),
            folder=folder,
            files=described,
            graph_signature=self.signature,
            graph_signature_sha256=canonical_sha256(self.signature.model_dump()),
            eager_fallback_map=self.fallback,
            eager_fallback_map_sha256=canonical_sha256(self.fallback),
            optimizer=self.optimizer,
            rng=rng,
            extra=self.extra,
        )
        return orjson.dumps(manifest.model_dump(by_alias=True), option=orjson.OPT_INDENT_2)


def _json(extra: Any) -> Any:
    """Return a JSON value, once it is known to come back as it went."""
    try:
        back = orjson.loads(orjson.dumps(extra))
    except TypeError as error:
        raise ValueError(f"extra must be a JSON value: {error}") from error
    if back != extra:
        raise ValueError("extra must be a JSON value that reads back as it was: no tuples, no inf, no nan")
    return extra
