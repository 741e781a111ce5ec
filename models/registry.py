"""The versions of the pair in one directory, and the pointer to the one in use."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from peakcast.models.artefact import MANIFEST, ArtefactError, Manifest, read_artefact, read_manifest

# The shipped versions. Installed read-only as package data; a deployment keeps its own directory.
PRETRAINED = Path(__file__).parent / "pretrained"
_CURRENT = "current"


@dataclass(frozen=True, slots=True)
class Registry:
    """A directory of artefacts. The file `current` holds the version in use and those before it, newest first.

    `current` is a file and not a link: it survives wheels, zip and Windows, and is replaced atomically.
    """

    root: Path = PRETRAINED

    def versions(self) -> list[Manifest]:
        """Return the manifests there are, oldest first. Folders whose manifest is missing or bad are left out."""
        found = [manifest for manifest in map(_read, self._folders()) if isinstance(manifest, Manifest)]
        return sorted(found, key=lambda manifest: (manifest.created, manifest.version))

    def faults(self) -> list[str]:
        """Say what is wrong with the folders that hold a manifest and are no version for all that."""
        return [str(fault) for fault in map(_read, self._folders()) if isinstance(fault, ArtefactError)]

    def _folders(self) -> list[Path]:
        folders = sorted(self.root.iterdir()) if self.root.is_dir() else []
        return [folder for folder in folders if not folder.name.startswith(".") and (folder / MANIFEST).exists()]

    def history(self) -> list[str]:
        """Return the version in use and those before it, newest first; empty where none was ever promoted."""
        try:
            return (self.root / _CURRENT).read_text(encoding="ascii").split()
        except FileNotFoundError:
            return []

    def current(self) -> Path:
        """Return the folder of the version in use.

        Raises:
            ArtefactError: if none was promoted.
        """
        history = self.history()
        if not history:
            raise ArtefactError(f"no version in use in {self.root}: promote one of {self._names() or 'none'}")
        return self.folder(history[0])

    def folder(self, version: str) -> Path:
        """Return the folder of one version.

        Raises:
            ArtefactError: if there is no such version, the message lists those there are; or if its manifest is bad.
        """
        folder = self.root / version
        if folder not in self._folders():
            raise ArtefactError(
                f"no version {version!r} in {self.root}; there are: {', '.join(self._names()) or 'none'}"
            )
        found = _read(folder)
        if isinstance(found, ArtefactError):
            raise found
        return folder

    def promote(self, version: str) -> Manifest:
        """Put a version in use after checking every file of it."""
        manifest, _ = read_artefact(self.folder(version))
        history = self.history()
        if history[:1] != [version]:
            self._write([version, *history])
        return manifest

    def rollback(self) -> Manifest:
        """Put the version before the current one in use again.

        Raises:
            ArtefactError: if there is none before it.
        """
        history = self.history()
        if len(history) < 2:
            raise ArtefactError(f"nothing to roll back to in {self.root}: {history or 'no version'} is all there was")
        manifest, _ = read_artefact(self.folder(history[1]))
        self._write(history[1:])
        return manifest

    def _names(self) -> list[str]:
        return [manifest.version for manifest in self.versions()]

    def _write(self, history: list[str]) -> None:
        handle, name = tempfile.mkstemp(dir=self.root, prefix=".current-")
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write("\n".join(history) + "\n")
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(self.root / _CURRENT)


def _read(folder: Path) -> Manifest | ArtefactError:
    """Return a version's manifest, or what is wrong with it."""
    try:
        manifest = read_manifest(folder)
    except ArtefactError as error:
        return error
    if manifest.version != folder.name:
        return ArtefactError(f"{folder} holds the version {manifest.version}: a folder is named as its version")
    return manifest
