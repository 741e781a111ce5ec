"""An artefact is loaded only as it was written: altered, missing, linked or path-escaping files are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from peakcast.models.artefact import (
    FORMAT,
    PAIR_FILES,
    ArtefactError,
    Manifest,
    content_version,
    read_artefact,
    write_artefact,
)
from peakcast.models.registry import Registry

ABOUT: dict[str, Any] = {
    "created": "2026-01-01",
    "data_sha256": "ab" * 32,
    "code_version": "0.1",
    "seed": 0,
    "libraries": {"numpy": "2"},
}
FILES = {**{name: name.encode() for name in sorted(PAIR_FILES)}, "spread.txt": b"tree", "lstm.json": b"{}"}


def write(folder: Path) -> Manifest:
    """Write the sample files."""
    return write_artefact(folder, FILES, ABOUT)


def rewrite_manifest(folder: Path, **changed: object) -> None:
    """Change fields of a manifest behind its back."""
    path = folder / "manifest.json"
    path.write_bytes(orjson.dumps({**orjson.loads(path.read_bytes()), **changed}))


def test_reads_back_what_was_written(tmp_path: Path) -> None:
    """Files and manifest come back equal."""
    written = write(tmp_path / "one")
    manifest, files = read_artefact(tmp_path / "one")
    assert manifest == written
    assert files == FILES


def test_version_follows_the_content(tmp_path: Path) -> None:
    """Equal content has one version, wherever and whenever it was written; a changed byte has another."""
    first = write(tmp_path / "one")
    again = write_artefact(tmp_path / "two", FILES, {**ABOUT, "created": "2027-12-31"})
    assert first.version == again.version == content_version(FILES, ABOUT["data_sha256"])
    assert content_version({**FILES, "lstm.json": b"{ }"}, ABOUT["data_sha256"]) != first.version


def test_refuses_an_altered_file(tmp_path: Path) -> None:
    """One changed byte, the same length, is found."""
    write(tmp_path / "one")
    (tmp_path / "one" / "spread.txt").write_bytes(b"treE")
    with pytest.raises(ArtefactError, match="was altered"):
        read_artefact(tmp_path / "one")


def test_refuses_a_missing_file(tmp_path: Path) -> None:
    """A file the manifest names must be there."""
    write(tmp_path / "one")
    (tmp_path / "one" / "spread.txt").unlink()
    with pytest.raises(ArtefactError, match="missing"):
        read_artefact(tmp_path / "one")


def test_refuses_a_link(tmp_path: Path) -> None:
    """A link to the right content is no plain file."""
    write(tmp_path / "one")
    outside = tmp_path / "outside"
    outside.write_bytes(b"tree")
    (tmp_path / "one" / "spread.txt").unlink()
    (tmp_path / "one" / "spread.txt").symlink_to(outside)
    with pytest.raises(ArtefactError, match="plain file"):
        read_artefact(tmp_path / "one")


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/b", "..", ".hidden", "manifest.json", "", "a\\b"])
def test_refuses_names_that_leave_the_folder(tmp_path: Path, name: str) -> None:
    """Neither reading nor writing follows a name out of the folder."""
    write(tmp_path / "one")
    rewrite_manifest(tmp_path / "one", sha256={name: "0" * 64})
    with pytest.raises(ArtefactError, match=r"names (an unsafe file|a path outside the version): "):
        read_artefact(tmp_path / "one")
    with pytest.raises(ArtefactError, match=r"names (an unsafe file|a path outside the version): "):
        write_artefact(tmp_path / "two", {name: b""}, ABOUT)


def test_the_shipped_pair_has_the_files_of_a_pair() -> None:
    """Nothing is missing from it or foreign in it, and its version is that of its content."""
    shipped = Registry().current()
    manifest, files = read_artefact(shipped)
    assert set(files) == PAIR_FILES
    assert manifest.version == shipped.name == content_version(files, manifest.data_sha256)


def test_names_exactly_the_files_of_a_pair(tmp_path: Path) -> None:
    """A file too few or too many is said by name, in reading and in writing."""
    write(tmp_path / "one")
    digests = orjson.loads((tmp_path / "one" / "manifest.json").read_bytes())["sha256"]
    fewer = {name: digest for name, digest in digests.items() if name != "blend.json"}
    rewrite_manifest(tmp_path / "one", sha256=fewer)
    with pytest.raises(ArtefactError, match=r"manifest lacks blend\.json"):
        read_artefact(tmp_path / "one")
    rewrite_manifest(tmp_path / "one", sha256={**digests, "more.txt": "0" * 64})
    with pytest.raises(ArtefactError, match=r"manifest names more\.txt, which no pair has"):
        read_artefact(tmp_path / "one")
    with pytest.raises(ArtefactError, match=r"lacks .*blend\.json"):
        write_artefact(tmp_path / "two", {"spread.txt": b"tree"}, ABOUT)


def test_version_covers_the_manifest(tmp_path: Path) -> None:
    """A file and its sha256 changed together, or the data named differently, no longer fit the version."""
    write(tmp_path / "one")
    rewrite_manifest(tmp_path / "one", data_sha256="cd" * 32)
    with pytest.raises(ArtefactError, match=r"manifest\.json was altered"):
        read_artefact(tmp_path / "one")


@pytest.mark.parametrize("other", [FORMAT - 1, 99])
def test_refuses_another_format(tmp_path: Path, other: int) -> None:
    """A format of the future is not guessed at, nor are bounds of the past read as those of today."""
    write(tmp_path / "one")
    rewrite_manifest(tmp_path / "one", format=other)
    with pytest.raises(ArtefactError, match=f"format {other}; .* fit it anew"):
        read_artefact(tmp_path / "one")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "manifest is not JSON"),
        (b'{"format": 1', "manifest is not JSON"),
        (b"\xff", "manifest is not JSON"),
        (b"[]", "is not a manifest"),
        (b"{}", "is not a manifest: format: Field required"),
        (b'{"format": 1, "version": "../up"}', "is not a manifest: version: "),
    ],
)
def test_refuses_what_is_no_manifest(tmp_path: Path, text: bytes, problem: str) -> None:
    """Garbage in place of the manifest is an artefact error, not a crash."""
    write(tmp_path / "one")
    (tmp_path / "one" / "manifest.json").write_bytes(text)
    with pytest.raises(ArtefactError, match=problem):
        read_artefact(tmp_path / "one")


def test_refuses_a_folder_without_one(tmp_path: Path) -> None:
    """An empty folder says that there is no artefact."""
    with pytest.raises(ArtefactError, match="no artefact"):
        read_artefact(tmp_path)


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    """Half an artefact never appears, nor does its scaffolding."""
    with pytest.raises(TypeError):
        write_artefact(tmp_path / "one", {**FILES, "spread.txt": "text, not bytes"}, ABOUT)  # type: ignore[dict-item]
    assert list(tmp_path.iterdir()) == []
