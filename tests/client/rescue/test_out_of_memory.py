"""Out-of-memory errors are known in any wrapping, and let go of with what their tracebacks hold."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from limited_memory import resident_bytes
from running_out import Raising

from peakcast.client.rescue.out_of_memory import is_host_out_of_memory, is_out_of_memory, let_go
from peakcast.client.rescue.rescue import Rescue

MIB = 1 << 20


def test_recovery_inside_the_except_block_would_hold_the_activations() -> None:
    """Why the fall-back waits: inside `except` the traceback keeps 128 MiB of frames' tensors, outside nothing does."""

    def step() -> None:
        hidden = torch.zeros(32 * MIB)
        raising.at("forward")
        hidden.add_(1)

    raising = Raising("forward")
    before_bytes = resident_bytes()
    try:
        step()
    except torch.OutOfMemoryError as error:
        gc.collect()
        # Frames hold the local; zeros are mapped lazily, so it is its size that counts, read from the frame.
        frame = error.__traceback__.tb_next.tb_frame  # type: ignore[union-attr]
        assert frame.f_locals["hidden"].nbytes == 128 * MIB
        reference = weakref.ref(frame.f_locals["hidden"])
        del frame
        let_go(error)
    assert reference() is None
    assert resident_bytes() - before_bytes < 64 * MIB


def test_a_failed_allocation_of_the_host_is_rescued_too() -> None:
    """A real one: the CPU allocator is asked for 32 TiB."""
    sizes = [1 << 45, 16]

    def step() -> int:
        return torch.empty(sizes[0], dtype=torch.uint8).numel()

    assert Rescue(lambda: bool(sizes.pop(0))).run(step) == 16
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 45, dtype=torch.uint8)
    assert is_host_out_of_memory(caught.value)
    assert not is_out_of_memory(caught.value)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("cuBLAS error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("Triton Error [CUDA]: out of memory"), True),
        (ExceptionGroup("two", [ValueError("x"), torch.OutOfMemoryError("y")]), True),
        (ValueError("the page on CUDA out of memory"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (MemoryError(), False),
    ],
    ids=["driver", "cublas", "triton", "group", "words of another error", "shapes", "python"],
)
def test_what_is_an_out_of_memory_error(error: BaseException, expected: bool) -> None:
    """Told by torch's class, or by the words of a library's RuntimeError."""
    assert is_out_of_memory(error) is expected


def test_an_error_raised_from_none_is_not_the_one_before() -> None:
    """Who replaces an out-of-memory error on purpose gets that error; a cycle of causes ends."""

    def replace() -> None:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        except torch.OutOfMemoryError:
            raise LookupError("too long a text") from None

    with pytest.raises(LookupError) as caught:
        replace()
    assert not is_out_of_memory(caught.value)
    first, second = RuntimeError("a"), RuntimeError("b")
    first.__cause__, second.__cause__ = second, first
    assert not is_out_of_memory(first)
