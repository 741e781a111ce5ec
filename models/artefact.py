"""A trained pair on disk: plain files and a manifest with the sha256 of each, checked before any is read."""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from peakcast.models.heads import HEADS

MANIFEST = "manifest.json"
# 2: bounds rest on the learned excess, and tables tell what architectures left out miss; 1 had neither.
FORMAT = 2
# Only a pair that was adapted to another card, torch, allocator or precision has one.
ADAPTATION_FILE = "adaptation.json"
# What a pair consists of, no more and no less.
PAIR_FILES = frozenset(
    {
        *(f"{name}.txt" for name in (*HEADS, "spread")),
        *(f"{name}.json" for name in ("blend", "calibration", "coverage", "lstm", "trees")),
        "lstm.safetensors",
    }
)

# One path segment, no leading dot: no traversal, no hidden files, the same on every file system.
_SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
# The shipped pair is under 5 MB. A manifest that asks for more is not one of ours.
MAX_FILE_BYTES = 256 << 20


class ArtefactError(ValueError):
    """An artefact that must not be used: missing, altered, of another format, or with unsafe file names."""


class Lineage(BaseModel):
    """What a version was made from, beyond its data's hash."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    parent: str | None = None  # the version in use when it was fitted, or that it adapts
    records: int
    architectures: int
    origins: dict[str, int]  # records measured, reported, replayed
    held_out: list[str] = []  # architectures no part of it ever saw: the frozen test split
    settings: dict[str, Any]


class Manifest(BaseModel):
    """What an artefact is and what made it. `version` is derived from the content: equal content, equal version."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: int
    version: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$")
    created: str  # ISO 8601; the newest label's date where the corpus tells, so that a refit is the same to the bit
    data_sha256: str
    code_version: str
    seed: int
    libraries: dict[str, str]
    sha256: dict[str, str]  # of every file but the manifest
    lineage: Lineage | None = None  # versions before 0.2 have none


def content_version(files: Mapping[str, bytes], data_sha256: str) -> str:
    """Return `pair-<12 hex digits>` of the files' names and contents and of the data they were fitted on."""
    return _version(_digests(files), data_sha256)


def _digests(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(files[name]).hexdigest() for name in sorted(files)}


def _version(sha256: Mapping[str, str], data_sha256: str) -> str:
    digest = hashlib.sha256(data_sha256.encode())
    for name in sorted(sha256):
        digest.update(f"\n{name}\n{sha256[name]}".encode())
    return f"pair-{digest.hexdigest()[:12]}"


def write_artefact(folder: Path, files: Mapping[str, bytes], about: Mapping[str, Any]) -> Manifest:
    """Write the files and their manifest into `folder`, which appears whole or not at all.

    Args:
        folder: replaced if it exists.
        files: name -> content.
        about: the manifest's created, data_sha256, code_version, seed, libraries and lineage.

    Raises:
        ArtefactError: if a file name is not one plain path segment, or the files are not those of a pair.
    """
    _check_names(files, "the artefact")
    manifest = Manifest(
        format=FORMAT,
        version=content_version(files, about["data_sha256"]),
        sha256=_digests(files),
        **about,
    )
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".writing-", dir=folder.parent))
    try:
        staging.chmod(0o755)
        for name, content in files.items():
            (staging / name).write_bytes(content)
        text = orjson.dumps(manifest.model_dump(), option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
        (staging / MANIFEST).write_bytes(text + b"\n")
        if folder.exists():
            shutil.rmtree(folder)
        staging.replace(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """Read and check a manifest.

    Raises:
        ArtefactError: if it is missing, malformed, of another format, names other files than a pair's, or its version
            is not that of what it names.
    """
    path = folder / MANIFEST
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ArtefactError(f"no artefact at {folder}: {MANIFEST} cannot be read ({error.strerror})") from error
    try:
        manifest = Manifest.model_validate(orjson.loads(content))
    except orjson.JSONDecodeError as error:
        raise ArtefactError(f"{path}: manifest is not JSON: {error}") from error
    except ValidationError as error:
        raise ArtefactError(f"{path} is not a manifest: {_first_problem(error)}") from error
    if manifest.format != FORMAT:
        raise ArtefactError(
            f"{folder} has format {manifest.format}; this version reads format {FORMAT}: fit it anew (peakcast train)"
        )
    _check_names(manifest.sha256, f"{path}: manifest")
    version = _version(manifest.sha256, manifest.data_sha256)
    if version != manifest.version:
        raise ArtefactError(f"{path} was altered: it says {manifest.version}, what it names is {version}")
    return manifest


def read_artefact(folder: Path) -> tuple[Manifest, dict[str, bytes]]:
    """Return the manifest and every file it names, each checked against its sha256.

    Raises:
        ArtefactError: as `read_manifest`; or if a file is missing, a link, too large, or not what was written.
    """
    manifest = read_manifest(folder)
    return manifest, {name: _read_checked(folder / name, digest) for name, digest in manifest.sha256.items()}


def _read_checked(path: Path, sha256: str) -> bytes:
    if path.is_symlink() or not path.is_file():
        raise ArtefactError(f"{path} is missing or not a plain file")
    if path.stat().st_size > MAX_FILE_BYTES:
        raise ArtefactError(f"{path} has {path.stat().st_size} bytes; an artefact's file has at most {MAX_FILE_BYTES}")
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise ArtefactError(f"{path} was altered: its sha256 is {found}, the manifest says {sha256}")
    return content


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}" if place else first["msg"]


def _check_names(names: Iterable[str], what: str) -> None:
    found = set(names)
    for name in sorted(found):
        if "/" in name or "\\" in name or name == "..":
            raise ArtefactError(f"{what} names a path outside the version: {name}")
        if not _SAFE_NAME.fullmatch(name) or name == MANIFEST:
            raise ArtefactError(f"{what} names an unsafe file: {name!r}; one plain path segment is allowed")
    if missing := sorted(PAIR_FILES - found):
        raise ArtefactError(f"{what} lacks {', '.join(missing)}")
    if foreign := sorted(found - PAIR_FILES - {ADAPTATION_FILE}):
        raise ArtefactError(f"{what} names {', '.join(foreign)}, which no pair has")
