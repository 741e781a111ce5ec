"""Prepare a process in which inductor lowers for CUDA, compiles nothing and runs its wrapper on fake tensors.

Every private interface that replay needs beyond those of the fake device (`cuda_host.py`) is touched here, for good:
the process is replay's own. Names and signatures are those of torch 2.11 to 2.13 (`versions.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from peakcast.featurizer.capture.replay.kernels import Kernel, Launches
from peakcast.featurizer.capture.replay.padding import Padding
from peakcast.featurizer.capture.replay.versions import ReplayUnavailable

# What inductor assumes of a tensor's address unless it was told otherwise (`torch._inductor.utils.ALIGNMENT`).
_ALIGNMENT_BYTES = 16

# Nothing is compiled, timed or looked up, and nothing checks addresses. CUDA graphs would capture real launches.
_SETTINGS: dict[str, Any] = {
    "compile_threads": 1,
    "fx_graph_cache": False,
    "fx_graph_remote_cache": False,
    "size_asserts": False,
    "alignment_asserts": False,
    "nan_asserts": False,
    "scalar_asserts": False,
    "max_autotune": False,
    "max_autotune_pointwise": False,
    "max_autotune_gemm": False,
    "coordinate_descent_tuning": False,
    "benchmark_kernel": False,
    "benchmark_fusion": False,
    "triton.cudagraphs": False,
    "triton.multi_kernel": 0,
    "triton.autotune_at_compile_time": False,
}


def prepare(launches: Launches, padding: Padding, *, faked: bool) -> None:
    """Patch inductor; `faked`: there is no card, so Triton is told of one.

    Raises:
        ReplayUnavailable: if an interface has moved.
    """
    try:
        _settings()
        _kernels(launches)
        _buffers(launches)
        _inputs()
        padding.install()
        if faked:
            _triton_target()
    except (ImportError, AttributeError) as error:
        raise ReplayUnavailable(f"torch {torch.__version__} is not as replay knows it: {error}") from error


def _settings() -> None:
    from torch._functorch import config as functorch_config
    from torch._inductor import config  # private: options by name; those a version lacks do not matter

    for name, value in _SETTINGS.items():
        holder, _, option = name.rpartition(".")
        owner = getattr(config, holder) if holder else config
        if hasattr(owner, option):
            setattr(owner, option, value)
    functorch_config.enable_autograd_cache = False


def _kernels(launches: Launches) -> None:
    """Give the wrapper kernels that only tell of their launch, in place of compiled ones."""
    from torch._inductor import async_compile  # private: the methods that the generated code calls

    compiler = async_compile.AsyncCompile

    def triton(self: Any, kernel_name: str, source_code: str, device_str: str = "cuda", **_: Any) -> Kernel:
        return Kernel(kernel_name, source_code, launches)

    def cpp(self: Any, *args: Any, **_: Any) -> Kernel:
        return Kernel("cpp", str(args[-1]), launches)

    def multi_kernel(self: Any, name: str, kernels: Sequence[Any], *args: Any, **_: Any) -> Any:
        return kernels[0]

    compiler.triton = triton  # type: ignore[method-assign]
    compiler.cpp = compiler.cpp_pybinding = cpp  # type: ignore[method-assign]
    compiler.multi_kernel = multi_kernel  # type: ignore[method-assign]


def _buffers(launches: Launches) -> None:
    """Let the wrapper allocate fake tensors: its own allocators are C++ functions that know no dispatch."""
    guards: Any = torch._C._dynamo.guards  # private: what generated wrappers take by these names

    def empty_on(device: str) -> Any:
        def empty(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
            return launches.allocate(lambda: torch.empty_strided(size, stride, dtype=dtype, device=device))

        return empty

    def reinterpret(
        tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset_increment: int = 0
    ) -> torch.Tensor:
        offset = tensor.storage_offset() + offset_increment
        return launches.view(lambda: torch.as_strided(tensor, size, stride, offset))

    guards._empty_strided_cuda = empty_on("cuda:0")
    guards._empty_strided_cpu = guards._empty_strided_cpu_pinned = empty_on("cpu")
    guards._reinterpret_tensor = reinterpret
    guards.assert_size_stride = guards.assert_alignment = lambda *_, **__: None


def _inputs() -> None:
    """Tell from its offset whether an input is aligned: a fake tensor has no address."""
    from torch._inductor import compile_fx, utils  # private: called at each run of a compiled graph

    def copy_misaligned(new_inputs: list[Any], check_inputs_idxs: Sequence[int], return_pair_idxs: Any = None) -> Any:
        before, after = [], []
        for index in check_inputs_idxs:
            tensor = new_inputs[index]
            if int(tensor.storage_offset()) * tensor.element_size() % _ALIGNMENT_BYTES:
                new_inputs[index] = utils.clone_preserve_strides(tensor)
                if return_pair_idxs is not None and index in return_pair_idxs:
                    before.append(tensor)
                    after.append(new_inputs[index])
        return before, after

    utils.copy_misaligned_inputs = copy_misaligned
    if hasattr(compile_fx, "copy_misaligned_inputs"):
        compile_fx.copy_misaligned_inputs = copy_misaligned


def _triton_target() -> None:
    """Tell Triton which card to lower for; only inductor's heuristics ask."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver

    from peakcast.featurizer.capture.cuda_host import CAPABILITY, PROPERTIES

    class Driver:
        def get_current_target(self) -> Any:
            return GPUTarget("cuda", CAPABILITY[0] * 10 + CAPABILITY[1], PROPERTIES.warp_size)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int = 0) -> int:
            return 0

        def get_active_torch_device(self) -> torch.device:
            return torch.device("cuda", 0)

        def get_benchmarker(self) -> None:
            return None

    driver.set_active(Driver())
