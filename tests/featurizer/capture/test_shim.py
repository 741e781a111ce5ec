"""The fake CUDA device: built once with the host's compiler; without one the trace is the CPU's, and says so."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from captured import WORKLOADS, Captured, sizes

from peakcast.featurizer.capture import CaptureError, capture_workload, shim
from peakcast.featurizer.vocabulary import GRADIENT, INPUT, OPTIMIZER_STATE, PARAMETER


@pytest.fixture
def bare_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a host with an empty cache and no compiler on its path."""
    monkeypatch.setenv("PEAKCAST_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    return tmp_path


def test_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own variable, then XDG's, then the home folder."""
    monkeypatch.setenv("PEAKCAST_CACHE_DIR", "/one")
    monkeypatch.setenv("XDG_CACHE_HOME", "/two")
    monkeypatch.setenv("HOME", "/three")
    assert shim.cache_dir() == Path("/one")
    monkeypatch.delenv("PEAKCAST_CACHE_DIR")
    assert shim.cache_dir() == Path("/two/peakcast")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert shim.cache_dir() == Path("/three/.cache/peakcast")


@pytest.mark.usefixtures("bare_host")
def test_no_compiler() -> None:
    """The message names what is missing, and the variable that helps."""
    with pytest.raises(shim.ShimUnavailable, match=r"no C\+\+ compiler found .*set CXX"):
        shim.build()


def test_a_compiler_that_fails(bare_host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own words are passed on, and nothing is left in the cache."""
    compiler = bare_host / "broken"
    compiler.write_text("#!/bin/sh\necho 'fatal: no headers' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(shim.ShimUnavailable, match="building the fake CUDA device failed: fatal: no headers"):
        shim.build()
    assert list((bare_host / "cache").iterdir()) == []


def test_a_compiler_that_is_not_there(bare_host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CXX names no file."""
    monkeypatch.setenv("CXX", str(bare_host / "nothing"))
    with pytest.raises(shim.ShimUnavailable, match="building the fake CUDA device failed"):
        shim.build()


def test_a_built_library_needs_no_compiler(bare_host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is built once for a torch version; a compiler that only writes its output shows how often."""
    compiler = bare_host / "writes"
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != "-o" ]; do shift; done\necho library > "$2"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    library = shim.build()
    assert library.parent == bare_host / "cache"
    assert library.read_text() == "library\n"
    compiler.unlink()
    assert shim.build() == library


def test_torch_must_come_after() -> None:
    """In a process that has torch it is too late."""
    assert "torch" in sys.modules
    with pytest.raises(shim.ShimUnavailable, match="before torch is imported"):
        shim.load()


@pytest.mark.usefixtures("bare_host")
def test_without_a_compiler_the_cpu_stands_for_the_gpu(captured: Captured) -> None:
    """The trace is marked, and what it counts as the GPU's has the bytes of the one traced as CUDA."""
    spec = capture_workload(f"{WORKLOADS}:adam", plans=["eager"])
    assert spec.captured_with["traced_on"] == "cpu"
    for role in (PARAMETER, INPUT, GRADIENT, OPTIMIZER_STATE):
        assert sizes(spec.traces["eager"], role) == sizes(captured.trace("adam"), role)


@pytest.mark.usefixtures("bare_host")
def test_the_fallback_can_be_refused() -> None:
    """Then the capture fails with the reason."""
    with pytest.raises(CaptureError, match=r"no C\+\+ compiler found"):
        capture_workload(f"{WORKLOADS}:sgd", plans=["eager"], allow_cpu=False)
