"""How a checkpoint reaches the disk whole: data into a folder of its own, then one rename that makes it count.

    PATH/checkpoint.json       names the folder in use; replaced atomically
    PATH/data-<nonce>/         tensors and random states of one save

A save killed at any point leaves `checkpoint.json` as it was, and the folder it names untouched. What such a save left
behind is removed by the next one that finishes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
from pathlib import Path
from typing import Final

from peakcast.client.checkpoint.faults import CheckpointError
from peakcast.client.checkpoint.manifest import MANIFEST, FileSpec

_PREFIX: Final = "data-"


def make_folder(path: Path) -> str:
    """Make the folder of one save, and the checkpoint's own around it; return the name of the first.

    Raises:
        CheckpointError: where `path` is a file, or a folder that holds something else.
    """
    if path.exists() and not path.is_dir():
        raise CheckpointError(f"{path} is a file; a checkpoint is a folder")
    path.mkdir(parents=True, exist_ok=True)
    strange = [found.name for found in path.iterdir() if found.name != MANIFEST and not found.name.startswith(_PREFIX)]
    if strange:
        raise CheckpointError(f"{path} holds {min(strange)!r}, which is no checkpoint's; name a folder of its own")
    folder = f"{_PREFIX}{secrets.token_hex(8)}"
    (path / folder).mkdir()
    return folder


def describe(folder: Path, *, part: int = 0, parts: int = 1) -> dict[str, FileSpec]:
    """Return size and hash of every `parts`-th file of a folder, so that ranks can share the reading."""
    mine = sorted(folder.iterdir())[part::parts]
    return {file.name: FileSpec(size_bytes=file.stat().st_size, sha256=sha256_of(file)) for file in mine}


def commit(path: Path, folder: str, manifest: bytes) -> None:
    """Make `folder` the checkpoint's content, and remove what earlier saves left."""
    draft = path / folder / MANIFEST
    draft.write_bytes(manifest)
    for settled in (draft, path / folder, path):
        sync(settled)
    draft.replace(path / MANIFEST)
    sync(path)
    for left in path.glob(f"{_PREFIX}*"):
        if left.name != folder:
            # Gone already, or held by a reader on a file system that minds: the next save tries again.
            shutil.rmtree(left, ignore_errors=True)


def sha256_of(file: Path) -> str:
    """Return the sha256 (hex) of a file."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def fault_of(folder: Path, name: str, stated: FileSpec) -> str | None:
    """Say what is wrong with one file, or nothing."""
    file = folder / name
    try:
        size_bytes = file.stat().st_size
        if size_bytes != stated.size_bytes:
            return f"{file} has {size_bytes} bytes, not {stated.size_bytes}"
        found = sha256_of(file)
    except OSError as error:
        return f"{file}: {error.strerror}"
    return (
        None if found == stated.sha256 else f"{file} has the hash {found[:12]}, not {stated.sha256[:12]} as is stated"
    )


def discard(path: Path, folder: str) -> None:
    """Remove the folder of a save that failed."""
    with contextlib.suppress(OSError):
        shutil.rmtree(path / folder)


def sync(path: Path) -> None:
    """Bring a file or the entries of a folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
