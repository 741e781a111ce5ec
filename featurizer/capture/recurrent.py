"""nn.LSTM, nn.GRU and nn.RNN on fake tensors: what cuDNN would allocate, in the order torch's binding does it.

A CPU build of torch has no kernel for them on CUDA, and a CUDA build hands cuDNN real pointers. So the functions behind
the modules are replaced for the time of a capture, after torch's `aten/src/ATen/native/cudnn/RNN.cpp` and
`aten/src/ATen/cudnn/AutocastRNN.cpp`.

T time, B batch, H hidden size, L layers, D directions (1 or 2).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import nn
from torch._subclasses import fake_impls

aten = torch.ops.aten

# cudnnRNNMode_t
_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
_LSTM = _MODES["lstm"]
_GATES = {0: 1, 1: 1, 2: 4, 3: 3}
_PADDED_ARGUMENTS = 9  # with a PackedSequence the functions take batch_sizes second, and no batch_first


@dataclass(frozen=True, slots=True)
class _Cell:
    """The plain arguments of `_cudnn_rnn`."""

    mode: int
    hidden_size: int
    proj_size: int
    layers: int
    batch_first: bool
    dropout: float
    train: bool
    bidirectional: bool

    @property
    def directions(self) -> int:
        """Return D."""
        return 2 if self.bidirectional else 1

    def reserve_bytes(self, x_TBI: torch.Tensor) -> int:
        """Return what a training forward keeps for the backward beside its output.

        cuDNN says it only at run time. GRUs measured on an H200 (cuDNN 9.19) kept two values a gate, and between two
        layers what the first one returned. That it is two a gate for LSTM and plain RNN too is an assumption.
        """
        outputs = x_TBI.shape[0] * x_TBI.shape[1] * self.hidden_size * self.directions
        return (2 * _GATES[self.mode] * self.layers + self.layers - 1) * outputs * x_TBI.element_size()

    def arguments(self) -> tuple[Any, ...]:
        """Return the tail that `_cudnn_rnn` and `_cudnn_rnn_backward` share, up to the dropout state."""
        return (
            *(self.mode, self.hidden_size, self.proj_size, self.layers, self.batch_first),
            *(self.dropout, self.train, self.bidirectional, (), None),
        )


@contextlib.contextmanager
def rnns_as_cudnn() -> Iterator[None]:
    """Let the RNN modules run on fake tensors as cuDNN would run them."""
    table: dict[Any, Any] = fake_impls.op_implementations_dict
    answers = {
        aten._cudnn_rnn.default: _fake_forward,
        aten._cudnn_rnn_backward.default: _fake_backward,
        aten._pack_padded_sequence.default: _refuse_packed,
    }
    before = {func: table.get(func) for func in answers}
    flatten_parameters = nn.RNNBase.flatten_parameters
    table.update(answers)
    # It compares data pointers, which fake tensors do not have.
    nn.RNNBase.flatten_parameters = lambda _: None  # type: ignore[assignment,method-assign]
    for name in _MODES:
        setattr(torch._VF, name, _replacement(name))
    try:
        yield
    finally:
        nn.RNNBase.flatten_parameters = flatten_parameters  # type: ignore[method-assign]
        for name in _MODES:
            delattr(torch._VF, name)  # the module looks them up in torch._C then, as before
        for func, implementation in before.items():
            if implementation is None:
                del table[func]
            else:
                table[func] = implementation


def _replacement(name: str) -> Callable[..., Any]:
    mode = _MODES[name]

    @torch._dynamo.disable  # type: ignore[untyped-decorator]
    def run(*args: Any) -> Any:
        if len(args) != _PADDED_ARGUMENTS or isinstance(args[3], list | tuple):
            _refuse_packed()
        inputs, hidden, weights, has_biases, layers, dropout, train, bidirectional, batch_first = args
        hx, cx = hidden if mode == _LSTM else (hidden, None)
        width = hx.shape[-1] if cx is None else cx.shape[-1]
        proj_size = hx.shape[-1] if hx.shape[-1] != width else 0
        cell = _Cell(mode, width, proj_size, layers, batch_first, dropout, train, bidirectional)
        weight_stride = (4 if has_biases else 2) + (proj_size > 0)
        inputs, hx, cx, weights, buffer = _cast(inputs, hx, cx, list(weights))
        output, hy, cy = _CudnnRnn.apply(cell, weight_stride, buffer, inputs, hx, cx, *weights)  # type: ignore[no-untyped-call]
        return (output, hy, cy) if mode == _LSTM else (output, hy)

    return run  # type: ignore[no-any-return]


def _refuse_packed(*_: Any, **__: Any) -> NoReturn:
    raise ValueError("a PackedSequence cannot be captured: its sizes depend on the data. Give the padded batch instead")


def _cast(
    inputs: torch.Tensor, hx: torch.Tensor, cx: torch.Tensor | None, weights: list[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, list[torch.Tensor], torch.Tensor | None]:
    """Do what autocast does: float16 whatever its dtype, and all weights copied into one flat buffer."""
    if not torch.is_autocast_enabled(inputs.device.type):
        return inputs, hx, cx, weights, None

    def half(value: torch.Tensor) -> torch.Tensor:
        return value.to(torch.float16) if value.is_floating_point() and value.dtype != torch.float64 else value

    buffer = None
    if weights[0].dtype not in (torch.float16, torch.float64):
        buffer = weights[0].new_zeros(sum(weight.numel() for weight in weights), dtype=torch.float16)
        parts, offset = [], 0
        for weight in weights:
            # `.data` for a tensor that shares the storage without being a view of it: cuDNN's are made that way, so
            # that each copy has a backward of its own.
            part = buffer.narrow(0, offset, weight.numel()).view(weight.shape).data
            parts.append(part.copy_(weight))
            offset += weight.numel()
        weights = parts
    return half(inputs), half(hx), half(cx) if cx is not None else None, weights, buffer


class _CudnnRnn(torch.autograd.Function):
    """`_cudnn_rnn` with its temporaries: the contiguous copies it makes are operators of their own here.

    Its workspace is left out: how cuDNN sizes it is not known, and no measured peak stood on it.
    """

    @staticmethod
    def forward(  # noqa: PLR0917  (apply takes no keywords)
        ctx: Any,
        cell: _Cell,
        weight_stride: int,
        buffer: torch.Tensor | None,
        inputs: torch.Tensor,
        hx: torch.Tensor,
        cx: torch.Tensor | None,
        *weights: torch.Tensor,
    ) -> Any:
        x_TBI = _time_first(cell, inputs)
        if buffer is None:
            buffer = x_TBI.new_empty(0)  # the flat buffer is the parameters themselves
        hx, cx = hx.contiguous(), cx.contiguous() if cx is not None else None
        output, hy, cy, reserve, _ = aten._cudnn_rnn(
            x_TBI, list(weights), weight_stride, buffer, hx, cx, *_time_first_arguments(cell)
        )
        if cell.batch_first:
            output = output.transpose(0, 1)
        ctx.cell, ctx.weight_stride = cell, weight_stride
        ctx.save_for_backward(inputs, buffer, hx, cx, output, reserve, *weights)
        ctx.set_materialize_grads(False)
        return output, hy, cy

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        cell: _Cell = ctx.cell
        inputs, buffer, hx, cx, output, reserve, *weights = ctx.saved_tensors
        grad_output = torch.zeros_like(output) if grads[0] is None else grads[0]
        grad_hy = torch.zeros_like(hx) if grads[1] is None else grads[1]
        x_TBI, dy_TBO = _time_first(cell, inputs), _time_first(cell, grad_output)
        y_TBO = output.transpose(0, 1) if cell.batch_first else output
        mask = [True, True, cx is not None, True]
        dx, dhx, dcx, dweights = aten._cudnn_rnn_backward(
            *(x_TBI, weights, ctx.weight_stride, buffer, hx, cx, y_TBO, dy_TBO, grad_hy.contiguous(), grads[2]),
            *(*_time_first_arguments(cell), reserve, mask),
        )
        if cell.batch_first:
            dx = dx.transpose(0, 1)
        return None, None, None, dx, dhx, dcx if cx is not None else None, *dweights


def _time_first(cell: _Cell, tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.transpose(0, 1) if cell.batch_first else tensor).contiguous()


def _time_first_arguments(cell: _Cell) -> tuple[Any, ...]:
    mode, hidden_size, proj_size, layers, _, *rest = cell.arguments()
    return mode, hidden_size, proj_size, layers, False, *rest


def _fake_forward(
    fake_mode: Any,
    func: Any,
    x_TBI: torch.Tensor,
    *arguments: Any,
) -> Any:
    _, _, weight_buf, hx, cx = arguments[:5]
    cell = _Cell(*arguments[5:13])
    outputs = (cell.proj_size or cell.hidden_size) * cell.directions
    with fake_mode:
        reserve = cell.reserve_bytes(x_TBI) if cell.train else 0
        return (
            x_TBI.new_empty((*x_TBI.shape[:2], outputs)),
            torch.empty_like(hx),
            torch.empty_like(cx) if cx is not None else hx.new_empty(0),
            x_TBI.new_empty(reserve, dtype=torch.uint8),
            weight_buf.view_as(weight_buf),
        )


def _fake_backward(
    fake_mode: Any,
    func: Any,
    x_TBI: torch.Tensor,
    weight: list[torch.Tensor],
    *arguments: Any,
) -> Any:
    hx, cx = arguments[2:4]
    with fake_mode:
        flat = weight[0].new_empty(sum(part.numel() for part in weight))  # one buffer holds all their gradients
        parts = flat.split([part.numel() for part in weight])
        gradients = [part.view(like.shape) for part, like in zip(parts, weight, strict=True)]
        return (
            torch.empty_like(x_TBI),
            torch.empty_like(hx),
            torch.empty_like(cx) if cx is not None else hx.new_empty(0),
            gradients,
        )
