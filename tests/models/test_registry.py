"""The registry lists versions, puts one in use, and goes back to the one before."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
import pytest

from peakcast.models.artefact import PAIR_FILES, ArtefactError, content_version, write_artefact
from peakcast.models.registry import Registry


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """Return a registry of two versions, the second a month younger."""
    for month, content in ((1, b"first"), (2, b"second")):
        about = {"created": f"2026-0{month}-01", "data_sha256": "", "code_version": "1", "seed": 0, "libraries": {}}
        files = {**dict.fromkeys(PAIR_FILES, b""), "spread.txt": content}
        write_artefact(tmp_path / content_version(files, ""), files, about)
    return Registry(tmp_path)


def names(registry: Registry) -> list[str]:
    """Return the versions, oldest first."""
    return [manifest.version for manifest in registry.versions()]


def test_lists_oldest_first(registry: Registry) -> None:
    """Versions come in the order they were made; stray files and folders are left out."""
    (registry.root / "stray").mkdir()
    (registry.root / "notes.txt").write_text("hello")
    assert [manifest.created for manifest in registry.versions()] == ["2026-01-01", "2026-02-01"]


def test_promote_and_rollback(registry: Registry) -> None:
    """Promoting puts a version in use, rolling back the one before it."""
    first, second = names(registry)
    registry.promote(first)
    registry.promote(second)
    assert registry.current() == registry.root / second
    assert registry.rollback().version == first
    assert registry.current() == registry.root / first
    with pytest.raises(ArtefactError, match="nothing to roll back to"):
        registry.rollback()


def test_promoting_twice_is_one_step(registry: Registry) -> None:
    """Promoting what is in use leaves the history alone, so that a rollback still goes back."""
    first, second = names(registry)
    for version in (first, second, second):
        registry.promote(version)
    assert registry.rollback().version == first


def test_an_altered_version_is_not_promoted(registry: Registry) -> None:
    """What fails its check never comes into use."""
    first, second = names(registry)
    registry.promote(first)
    (registry.root / second / "spread.txt").write_bytes(b"sEcond")
    with pytest.raises(ArtefactError, match="altered"):
        registry.promote(second)
    assert registry.current().name == first


@pytest.mark.parametrize("version", ["nothing", "../elsewhere", "", "."])
def test_unknown_version_lists_those_there_are(registry: Registry, version: str) -> None:
    """A name that is no version is refused with the names that are."""
    with pytest.raises(ArtefactError, match=names(registry)[0]):
        registry.folder(version)


def test_nothing_in_use(registry: Registry) -> None:
    """Before the first promotion there is no current version."""
    with pytest.raises(ArtefactError, match="no version in use"):
        registry.current()


def test_a_bad_manifest_is_said_to_be_bad(registry: Registry) -> None:
    """What is wrong with a version that is there is said, not that it is missing; the list leaves it out."""
    first, second = names(registry)
    manifest = registry.root / first / "manifest.json"
    whole = orjson.loads(manifest.read_bytes())
    for content, problem in (
        (b"{", "manifest is not JSON"),
        (
            orjson.dumps({**whole, "sha256": {"../evil.txt": ""}}),
            r"manifest names a path outside the version: \.\./evil",
        ),
        (orjson.dumps({**whole, "version": second}), "was altered"),
    ):
        manifest.write_bytes(content)
        assert names(registry) == [second]
        with pytest.raises(ArtefactError, match=problem):
            registry.promote(first)
        assert [re.search(problem, fault) is not None for fault in registry.faults()] == [True]


def test_a_renamed_folder_is_said(registry: Registry) -> None:
    """A folder that is not named as its version is no version, and says so."""
    first, second = names(registry)
    (registry.root / first).rename(registry.root / "mine")
    assert names(registry) == [second]
    with pytest.raises(ArtefactError, match=f"mine holds the version {first}"):
        registry.folder("mine")
    with pytest.raises(ArtefactError, match=f"no version '{first}'"):
        registry.folder(first)
