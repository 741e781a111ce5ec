"""Build and load the fake CUDA device of `fakecuda.cpp`, for tracing as CUDA on a host without a GPU."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("fakecuda.cpp")
# Without a limit a hung compiler would hang the capture; a build takes 3 to 20 s.
BUILD_TIMEOUT_SEC = 180


class ShimUnavailable(RuntimeError):  # noqa: N818  (a state of the host, not a fault of the caller)
    """The shim cannot be used here; the message says why."""


def cache_dir() -> Path:
    """Return the folder of built shims: `$PEAKCAST_CACHE_DIR`, or `peakcast` under the user's cache folder."""
    override = os.environ.get("PEAKCAST_CACHE_DIR")
    if override:
        return Path(override)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "peakcast"


def _torch_folder() -> Path:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise ShimUnavailable("torch is not installed")
    return Path(spec.origin).parent


def build() -> Path:
    """Compile the shim against the installed torch, once per torch version, and return the library.

    Raises:
        ShimUnavailable: if there is no C++ compiler, or it fails.
    """
    torch_folder = _torch_folder()
    tag = hashlib.sha256(SOURCE.read_bytes() + importlib.metadata.version("torch").encode()).hexdigest()[:16]
    library = cache_dir() / f"fakecuda-{tag}-cp{sys.version_info.major}{sys.version_info.minor}.so"
    if library.exists():
        return library
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise ShimUnavailable(
            "no C++ compiler found (g++ or clang++; set CXX): needed once, to trace as CUDA without a GPU"
        )
    library.parent.mkdir(parents=True, exist_ok=True)
    include = torch_folder / "include"
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        built = Path(scratch) / library.name
        command = [
            *compiler.split(),
            *("-O1", "-std=c++20", "-fPIC", "-shared", "-w"),
            *(f"-I{include}", f"-I{include / 'torch/csrc/api/include'}"),
            *(str(SOURCE), "-o", str(built), f"-L{torch_folder / 'lib'}", "-ltorch_cpu", "-lc10"),
        ]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=BUILD_TIMEOUT_SEC)
        except subprocess.CalledProcessError as error:
            raise ShimUnavailable(f"building the fake CUDA device failed: {error.stderr.strip()[-600:]}") from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ShimUnavailable(f"building the fake CUDA device failed: {error}") from error
        built.replace(library)  # atomic: two processes may build at once
    return library


def load() -> None:
    """Load the shim into this process. torch must not be imported yet.

    Raises:
        ShimUnavailable: if torch is imported already, or the shim cannot be built or loaded.
    """
    if "torch" in sys.modules:
        raise ShimUnavailable("the fake CUDA device must be loaded before torch is imported")
    library = build()
    # libtorch_cpu's own dependencies (OpenMP among them) sit beside it: load it by path first, then the shim binds.
    try:
        for name in ("libc10.so", "libtorch_cpu.so"):
            ctypes.CDLL(str(_torch_folder() / "lib" / name), mode=ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise ShimUnavailable(f"loading the fake CUDA device failed: {error}") from error
