"""Check a checkpoint on the disk: every file there, of the size and hash that its manifest states."""

from __future__ import annotations

from pathlib import Path

from peakcast.client.checkpoint.files import fault_of
from peakcast.client.checkpoint.manifest import Manifest, read_manifest


def verify(path: str | Path) -> list[str]:
    """Return what is wrong with the files of a checkpoint, in words; an empty list where all is well.

    Raises:
        CheckpointError: where there is no complete checkpoint, or its manifest is damaged.
    """
    return file_faults(Path(path), read_manifest(path))


def file_faults(path: Path, manifest: Manifest, *, part: int = 0, parts: int = 1) -> list[str]:
    """Check every `parts`-th file, so that ranks can share the reading."""
    folder = path / manifest.folder
    mine = sorted(manifest.files)[part::parts]
    return [fault for name in mine if (fault := fault_of(folder, name, manifest.files[name])) is not None]
