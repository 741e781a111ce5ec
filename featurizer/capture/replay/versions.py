"""Where replay can work: it lives on private interfaces of torch's compiler, so only versions it was tried with."""

from __future__ import annotations

import importlib.metadata
from typing import Final

# 2.13 with Triton 3.7 is what the tests run. The interfaces of 2.11, with Triton 3.6, are the same.
SUPPORTED_TORCH: Final = ("2.11", "2.13")


class ReplayUnavailable(RuntimeError):  # noqa: N818  (a state of the host, not a fault of the caller)
    """Inductor's plan cannot be replayed here; the message says why. The rules answer instead."""


def check_versions() -> None:
    """Look at what is installed, without importing it.

    Raises:
        ReplayUnavailable: without torch or Triton, or under a version of torch that replay was not tried with.
    """
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        raise ReplayUnavailable("torch is not installed") from None
    minor = ".".join(torch.split("+", maxsplit=1)[0].split(".")[:2])
    if minor not in SUPPORTED_TORCH:
        raise ReplayUnavailable(f"torch {torch}: inductor is replayed under torch {' and '.join(SUPPORTED_TORCH)}")
    try:
        importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        raise ReplayUnavailable(
            "Triton is not installed, and inductor lowers for CUDA only beside it: pip install triton"
        ) from None
