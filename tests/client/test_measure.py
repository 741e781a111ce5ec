"""Measuring refuses without a GPU, knows an out-of-memory error in any wrapping, and on a GPU tells the truth."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._inductor.runtime.benchmarking import benchmarker

from peakcast.client.measure import NoGpuError, in_turn, measure, trials_in_turn
from peakcast.client.required import smallest_limit_bytes
from peakcast.client.rescue.out_of_memory import is_out_of_memory
from peakcast.featurizer.capture.workload import Workload

MIB = 1 << 20
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def linear_inference() -> Workload:
    """Return a product whose sizes can be added up by hand: x 64 MiB, w 16 MiB, y 64 MiB."""
    return Workload(nn.Linear(2048, 2048, bias=False), (torch.randn(8192, 2048),))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_measuring_is_refused_without_a_gpu() -> None:
    """Before anything is built."""
    with pytest.raises(NoGpuError, match="no CUDA device"):
        measure(linear_inference)


def test_out_of_memory_is_known_in_any_wrapping() -> None:
    """Compilers raise their own error from it."""
    bare = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    wrapped = RuntimeError("backend='inductor' raised")
    wrapped.__cause__ = bare
    assert is_out_of_memory(bare)
    assert is_out_of_memory(wrapped)
    assert not is_out_of_memory(RuntimeError("expected scalar type Float"))
    assert not is_out_of_memory(None)


@on_gpu
def test_an_inference_peak_is_the_sum_of_its_tensors() -> None:
    """Input, weight, output, and the 32 MiB workspace that cuBLAS takes on Hopper; no other card is known here."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the workspace's size is Hopper's")
    found = measure(linear_inference)
    assert found.measured["parameter_bytes"] == 16 * MIB
    assert found.measured["static_bytes"] == 80 * MIB
    assert found.measured["steady_allocated_bytes"] == pytest.approx((64 + 16 + 64 + 32) * MIB, rel=0.001)
    assert not found.out_of_memory


@on_gpu
def test_running_out_is_a_result_and_leaves_nothing_behind() -> None:
    """A workload larger than the limit is labelled, and the memory is free afterwards."""
    before = torch.cuda.memory_allocated()
    torch.cuda.set_per_process_memory_fraction(100 * MIB / torch.cuda.get_device_properties(0).total_memory, 0)
    try:
        found = measure(linear_inference)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, 0)
    assert found.out_of_memory
    assert "OutOfMemoryError" in found.message
    assert torch.cuda.memory_allocated() == before


@on_gpu
def test_bisection_finds_the_limit() -> None:
    """Steps that need one block of 100 MiB run under 100 MiB and not below, within 0.5 %."""
    found = smallest_limit_bytes(
        lambda: torch.empty(100 * MIB, dtype=torch.uint8, device="cuda"),
        fresh=torch.cuda.empty_cache,
        low_bytes=50 * MIB,
        high_bytes=400 * MIB,
    )
    assert found == pytest.approx(100 * MIB, rel=0.006)


def test_timing_is_done_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes that time steps on one card wait for each other: their turns do not overlap."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    script = (
        "import time\n"
        "from peakcast.client.measure import in_turn\n"
        "with in_turn():\n"
        "    begin = time.monotonic(); time.sleep(0.5); print(begin, time.monotonic())\n"
    )
    both = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    (first_begin, first_end), (second_begin, second_end) = sorted(
        tuple(map(float, process.communicate(timeout=120)[0].split())) for process in both
    )
    assert first_begin < first_end <= second_begin < second_end


def test_a_turn_within_a_turn_is_the_same_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Autograd compiles in a thread of its own, while the thread that runs the step holds the turn."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def within() -> str:
        with in_turn():
            return "ran"

    with in_turn(), ThreadPoolExecutor(1) as autograd:
        assert autograd.submit(within).result(timeout=60) == "ran"


def test_what_inductor_times_is_timed_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process waits for its turn while a benchmark runs; afterwards inductor's benchmark is its own again."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    seen: list[bool] = []

    def benchmark_gpu(*_: object, **__: object) -> float:
        (lock,) = tmp_path.glob("peakcast-card-*.turn")
        with lock.open("a") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        seen.append(True)
        return 1.5

    monkeypatch.setattr(type(benchmarker), "benchmark_gpu", benchmark_gpu)
    with trials_in_turn():
        assert benchmarker.benchmark_gpu(lambda: None, warmup=5) == 1.5
    assert seen == [True]
    assert "benchmark_gpu" not in vars(benchmarker)


def test_turns_for_benchmarks_nest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The inner one gives back what the outer one, or whoever came before, put in place."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(benchmarker, "benchmark_gpu", lambda: 2.5, raising=False)
    own = benchmarker.benchmark_gpu
    with trials_in_turn():
        outer = benchmarker.benchmark_gpu
        with trials_in_turn():
            assert benchmarker.benchmark_gpu() == 2.5
        assert benchmarker.benchmark_gpu is outer
    assert benchmarker.benchmark_gpu is own
