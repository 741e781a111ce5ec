"""The description of a checkpoint, `checkpoint.json`: what it holds, under which names, with the hash of everything.

Without torch, so that a checkpoint can be shown and verified where none is installed.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from peakcast.client.checkpoint.faults import CheckpointError

MANIFEST: Final = "checkpoint.json"
SCHEMA: Final = 1
# Names and hashes of a hundred thousand tensors; more is no manifest.
_MAX_BYTES: Final = 256 << 20

_STRICT: Final = ConfigDict(extra="forbid", frozen=True, strict=True)
# One component of a path, so that nothing outside the checkpoint's own folder can be named.
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class TensorSpec(BaseModel):
    """One tensor: its shape, and its dtype as torch names it, without `torch.`."""

    model_config = _STRICT
    shape: list[int]
    dtype: str


class GraphSignature(BaseModel):
    """What the model's graph is made of: every tensor under its symbolic name, and the graph's id where one is known.

    `ids` maps symbolic names to tensor ids; tied weights are names of one id. `own` are the names that belong to a
    compiled graph alone, and so may be missing elsewhere.
    """

    model_config = _STRICT
    graph_id: str | None
    tensors: dict[str, TensorSpec]
    ids: dict[str, int]
    own: list[str]

    @property
    def names(self) -> dict[int, list[str]]:
        """Return the symbolic names of each tensor id: the way back from `ids`."""
        found: defaultdict[int, list[str]] = defaultdict(list)
        for name, number in self.ids.items():
            found[number].append(name)
        return dict(found)


class FileSpec(BaseModel):
    """One file of the checkpoint."""

    model_config = _STRICT
    size_bytes: int
    sha256: Sha256


class GroupSpec(BaseModel):
    """One parameter group: names of its parameters, options as JSON, and those options that are tensors."""

    model_config = _STRICT
    params: list[str]
    options: dict[str, JsonValue]
    tensors: dict[str, TensorSpec]


class OptimizerSpec(BaseModel):
    """An optimizer's groups and states, by the names of its parameters.

    `groups`: of each group the names of its `params` and its `options`. `states`: per parameter the tensors it has
    beside it; `values` the states that are no tensors.
    """

    model_config = _STRICT
    kind: str
    groups: list[GroupSpec]
    states: dict[str, dict[str, TensorSpec]]
    values: dict[str, dict[str, JsonValue]]


class RngSpec(BaseModel):
    """What of one rank's random state is no tensor."""

    model_config = _STRICT
    file: FileName
    python_version: int
    python_gauss: float | None
    numpy: dict[str, JsonValue] | None
    cuda: bool


class Manifest(BaseModel):
    """One checkpoint. The hashes of signature and map are those of their canonical JSON, and are checked on reading."""

    model_config = _STRICT
    schema_version: int = Field(alias="schema", ge=SCHEMA, le=SCHEMA)
    peakcast: str
    torch: str
    plan: str
    sharded: bool
    world_size: int = Field(ge=1)
    folder: FileName
    files: dict[FileName, FileSpec]
    graph_signature: GraphSignature
    graph_signature_sha256: Sha256
    eager_fallback_map: dict[str, str]
    eager_fallback_map_sha256: Sha256
    optimizer: OptimizerSpec | None
    rng: list[RngSpec]
    extra: JsonValue

    @model_validator(mode="after")
    def _check(self) -> Self:
        signature, fallback = self.graph_signature.model_dump(), self.eager_fallback_map
        for name, found, stated in (
            ("graph_signature", canonical_sha256(signature), self.graph_signature_sha256),
            ("eager_fallback_map", canonical_sha256(fallback), self.eager_fallback_map_sha256),
        ):
            if found != stated:
                raise ValueError(f"{name} has the hash {found[:12]}, not {stated[:12]} as is stated")
        if set(self.graph_signature.ids) != set(self.graph_signature.tensors):
            raise ValueError("graph_signature names tensors without an id, or ids without a tensor")
        return self


def canonical_sha256(document: Mapping[str, Any]) -> str:
    """Return the sha256 (hex) of a document's canonical JSON: keys sorted, no spaces."""
    return hashlib.sha256(orjson.dumps(document, option=orjson.OPT_SORT_KEYS)).hexdigest()


def read_manifest(path: str | Path) -> Manifest:
    """Read and check the manifest of the checkpoint at `path`, without its tensors.

    Raises:
        CheckpointError: where there is no complete checkpoint, or its manifest is damaged or of another schema.
    """
    file = Path(path) / MANIFEST
    try:
        size_bytes = file.stat().st_size
        if size_bytes > _MAX_BYTES:
            raise CheckpointError(f"{file} has {size_bytes} bytes, more than the {_MAX_BYTES} a manifest may have")
        return Manifest.model_validate_json(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(f"{path} holds no complete checkpoint: there is no {MANIFEST}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"][:4])) or "the document"
        raise CheckpointError(f"{file} is damaged: {where}: {first['msg']}") from error
