"""Which matrix products inductor pads to aligned sizes (`pad_mm`): it times both ways, here both times are estimated.

A benchmark would take memory and time of a card that a training is using, cannot run without one, and near a tie gives
the same step another graph each time. The numbers below were fitted to the times of 590 products, each both ways, that
inductor's benchmark took alone on an H200 under torch 2.11 (float32 as TF32, and bfloat16): 561 come out as it decided,
and 131 of 146 others that were timed later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from peakcast.featurizer.pad_trials import padded_size

# How fast products get on tensor cores, and how fast they and copies move bytes.
_FLOPS_BY_ITEM_BYTES: Final = {2: 751e12, 4: 317e12}
_BYTES_PER_S: Final = 2.6e12
_COPIED_BYTES_PER_S: Final = 3.7e12
# What a call costs whatever its sizes, and each further kernel; a padded copy takes two.
_CALL_S: Final = 6.8e-6
_KERNEL_S: Final = 1.84e-6
# How much slower a product computes whose rows are multiples of so many bytes only: by item size, then by alignment;
# and one whose result has rows of two bytes.
_SLOWER: Final = {2: {8: 3.1, 4: 3.2, 2: 5.7}, 4: {8: 2.7, 4: 2.65}}
_SLOWER_RESULT: Final = 7.8
# How much slower it moves its bytes, and those of such a result.
_SLOWER_BOUND_BY_MEMORY: Final = {2: 2.0, 4: 1.36}
_SLOWER_RESULT_BOUND_BY_MEMORY: Final = 5.0
# To read an item of a transposed operand: from this stride on each lies in a line of its own. Nearer items of a line
# share it, unless strides of a power of two put the lines into the same set of the cache.
_FAR_STRIDE_BYTES: Final = 300
_CACHED_BYTES: Final = 60000
_NEAR_ITEM_S: Final = {2: 4.8e-12, 4: 2.9e-12}
_FAR_ITEM_S: Final = {2: 6.1e-12, 4: 4.5e-12}
# Rows of such a multiple are written to few of the memory's channels at a time (seen in float32).
_CROWDED_ROW_BYTES: Final = 32768
_CROWDED_ITEM_S: Final = {2: 6.1e-12, 4: 5.1e-12}
# Inductor takes padding only where it wins by this factor.
_MARGIN: Final = 1.1
# All but three of the 29 lie within this factor of a tie: two are products of three columns, one was decided by a hair.
_TIE: Final = 1.5
_HOOKS: Final = ("should_pad_bench_key", "get_cached_should_pad", "is_mm_compute_bound")


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix that a product reads, or a batch of them: elements, and strides in elements."""

    rows: int
    columns: int
    row_stride: int
    column_stride: int
    is_planned: bool = False  # made by a kernel that can write it padded: the benchmark leaves its copy out

    @property
    def lies_by_rows(self) -> bool:
        """Say whether its rows lie one after another, each in a piece."""
        return (self.column_stride == 1 or self.columns == 1) and (self.row_stride >= self.columns or self.rows == 1)

    @property
    def lies_by_columns(self) -> bool:
        """Say whether its columns do."""
        return (self.row_stride == 1 or self.rows == 1) and (self.column_stride >= self.rows or self.columns == 1)

    @property
    def leading(self) -> int:
        """Return the stride that has to be aligned, in elements; 0 where there is none.

        What lies otherwise, an expanded matrix for one, is copied row by row before it is multiplied.
        """
        if min(self.rows, self.columns) <= 1:
            return 0
        if self.lies_by_rows:
            return self.row_stride
        return self.column_stride if self.lies_by_columns else self.columns


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product, or a batch of them, as inductor asks about it."""

    first: Operand
    second: Operand
    item_bytes: int
    alignment: int  # in elements, what each dimension would be padded to a multiple of
    batch: int = 1
    bias_rows: int = 0  # of what is added: none, one for all rows, or as many as the result has
    symbols: tuple[bool, bool, bool] = (False, False, False)  # which of M, K, N are: those are not padded
    on_tensor_cores: bool = True


def is_padded(product: Product) -> bool:
    """Estimate whether inductor's benchmark finds the padded product faster."""
    return padding_gain(product) > 1.0


def is_near_tie(product: Product) -> bool:
    """Say whether the benchmark could as well find the opposite."""
    return 1 / _TIE < padding_gain(product) < _TIE


def padding_gain(product: Product) -> float:
    """Estimate how much faster the padded product is, copies of its operands counted, over what inductor asks for.

    0 where there is nothing to pad, or no tensor core to win by.
    """
    first, second, item = product.first, product.second, product.item_bytes
    if not product.on_tensor_cores or item not in _FLOPS_BY_ITEM_BYTES:
        return 0.0
    sizes = (first.rows, first.columns, second.columns)
    padded = tuple(
        size if is_symbol else padded_size(size, product.alignment)
        for size, is_symbol in zip(sizes, product.symbols, strict=True)
    )
    if padded == sizes:
        return 0.0
    m, k, n = padded
    as_it_is, with_copies = _CALL_S, _CALL_S + _bias_seconds(product, padded)
    leading: list[int] = []
    for operand, shape in ((first, (m, k)), (second, (k, n))):
        laid_out = 0.0 if operand.lies_by_rows or operand.lies_by_columns else _layout_seconds(product, operand)
        is_copied = shape != (operand.rows, operand.columns)
        as_it_is += laid_out
        with_copies += _copy_seconds(product, operand, *shape) if is_copied else laid_out
        leading.append(shape[1] if is_copied else operand.leading)
    as_it_is += _seconds(product, sizes, [first.leading, second.leading])
    with_copies += _seconds(product, padded, leading)
    return as_it_is / (_MARGIN * with_copies)


def _seconds(product: Product, sizes: tuple[int, ...], leading: Sequence[int]) -> float:
    """Return how long a product of M, K, N takes whose operands have these leading strides, each in elements."""
    m, k, n = sizes
    item_bytes = product.item_bytes
    of_result = _alignment_bytes(n * item_bytes) if min(m, n) > 1 else 16
    alignment = min(of_result, *(_alignment_bytes(one * item_bytes) for one in leading))
    slower, slower_by_memory = _SLOWER[item_bytes].get(alignment, 1.0), 1.0
    if alignment < 16:
        slower_by_memory = _SLOWER_BOUND_BY_MEMORY[item_bytes]
    slower_result_by_memory = slower_by_memory
    if of_result == 2:
        slower, slower_result_by_memory = _SLOWER_RESULT, _SLOWER_RESULT_BOUND_BY_MEMORY
    computing_s = 2.0 * product.batch * m * n * k / _FLOPS_BY_ITEM_BYTES[item_bytes] * slower
    items = (m * k + k * n) * slower_by_memory + m * n * slower_result_by_memory
    moving_s = item_bytes * product.batch * items / _BYTES_PER_S
    return float((computing_s**3 + moving_s**3) ** (1 / 3))  # about the longer of the two


def _copy_seconds(product: Product, operand: Operand, rows: int, columns: int) -> float:
    """Return what a copy of an operand in its padded shape costs: it is filled, then written, and the operand read."""
    if operand.is_planned:
        return _KERNEL_S  # the margin is written
    reading_s = product.batch * operand.rows * operand.columns * _reading_item_s(operand, columns, product.item_bytes)
    writing_s = 2 * product.batch * rows * columns * product.item_bytes / _COPIED_BYTES_PER_S
    return 2 * _KERNEL_S + reading_s + writing_s


def _reading_item_s(operand: Operand, columns: int, item_bytes: int) -> float:
    """Return what it takes to read an item of an operand that is copied into rows of so many columns."""
    stride_bytes = operand.column_stride * item_bytes
    if stride_bytes >= _FAR_STRIDE_BYTES and operand.rows * operand.columns * item_bytes >= _CACHED_BYTES:
        is_crowded = columns * item_bytes % _CROWDED_ROW_BYTES == 0
        return (_CROWDED_ITEM_S if is_crowded else _FAR_ITEM_S)[item_bytes]
    if operand.column_stride > 1 and stride_bytes & (stride_bytes - 1) == 0:
        return _NEAR_ITEM_S[item_bytes]
    return item_bytes / _COPIED_BYTES_PER_S


def _layout_seconds(product: Product, operand: Operand) -> float:
    """Return what it costs to write an operand row by row."""
    return product.item_bytes * product.batch * 2 * operand.rows * operand.columns / _COPIED_BYTES_PER_S + _KERNEL_S


def _bias_seconds(product: Product, padded: tuple[int, ...]) -> float:
    """Return what it costs to pad what is added: a copy of all of it for each side that is."""
    m, _, n = padded
    sides = (n != product.second.columns) + (m != product.first.rows and product.bias_rows > 1)
    if not product.bias_rows or not sides:
        return 0.0
    return sides * (2 * _KERNEL_S + 2 * product.item_bytes * product.bias_rows * n / _COPIED_BYTES_PER_S)


def _alignment_bytes(size_bytes: int) -> int:
    """Return the largest power of two that divides a size, up to 16."""
    return min(size_bytes & -size_bytes, 16) if size_bytes else 16


def rounds_to_tf32() -> bool:
    """Say whether products in float32 may run on tensor cores here, by either of torch's ways to ask for it."""
    matmul = torch.backends.cuda.matmul
    if getattr(matmul, "fp32_precision", None) == "tf32":
        return True
    try:
        return bool(matmul.allow_tf32)
    except RuntimeError:  # the other way was taken
        return False


def decide_without_timing(answer: Callable[[Product], bool] = is_padded) -> bool:
    """Let `answer` decide on each product that inductor asks about, on a real card too, in this process for good.

    The names are private to torch, the same from 2.11 to 2.13. Returns whether they are there: else nothing is changed.
    """
    from torch._inductor.fx_passes import pad_mm as module

    pad_mm: Any = module
    if not all(hasattr(pad_mm, name) for name in _HOOKS):
        return False

    def describe(match: Any, mat1: Any, mat2: Any, op: Any, input: Any = None, is_base_time_key: bool = False) -> Any:  # noqa: A002, FBT001, FBT002 - torch's own names
        return _product(match, mat1, mat2, input)

    def decide(product: Product | None) -> bool:
        return product is not None and answer(product)

    # What names a product in the cache of results, which is asked before anything is timed.
    pad_mm.should_pad_bench_key = describe
    pad_mm.get_cached_should_pad = decide
    # Which products are worth a benchmark is judged by clock rates that CUDA 13 no longer tells: there it is all.
    pad_mm.is_mm_compute_bound = lambda *_: True
    return True


def _product(match: Any, mat1: Any, mat2: Any, added: Any) -> Product | None:
    """Describe a product as inductor sees it; None where a size has no value yet."""
    from torch._inductor.fx_passes import pad_mm

    def operand(name: str, tensor: Any) -> Operand | None:
        numbers = [_value(one) for one in (*tensor.shape[-2:], *tensor.stride()[-2:])]
        if any(one is None for one in numbers):
            return None
        rows, columns, row_stride, column_stride = (one or 0 for one in numbers)
        return Operand(rows, columns, row_stride, column_stride, pad_mm.should_exclude_padding_time(match, name))

    first, second = operand("mat1", mat1), operand("mat2", mat2)
    batch = _value(mat1.shape[0]) if mat1.dim() > 2 else 1
    bias_rows = 0 if added is None else _value(added.shape[0]) if added.dim() > 1 else 1
    if first is None or second is None or batch is None or bias_rows is None:
        return None
    is_half = mat1.dtype in (torch.bfloat16, torch.float16)
    m, k, n = (not isinstance(size, int) for size in (*mat1.shape[-2:], mat2.shape[-1]))
    return Product(
        first,
        second,
        item_bytes=mat1.dtype.itemsize,
        alignment=pad_mm.get_alignment_size(mat1),
        batch=batch,
        bias_rows=bias_rows,
        symbols=(m, k, n),
        on_tensor_cores=is_half or (mat1.dtype is torch.float32 and rounds_to_tf32()),
    )


def _value(size: Any) -> int | None:
    """Return a size as a number: of a symbol, the one it was traced at."""
    if isinstance(size, int):
        return size
    hint = size.node.hint
    return None if hint is None else int(hint)
