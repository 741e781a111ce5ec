"""What stands for compiled kernels: objects that compute nothing and tell the tape what they would read and write."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import torch

from peakcast.featurizer.capture.tape import Tape
from peakcast.featurizer.vocabulary import KERNEL

_SIGNATURE: Final = re.compile(r"^def (\w+)\(([^)]*)\)", re.MULTILINE)
# triton_poi_fused_add_relu_3 -> add_relu, 3: like layers share a kernel, others differ in the number
_FUSED: Final = re.compile(r"^triton_\w*?fused_(\w+?)(?:_(\d+))?$")
# How inductor names a kernel's pointers: in_ptr0, out_ptr1, in_out_ptr0 (written in place).
_WRITTEN: Final = ("out_ptr", "in_out_ptr")
_MOST_CHARACTERS: Final = 100


class Launches:
    """Hears of every launch and every buffer; hands both to the tape once there is one."""

    def __init__(self) -> None:
        self.tape: Tape | None = None
        self.count = 0

    def launched(self, kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note that a kernel ran."""
        self.count += 1
        if self.tape is None:
            return
        named = {**dict(zip(kernel.parameters, args, strict=False)), **kwargs}
        tensors = {name: value for name, value in named.items() if isinstance(value, torch.Tensor)}
        written = [value for name, value in tensors.items() if name.startswith(_WRITTEN)]
        # A kernel whose arguments cannot be told apart reads and writes all of them.
        read = [value for name, value in tensors.items() if not name.startswith("out_ptr")]
        self.tape.note(KERNEL, read=read, written=written or list(tensors.values()), attribute=kernel.attribute)

    def allocate(self, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Make a buffer of the wrapper. It is born with the node that first uses it."""
        if self.tape is None:
            return make()
        with self.tape.paused():
            tensor = make()
        self.tape.allocated(tensor)
        return tensor

    def view(self, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Make a view, which is no node."""
        if self.tape is None:
            return make()
        with self.tape.paused():
            return make()


class Kernel:
    """One kernel of the generated wrapper, called as Triton's launcher or as a C++ function."""

    def __init__(self, name: str, source: str, launches: Launches) -> None:
        self._launches = launches
        self.name = name
        found = {match[1]: match[2] for match in _SIGNATURE.finditer(source)}
        signature = found.get(name) or next(iter(found.values()), "")
        self.parameters = tuple(part.split(":")[0].strip() for part in signature.split(",") if part.strip())
        fused = _FUSED.match(name)
        self.attribute = f"fused={fused[1][:_MOST_CHARACTERS]},number={fused[2] or 0}" if fused else ""

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Launch: `kernel.run(in_ptr0, out_ptr0, xnumel, stream=...)`."""
        self._launches.launched(self, args, kwargs)

    __call__ = run
