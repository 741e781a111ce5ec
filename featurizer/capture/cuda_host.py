"""Make `torch.cuda` answer like a host with one card, in a process where only the shim stands for it.

Everything here changes module state for good, so it runs in a process of its own (see `worker.py`). The names are
private to torch and tied to the tested versions (2.11 to 2.14): a name that is gone is left alone.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Self

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental import proxy_tensor

from peakcast.featurizer.capture.product_padding import decide_without_timing

# What the traced code may ask of the card. Sizes are those of an H200; only inductor's heuristics read them.
CAPABILITY = (9, 0)
PROPERTIES = SimpleNamespace(
    name="NVIDIA H200",
    major=CAPABILITY[0],
    minor=CAPABILITY[1],
    total_memory=150_754_820_096,
    multi_processor_count=132,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    warp_size=32,
    regs_per_multiprocessor=65536,
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448,
    shared_memory_per_multiprocessor=233472,
    L2_cache_size=60 * 2**20,
    clock_rate=1_980_000,
    memory_clock_rate=3_201_000,
    memory_bus_width=6144,
    is_integrated=False,
    is_multi_gpu_board=False,
    gcnArchName="",
    uuid="",
)
_TFLOPS_HALF, _TFLOPS_TF32, _DRAM_GBPS = 989.0, 495.0, 4800.0


class _Device:
    """Stands for `torch.cuda.device` and `torch.cuda.stream`: there is only one, so switching does nothing."""

    def __init__(self, *_: Any) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


class _Event:
    """Stands for `torch.cuda.Event`: it has always happened already."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def record(self, *_: Any) -> None: ...

    def wait(self, *_: Any) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: Any) -> float:
        return 0.0


class _Stream:
    cuda_stream = 0
    device = torch.device("cuda", 0)
    device_index = 0
    device_type = 1  # CUDA in c10::DeviceType
    stream_id = 0

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def wait_stream(self, _: Any) -> None: ...

    def wait_event(self, _: Any) -> None: ...

    def record_event(self, event: Any = None) -> Any:
        return event or _Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


def _constant(value: Any) -> Any:
    """Return a new function that answers `value`. Dynamo tells functions apart by identity: share none."""

    def answer(*_: Any, **__: Any) -> Any:
        return value

    return answer


def _answer(owner: Any, values: dict[str, Any], *, create: bool = False, static: bool = False) -> None:
    """Replace functions of `owner` by constants; names it lacks are left out unless `create`."""
    for name, value in values.items():
        if create or hasattr(owner, name):
            function = _constant(value)
            setattr(owner, name, staticmethod(function) if static else function)


def pretend() -> None:
    """Patch `torch.cuda`, `torch._C` and Dynamo's device interface, then inductor's benchmarks and constants."""
    # Dynamo's tables hold functions of torch.cuda: they must be built before these are replaced.
    import torch._dynamo

    torch._dynamo.trace_rules.get_torch_obj_rule_map()
    _answer(torch.cuda, {**_STATE, **_MEMORY, **_CARD})
    torch.cuda.get_rng_state = lambda *_, **__: torch.zeros(16, dtype=torch.uint8)
    torch.cuda.Stream = _Stream  # type: ignore[misc,assignment]
    # Nothing runs, so all streams are one. `record_stream` and the like are operators, and are recorded as such.
    torch.cuda.stream = torch.cuda.StreamContext = _Device  # type: ignore[misc,assignment]
    torch.cuda.Event = torch.Event = _Event  # type: ignore[misc,assignment]
    torch.cuda.device = torch.cuda._DeviceGuard = _Device  # type: ignore[misc,assignment]
    torch.cuda.random.get_rng_state = torch.cuda.get_rng_state
    _answer(torch.cuda.random, {"set_rng_state": None})
    _answer(torch.amp.grad_scaler, {"amp_definitely_not_available": False})
    _answer(torch._C, _BINDINGS, create=True)  # a CPU build lacks most of them
    torch.version.cuda = "13.0"
    # Tensors made from data are moved to the card by a C++ path that needs a real one, unless fake tensors are told
    # that there is none; they ask torch.cuda.is_available().
    FakeTensorMode.avoid_device_init = property(lambda _: True)  # type: ignore[assignment,method-assign]
    # The tracer computes one-element constants for real, on their device.
    proxy_tensor.CONSTANT_NUMEL_LIMIT = 0
    _keep_whole()
    _patch_dynamo()
    _patch_inductor()


_library = torch.library.Library("aten", "IMPL")
_WHOLE_ON_CUDA = ("silu_backward", "mish_backward")

_STATE = {
    "is_available": True,
    "is_initialized": True,
    "_is_compiled": True,
    "is_bf16_supported": True,
    "is_tf32_supported": True,
    "is_current_stream_capturing": False,
    "device_count": 1,
    "current_device": 0,
    "_exchange_device": 0,
    "_maybe_exchange_device": 0,
    "init": None,
    "_lazy_init": None,
    "set_device": None,
    "synchronize": None,
    "set_rng_state": None,
    "set_stream": None,
    "current_stream": _Stream(),
    "default_stream": _Stream(),
}
_MEMORY = {
    "empty_cache": None,
    "reset_peak_memory_stats": None,
    "memory_allocated": 0,
    "max_memory_allocated": 0,
    "memory_reserved": 0,
    "max_memory_reserved": 0,
    "mem_get_info": (PROPERTIES.total_memory, PROPERTIES.total_memory),
}
_CARD = {
    "get_device_properties": PROPERTIES,
    "get_device_capability": CAPABILITY,
    "get_device_name": PROPERTIES.name,
    "get_arch_list": ["sm_90"],
}
_BINDINGS = {
    "_cuda_getCurrentRawStream": 0,
    "_cuda_getDeviceCount": 1,
    "_cuda_getDevice": 0,
    "_cuda_setDevice": None,
    "_cuda_exchangeDevice": 0,
    "_cuda_maybeExchangeDevice": 0,
    "_cuda_synchronize": None,
    "_cuda_isInBadFork": False,
}
_INTERFACE = {
    "is_available": True,
    "current_device": 0,
    "set_device": None,
    "device_count": 1,
    "current_stream": _Stream(),
    "synchronize": None,
    "get_device_properties": PROPERTIES,
    "get_compute_capability": "90",
    "exchange_device": 0,
    "maybe_exchange_device": 0,
    "memory_allocated": 0,
    "is_bf16_supported": True,
    "get_raw_stream": 0,
}


def _keep_whole() -> None:
    """Register CUDA kernels for composite operators that have one of their own on CUDA, or they would be taken apart.

    The kernels are never called: fake tensors are served before.
    """
    for name in _WHOLE_ON_CUDA:
        _library.impl(name, _unreachable, "CUDA")


def _unreachable(*_: Any, **__: Any) -> Any:
    raise RuntimeError("a kernel of the fake CUDA device was called")


def _patch_dynamo() -> None:
    from torch._dynamo import device_interface

    interface = device_interface.CudaInterface
    _answer(interface, _INTERFACE, create=True, static=True)
    interface.device = _Device  # type: ignore[assignment]
    device_interface.device_interfaces.clear()
    device_interface._device_initialized = False


def _patch_inductor() -> None:
    """Keep inductor's graph passes from making real CUDA tensors or timing kernels."""
    from torch._inductor import utils
    from torch._inductor.fx_passes import fuse_attention, joint_graph

    def tflops(dtype: torch.dtype) -> float:
        return _TFLOPS_HALF if dtype in (torch.bfloat16, torch.float16) else _TFLOPS_TF32

    _answer(utils, {"get_gpu_dram_gbps": _DRAM_GBPS})
    if hasattr(utils, "get_device_tflops"):
        utils.get_device_tflops = tflops  # type: ignore[assignment]
    decide_without_timing()

    real_patterns = fuse_attention._get_sfdp_patterns

    def patterns(*args: Any, **kwargs: Any) -> list[Any]:
        """Make the scalar CUDA constants of the attention patterns, which torch.tensor makes, fake ones."""
        real_tensor = torch.tensor
        torch.tensor = lambda value, *_, device=None, **__: torch.full((), value, device=device)
        try:
            return list(real_patterns(*args, **kwargs))
        finally:
            torch.tensor = real_tensor

    fuse_attention._get_sfdp_patterns = patterns

    folder = joint_graph.UniformValueConstantFolder
    for name in ("_deduce_value", "_add_peephole_patterns"):
        if hasattr(folder, name):
            setattr(folder, name, _folding_on_cpu(getattr(folder, name)))


def _folding_on_cpu(method: Any) -> Any:
    """Run a constant folder's method with CUDA replaced by CPU: it computes real one-element tensors."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class OnCpu(TorchDispatchMode):
        @classmethod
        def is_infra_mode(cls) -> bool:
            return True

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            def place(value: Any) -> Any:
                return torch.device("cpu") if isinstance(value, torch.device) and value.type == "cuda" else value

            return func(*map(place, args), **{name: place(value) for name, value in (kwargs or {}).items()})

    def folding(self: Any, *args: Any, **kwargs: Any) -> Any:
        with OnCpu():  # type: ignore[no-untyped-call]
            return method(self, *args, **kwargs)

    return folding
