"""Out-of-memory errors: known in any wrapping, and let go of with everything that their tracebacks hold."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Iterator
from typing import Final

import torch

# torch raises its own class where the caching allocator fails; libraries and the driver say it in words.
_DEVICE_TEXTS: Final = (
    "CUDA out of memory",
    "HIP out of memory",
    "CUDA error: out of memory",
    "Triton Error [CUDA]: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
_HOST_TEXT: Final = "DefaultCPUAllocator: can't allocate memory"


def is_out_of_memory(error: BaseException | None) -> bool:
    """Tell whether an error is, or was caused by, running out of GPU memory; compilers wrap it."""
    return any(
        isinstance(each, torch.OutOfMemoryError)
        or (isinstance(each, RuntimeError) and any(text in str(each) for text in _DEVICE_TEXTS))
        for each in _causes(error)
    )


def is_host_out_of_memory(error: BaseException | None) -> bool:
    """Tell whether an error is, or was caused by, torch running out of the host's memory."""
    return any(isinstance(each, RuntimeError) and _HOST_TEXT in str(each) for each in _causes(error))


def let_go(error: BaseException) -> None:
    """Drop the tracebacks of an error and its causes, and the locals of the frames in them: they hold tensors.

    Call it inside the `except` block. The memory is free only after the block, when nothing names the error.
    """
    for each in list(_causes(error, suppressed=True)):
        traceback.clear_frames(each.__traceback__)
        each.__traceback__ = each.__cause__ = each.__context__ = None
        if hasattr(each, "inner_exception"):
            del each.inner_exception


def collect() -> None:
    """Free what nothing holds any more: Python's cycles, cuBLAS workspaces and the allocator's cached blocks."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()


def _causes(error: BaseException | None, *, suppressed: bool = False) -> Iterator[BaseException]:
    """Walk an error, what it was raised from, and what compilers keep as `inner_exception`, each once.

    `raise ... from None` says that what came before is no cause; `suppressed` walks there nevertheless.
    """
    seen: set[int] = set()
    ahead = [error]
    while ahead:
        each = ahead.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        ahead.extend((each.__cause__, getattr(each, "inner_exception", None)))
        if suppressed or not each.__suppress_context__:
            ahead.append(each.__context__)
        if isinstance(each, BaseExceptionGroup):
            ahead.extend(each.exceptions)
