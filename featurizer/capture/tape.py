"""The dispatch tape: every operator of a step run on fake tensors, and every storage from birth to its finaliser."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from peakcast.featurizer.capture.attributes import attribute_of
from peakcast.featurizer.vocabulary import BACKWARD, FORWARD, INPUT, LOSS, OPTIMIZER

# Frames of these folders are machinery; the first frame outside them is the line a user would recognise.
MACHINERY = (str(Path(torch.__file__).parent), str(Path(__file__).parent), "<")
OUTSIDE = -1
# prim.device and the like, and what record_function leaves: they touch no bytes.
_BYTELESS = ("prim", "profiler")


@dataclass(slots=True)
class TapeNode:
    """One operator call: what it read and wrote, by storage index, and its first output."""

    op: str
    phase: int
    region: int
    inputs: list[int]
    outputs: list[int]
    shape: tuple[int, ...]
    dtype: str
    device: str
    line: str
    attribute: str
    branches: list[Recording] = field(default_factory=list)  # of torch.cond: each one as if it were taken


@dataclass(slots=True)
class TapeStorage:
    """One untyped storage. `born` and `died` are node indices; -1 means before, and after, the step."""

    nbytes: int
    device: str
    born: int
    died: int = -1
    role: int | None = None  # set for what is known by name; the rest follows from the lifetime


@dataclass(slots=True)
class StepClock:
    """Tells the phase of the operator being run. Hooks on model and optimizer move it; backward shows by itself."""

    in_optimizer: bool = False
    after_forward: bool = False
    at_optimizer: Callable[[], None] | None = None  # runs as the optimizer begins, when the gradients are all there

    def enter_optimizer(self) -> None:
        """Note that an optimizer step begins."""
        if self.at_optimizer is not None:
            self.at_optimizer()
        self.in_optimizer = True

    def leave_optimizer(self) -> None:
        """Note that the optimizer step is over."""
        self.in_optimizer = False

    def phase(self) -> int:
        """Return the phase. Inside autograd's engine everything is backward, recomputation too."""
        if torch._C._current_graph_task_id() != -1:
            return BACKWARD
        if self.in_optimizer:
            return OPTIMIZER
        return LOSS if self.after_forward else FORWARD


@dataclass(slots=True)
class Recording:
    """What the tape wrote down for one step."""

    nodes: list[TapeNode] = field(default_factory=list)
    storages: list[TapeStorage] = field(default_factory=list)
    compiled_again: bool = False  # the second step compiled too, and this is a later one


class Tape(TorchDispatchMode):
    """Record the operators run inside the block. Compiled code runs unhindered (`is_infra_mode`)."""

    supports_higher_order_operators = True

    def __init__(self, clock: StepClock) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recording = Recording()
        self.region = OUTSIDE
        self.region_line = ""
        self.line_of_region: Callable[[], str] = lambda: self.region_line
        self.region_is_channels_last = False
        self._clock = clock
        self._index_of: dict[int, int] = {}  # storage address -> index, while it lives
        self._watch: dict[int, weakref.ref[Any]] = {}
        self._stopped = False
        self._paused = False

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Tell Dynamo that this mode does not change what the code means."""
        return True

    def hold(self, tensors: Iterable[Any], role: int | None) -> None:
        """Note tensors that are alive before the step, in the order they were allocated."""
        for tensor in tensors:
            for part in _strided_parts(tensor):
                index = self._storage(part, born=-1)
                if self.recording.storages[index].role is None:
                    self.recording.storages[index].role = role

    def mark(self, tensors: Iterable[Any], role: int) -> None:
        """Give a role to storages the tape has already seen."""
        for tensor in tensors:
            for part in _strided_parts(tensor):
                index = self._index_of.get(part.untyped_storage()._cdata)
                if index is not None and self.recording.storages[index].role is None:
                    self.recording.storages[index].role = role

    def stop(self) -> Recording:
        """End the recording: what is alive now outlives the step."""
        self._stopped = True
        self._watch.clear()
        last = len(self.recording.nodes) - 1
        for storage in self.recording.storages:
            storage.born = min(storage.born, last)  # a buffer whose node never came
        return self.recording

    @contextmanager
    def inside_region(self, region: int) -> Iterator[None]:
        """Mark the operators of the block as nodes of a compiled graph."""
        outer, self.region = self.region, region
        try:
            yield
        finally:
            self.region = outer

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Run the operators of the block without writing them down."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def allocated(self, tensor: torch.Tensor) -> None:
        """Note a buffer that was made while the tape was paused: it is born with the next node."""
        if not self._stopped:
            self._storage(tensor, born=len(self.recording.nodes))

    def note(self, op: str, *, read: list[torch.Tensor], written: list[torch.Tensor], attribute: str = "") -> None:
        """Write down a node that is no operator: a kernel of the compiler's own."""
        if not self._stopped:
            self._append(op, read, written, line=self.line_of_region(), attribute=attribute)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and write it down."""
        if self._paused or func.namespace in _BYTELESS:
            return func(*args, **(kwargs or {}))
        if self.region == OUTSIDE and isinstance(func, OpOverload) and _is_composite(func):
            # Below autograd (inference mode, the inside of a cond) composite operators come whole.
            with self:
                return func.decompose(*args, **(kwargs or {}))
        branches = self._branches(args[1:3], args[3]) if func is torch.ops.higher_order.cond else []
        result = func(*args, **(kwargs or {}))
        if not self._stopped:
            self._record(func, args, kwargs or {}, result)
            self.recording.nodes[-1].branches = branches
        return result

    def _branches(self, functions: Iterable[Callable[..., Any]], operands: Any) -> list[Recording]:
        """Run each branch of a `cond` under a tape of its own. Its operands live outside."""
        recordings = []
        for function in functions:
            inner = Tape(self._clock)
            inner.region, inner.region_line = self.region, self.region_line
            inner.region_is_channels_last = self.region_is_channels_last
            inner.hold(tree_leaves(operands), INPUT)
            with inner:
                returned = function(*operands)
            recordings.append(inner.stop())
            del returned  # alive until here: what a branch returns outlives it
        return recordings

    def _record(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        read = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        written = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
        written += _mutated(func, args, kwargs)
        self._append(
            f"{func.namespace}.{func.name()}" if isinstance(func, HigherOrderOperator) else str(func),
            read,
            written,
            line=self.line_of_region() if self.region != OUTSIDE else _user_line(),
            attribute=attribute_of(func, args, channels_last=self.region != OUTSIDE and self.region_is_channels_last),
        )

    def _append(
        self, op: str, read: list[torch.Tensor], written: list[torch.Tensor], *, line: str, attribute: str
    ) -> None:
        here = len(self.recording.nodes)
        node = TapeNode(
            op=op,
            phase=self._clock.phase(),
            region=self.region,
            inputs=self._storages(read, born=-1),  # unseen so far: alive before the step
            outputs=self._storages(written, born=here),
            shape=tuple(int(size) for size in written[0].shape) if written else (),
            dtype=str(written[0].dtype).removeprefix("torch.") if written else "",
            device=written[0].device.type if written else "cpu",
            line=line,
            attribute=attribute,
        )
        self.recording.nodes.append(node)

    def _storages(self, tensors: list[torch.Tensor], *, born: int) -> list[int]:
        return list(dict.fromkeys(self._storage(part, born=born) for t in tensors for part in _strided_parts(t)))

    def resized(self, storage: Any, before_bytes: int) -> None:
        """Note a storage that now has another size in the same place: what it was has died, and it is born again."""
        if self._stopped:
            return
        index = self._index_of.get(storage._cdata)
        # A fake storage does not say what device it stands for: as it was known, else the card.
        device = self.recording.storages[index].device if index is not None else "cuda"
        if index is None and before_bytes:
            self._register(storage, before_bytes, device, born=-1)
        self._freed(storage._cdata, None)
        if storage.nbytes():
            self._register(storage, int(storage.nbytes()), device, born=len(self.recording.nodes))

    def _storage(self, tensor: torch.Tensor, *, born: int) -> int:
        storage = tensor.untyped_storage()
        index = self._index_of.get(storage._cdata)
        return self._register(storage, int(storage.nbytes()), tensor.device.type, born=born) if index is None else index

    def _register(self, storage: Any, nbytes: int, device: str, *, born: int) -> int:
        address = storage._cdata
        index = self._index_of[address] = len(self.recording.storages)
        self.recording.storages.append(TapeStorage(nbytes, device, born))
        self._watch[address] = weakref.ref(storage, functools.partial(self._freed, address))
        return index

    def _freed(self, address: int, _: Any) -> None:
        index = self._index_of.pop(address, None)
        self._watch.pop(address, None)
        if index is not None and not self._stopped:
            storage = self.recording.storages[index]
            storage.died = max(len(self.recording.nodes) - 1, storage.born, 0)


@functools.cache
def _is_composite(func: OpOverload) -> bool:
    """Tell whether an operator is made of others and has no kernel of its own (silu_backward is, and has one)."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return func._can_decompose() and not any(has_kernel(func.name(), key) for key in ("CPU", "CUDA"))


def _strided_parts(tensor: Any) -> list[torch.Tensor]:
    """Return the plain tensors that hold a tensor's bytes: itself, or the parts of a wrapper subclass or sparse one."""
    if not isinstance(tensor, torch.Tensor):
        return []
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return _strided_parts(torch._C._functorch.get_unwrapped(tensor))
    if torch.utils._python_dispatch.is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        return [part for name in names for part in _strided_parts(getattr(tensor, name))]
    return [tensor] if tensor.layout is torch.strided else []


def _mutated(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Return the arguments that the operator writes to (`_foreach_add_` returns nothing)."""
    schema = getattr(func, "_schema", None)
    if schema is None or not schema.is_mutable:
        return []
    values = [
        args[position] if position < len(args) else kwargs.get(argument.name)
        for position, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _user_line() -> str:
    """Return `file:line` of the innermost frame that is neither torch's nor ours."""
    frame = sys._getframe(3)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(MACHINERY):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""
