"""The nodes of compiled graphs as the fusion rules ask about them: as columns, and as lists for rules in Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from peakcast.featurizer.convolution_geometry import parse_geometry
from peakcast.featurizer.op_kinds import OpKind, op_kind, stem
from peakcast.featurizer.trace import Csr, Int32, Int64, Trace
from peakcast.featurizer.vocabulary import BACKWARD

Flags = NDArray[np.bool_]


class Loop(IntEnum):
    """How a kernel goes through what it reads. Kernels are fused where their loops fit together."""

    NONE = 0  # fused with nothing
    FLAT = 1  # element by element
    ROWS = 2  # a row at a time, to an element each
    COLUMNS = 3  # sums over all rows
    PARTS = 4  # a concatenation: each part by itself


# Parts of a buffer that are told apart, as bits.
MOST_PARTS_SEEN: Final = 32
_BLOCK_BYTES = 512
_KINDS: Final = tuple(OpKind)
_PADS: Final = frozenset({"constant_pad_nd"})
# Library calls that write to a buffer which they are given.
_WITH_OUT: Final = frozenset({"_int_mm", "_scaled_mm", "addmm", "baddbmm", "bmm", "mm"})
# Views that move elements: what is read through one is not read where it is written.
_TRANSPOSES: Final = frozenset({"permute", "transpose", "t"})
_MOVING_VIEWS = _TRANSPOSES | {"slice", "select", "expand", "as_strided", "unfold", "split", "split_with_sizes"}
_NEEDS_MEMORY = (OpKind.EXTERN, OpKind.WINDOW)
# Lowered to a buffer whoever reads them: drawn once, and kept for a backward that needs the numbers again.
_WRITTEN = frozenset({"inductor_random"})
# Along the last dimension, however long it is.
_ALONG_ROWS = frozenset({"amax", "prepare_softmax_online"})
_SUMS = frozenset({"mean", "sum"})
# Below this it hardly matters which kernel writes a buffer. These are mostly vectors of channels, whose loops a trace
# does not tell apart: fused by their size alone, they draw kernels together that inductor keeps apart.
_FUSED_BYTES: Final = 1 << 12
# inductor's MixOrderReduction: sums over at least this many rows, so long, of so many elements in all.
_FEWEST_ROWS: Final = 4096
_LONGEST_ROW: Final = 1 << 14
_FEWEST_ELEMENTS: Final = 5 << 20
# inductor's max_pointwise_cat_inputs.
MOST_PARTS: Final = 8
# Buffers looked at behind a part of a concatenation: what computes more than `realize_opcount_threshold` is written.
_MOST_INLINED: Final = 64
# What `pointwise_cat` computes for each: where it begins and ends, both compared, the load under a mask, the choice.
_OPS_OF_PART: Final = 5
# Their code reads and no more.
_ONLY_READ: Final = frozenset({"_unsafe_index", "clone", "embedding", "gather", "index", "lift_fresh_copy"})
_FILLED: Final = frozenset({"full", "scalar_tensor"})
# With one tensor, the other operand of these is a constant.
_OF_TWO: Final = frozenset(
    {"add", "bitwise_and", "clamp_max", "clamp_min", "div", "eq", "fmod", "ge", "gt", "le", "lt"}
    | {"maximum", "minimum", "mul", "ne", "remainder", "rsub", "sub"}
)
_CONSTANTS_OF_CLAMP: Final = 2
_IMAGE_RANK: Final = 4
_REDUCED_BY: Final = frozenset({"amax", "amin", "mean", "prod", "sum"})
# Computed by ATen, into a buffer that holds the first input: inductor falls back for all reductions but a sum.
_SCATTERS_IN_PLACE = frozenset({"scatter_reduce"})


@dataclass(frozen=True, slots=True, eq=False)
class GraphColumns:
    """One trace, seen by the fusion rules, as columns by node [N] and by storage [S]."""

    kind: Int64  # [N] OpKind
    is_view: Flags  # [N] only renames the one storage it reads
    moves: Flags  # [N] a view such that what is read through it lies elsewhere than it was written
    transposes: Flags  # [N] a view that moves elements by the order of its dimensions alone
    lays_out: Flags  # [N] a convolution whose result lies in channels last
    is_copy: Flags  # [N]
    allocates_itself: Flags  # [N] a library call without `out=`
    is_written: Flags  # [N] its result is a buffer whoever reads it
    parts: Int64  # [N] of a view: how many like it make up the storage; 1: it is all of it
    op: Int64  # [N] its operator's number
    op_count: Int64  # [N] operations of the code that computes it, constants and reads left out
    constant_count: Int64  # [N] constants in it
    made_numel: Int64  # [N] elements of the tensor that it returns
    lies_in_images: Flags  # [N] of four dimensions, in a trace with convolutions: copied into their order, so written
    broadcasts: Flags  # [N] a view that repeats elements: what reads by it reads what others read of it
    is_joined: Flags  # [N] a concatenation that is computed in what reads it
    loop: Int64  # [N] Loop
    outer: Int64  # [N] elements that the loop makes
    inner: Int64  # [N] elements that it reads for each
    inputs: Csr
    new: Csr  # the storages that a node allocates
    changed: Csr  # the storages made before that a node writes to
    # How many nodes compute with a storage, and whether one needs it in memory. Views do neither.
    readers: Int64  # [S]
    is_needed_in_memory: Flags  # [S]
    last_change: Int64  # [S] the last node that writes to it in place; -1: none does
    is_awaited: Flags  # [S] the first node to compute with it needs it in memory, and nothing writes to it in place
    numel: Int64  # [S] elements of the first tensor in it, 0 where it was there before
    dtype: Int64  # [S] the type of the first tensor that its maker returns; -1 where it was there before
    bytes: Int64  # [S] rounded as the allocator rounds, so that equal means that one can take the other's place
    born: Int64  # [S]
    died: Int64  # [S]
    is_saved: Flags  # [S] made by a compiled forward and freed by its backward
    is_donated: Flags  # [S] and read by nobody else: its backward may write over it
    is_returned: Flags  # [S] its graph returns it, and its caller drops it at once
    is_unread: Flags  # [S] one of several results of a kernel that inductor generates: never written
    returned_view: Int64  # [S] the view by which it leaves its graph, where that is the last node to touch it; -1

    @classmethod
    def of(cls, trace: Trace, ops: tuple[str, ...], attributes: tuple[str, ...] = ()) -> Self:
        """Read a trace."""
        stems = [stem(op) for op in ops]
        kinds = [op_kind(op) for op in ops]

        def by_op(flags: list[bool]) -> Flags:
            return np.array(flags, np.bool_)[trace.op]

        is_view = _views(trace)
        count = len(trace.storages)
        node, storage = trace.inputs.distinct(count)
        computes = ~is_view[node]
        node, storage = node[computes], storage[computes]
        scatters = by_op([name in _SCATTERS_IN_PLACE for name in stems])
        new, changed = _allocated_and_changed(trace, is_view)
        touched = _last_touches(trace)
        is_returned = _returned(trace, touched, is_view, by_op([name == "exp" for name in stems]))
        kind = np.array(kinds, np.int64)[trace.op]
        is_product = by_op([name in _WITH_OUT for name in stems])[node]
        kind[_inlined_pads(by_op([name in _PADS for name in stems]), new, storage[is_product])] = OpKind.POINTWISE
        kind[_reductions_of_one(trace, is_view, new, by_op([name in _REDUCED_BY for name in stems]))] = OpKind.POINTWISE
        needs_memory = np.isin(kind[node], _NEEDS_MEMORY)
        inlined = _inlined_concatenations(trace, kind, is_view, new, (node, storage), is_returned)
        kind[inlined] = OpKind.POINTWISE
        op_count = (~by_op([name in _ONLY_READ | _FILLED for name in stems])).astype(np.int64)
        op_count[inlined] += _OPS_OF_PART * trace.inputs.sizes()[inlined]
        is_unread = _unread(trace, touched, kind, new) & ~is_returned
        new = _kept(new, ~is_unread[new.ids])
        beside = _read_beside_the_first(trace.inputs, scatters)
        needed: Int64 = np.concatenate((storage[needs_memory], changed.ids, beside)).astype(np.int64)
        saved = _saved(trace)
        born, died = trace.storages.born.astype(np.int64), trace.storages.died.astype(np.int64)
        numel = np.where(born >= 0, trace.numel[born] if len(trace) else 0, 0).astype(np.int64)
        size_bytes = -(-trace.storages.bytes // _BLOCK_BYTES) * _BLOCK_BYTES
        loop, outer, inner = _loops(
            kind,
            trace.inputs,
            new,
            numel,
            size_bytes,
            along_rows=by_op([name in _ALONG_ROWS for name in stems]),
            is_sum=by_op([name in _SUMS for name in stems]),
        )
        return cls(
            kind=kind,
            is_view=is_view,
            moves=by_op([name in _MOVING_VIEWS for name in stems]),
            transposes=by_op([name in _TRANSPOSES for name in stems]),
            lays_out=_lays_out(trace, by_op([name == "convolution" for name in stems]), attributes),
            is_copy=by_op([name == "clone" for name in stems]),
            allocates_itself=(kind == OpKind.EXTERN) & ~by_op([name in _WITH_OUT for name in stems]),
            is_written=by_op([name in _WRITTEN for name in stems]),
            parts=_parts(trace, is_view, numel),
            op=trace.op.astype(np.int64),
            op_count=op_count,
            constant_count=_constants(trace, stems),
            made_numel=trace.numel.astype(np.int64),
            lies_in_images=(trace.rank == _IMAGE_RANK) & by_op([name == "convolution" for name in stems]).any(),
            broadcasts=by_op([name == "expand" for name in stems]),
            is_joined=np.isin(np.arange(len(kind)), inlined),
            loop=loop,
            outer=outer,
            inner=inner,
            inputs=trace.inputs,
            new=new,
            changed=changed,
            readers=np.bincount(storage, minlength=count),
            is_needed_in_memory=_flags(needed, count),
            is_awaited=_awaited(node, storage, needs_memory, count) & ~_flags(changed.ids, count),
            last_change=_last_rows(changed, count),
            numel=numel,
            dtype=np.where(born >= 0, trace.dtype.astype(np.int64)[born] if len(trace) else 0, -1),
            bytes=size_bytes,
            born=born,
            died=died,
            is_saved=saved,
            is_donated=_donated(trace, saved),
            is_returned=is_returned,
            is_unread=is_unread,
            returned_view=_returned_views(trace, touched, is_view),
        )


class CompiledGraph:
    """The columns as lists, for rules that walk them one by one."""

    def __init__(self, columns: GraphColumns) -> None:
        self.kinds = [_KINDS[kind] for kind in columns.kind.tolist()]
        self.is_view: list[bool] = columns.is_view.tolist()
        self.moves: list[bool] = columns.moves.tolist()
        self.transposes: list[bool] = columns.transposes.tolist()
        self.lays_out: list[bool] = columns.lays_out.tolist()
        self.is_copy: list[bool] = columns.is_copy.tolist()
        self.allocates_itself: list[bool] = columns.allocates_itself.tolist()
        self.is_written: list[bool] = columns.is_written.tolist()
        self.parts: list[int] = columns.parts.tolist()
        self.op: list[int] = columns.op.tolist()
        self.constant_count: list[int] = columns.constant_count.tolist()
        self.made_numel: list[int] = columns.made_numel.tolist()
        self.lies_in_images: list[bool] = columns.lies_in_images.tolist()
        self.broadcasts: list[bool] = columns.broadcasts.tolist()
        self.is_joined: list[bool] = columns.is_joined.tolist()
        self.op_count: list[int] = columns.op_count.tolist()
        self.loop: list[int] = columns.loop.tolist()
        self.outer: list[int] = columns.outer.tolist()
        self.inner: list[int] = columns.inner.tolist()
        self.returned_view: list[int] = columns.returned_view.tolist()
        self.inputs, self.new, self.changed = _rows(columns.inputs), _rows(columns.new), _rows(columns.changed)
        self.readers: list[int] = columns.readers.tolist()
        self.is_needed_in_memory: list[bool] = columns.is_needed_in_memory.tolist()
        self.last_change: list[int] = columns.last_change.tolist()
        self.is_awaited: list[bool] = columns.is_awaited.tolist()
        self.numel: list[int] = columns.numel.tolist()
        self.dtype: list[int] = columns.dtype.tolist()
        self.bytes: list[int] = columns.bytes.tolist()
        self.born: list[int] = columns.born.tolist()
        self.died: list[int] = columns.died.tolist()
        self.is_saved: list[bool] = columns.is_saved.tolist()
        self.is_donated: list[bool] = columns.is_donated.tolist()
        self._returned_at: dict[int, set[int]] = {}  # by a graph's last node
        for storage in np.flatnonzero(columns.is_returned).tolist():
            self._returned_at.setdefault(self.died[storage], set()).add(storage)

    def is_scattered(self, storage: int) -> bool:
        """Tell whether a storage was made by writing into another: nothing takes the place of such a buffer."""
        return self.born[storage] >= 0 and self.kinds[self.born[storage]] is OpKind.SCATTER

    def returned_and_dropped(self, end: int) -> set[int]:
        """Return the storages that the graph ending before node `end` returns and that its caller drops at once."""
        return self._returned_at.get(end - 1, set())


def segments(trace: Trace) -> Iterator[tuple[int, int]]:
    """Yield [first, end) of each run of one compiled graph, forward and backward apart."""
    if not len(trace):
        return
    code = trace.compiled_parts()
    edges = np.flatnonzero(np.diff(code)) + 1
    bounds = [0, *edges.tolist(), len(code)]
    for first, end in pairwise(bounds):
        if code[first] >= 0:
            yield first, end


def _rows(csr: Csr) -> list[list[int]]:
    flat, bounds = csr.ids.tolist(), csr.offsets.tolist()
    return [flat[start:end] for start, end in pairwise(bounds)]


def _allocated_and_changed(trace: Trace, is_view: Flags) -> tuple[Csr, Csr]:
    """Sort what each node returns by whether it allocates it; a view changes nothing."""
    node = trace.outputs.rows()
    is_new = trace.storages.born[trace.outputs.ids] == node
    return _kept(trace.outputs, is_new), _kept(trace.outputs, ~is_new & ~is_view[node])


def _kept(csr: Csr, keep: Flags) -> Csr:
    kept_before = np.concatenate(([0], np.cumsum(keep)))
    return Csr(offsets=kept_before[csr.offsets].astype(np.int32), ids=csr.ids[keep])


def _read_beside_the_first(csr: Csr, nodes: Flags) -> Int32:
    """Return what these nodes read beside their first input, as `ScatterFallback` (ir.py) does beside its copy."""
    node = csr.rows()
    beside: Int32 = csr.ids[nodes[node] & (np.arange(len(csr.ids)) > csr.offsets[node])]
    return beside


def _views(trace: Trace) -> NDArray[np.bool_]:
    inputs, outputs = trace.inputs, trace.outputs
    views: NDArray[np.bool_] = (inputs.sizes() == 1) & (outputs.sizes() == 1)
    candidates = np.flatnonzero(views)
    views[candidates] = inputs.ids[inputs.offsets[candidates]] == outputs.ids[outputs.offsets[candidates]]
    return views


def _reductions_of_one(trace: Trace, is_view: Flags, new: Csr, reduces: Flags) -> Int64:
    """Return the reductions along dimensions of one element: pointwise, by `Reduction.create` in ir.py.

    A trace tells no dimensions, but such a one makes as many elements as it reads.
    """
    found = np.flatnonzero(reduces & (trace.inputs.sizes() == 1) & (new.sizes() == 1))
    read = trace.inputs.ids[trace.inputs.offsets[found]]
    if not len(found):
        return found
    # What it reads is shown by the latest node that made or viewed the storage.
    shows = np.flatnonzero(is_view | (new.sizes() == 1))
    shown = trace.outputs.ids[trace.outputs.offsets[shows]].astype(np.int64)
    order = np.lexsort((shows, shown))
    keys = (shown * len(trace) + shows)[order]
    at = np.maximum(np.searchsorted(keys, read.astype(np.int64) * len(trace) + found) - 1, 0)
    latest = order[at]
    is_alike = (shown[latest] == read) & (trace.numel[shows[latest]] == trace.numel[found])
    of_one: Int64 = found[is_alike & (trace.numel[found] > 1)]
    return of_one


def _constants(trace: Trace, stems: Sequence[str]) -> Int64:
    """Return how many constants the code of each node [N] holds."""
    of_two = np.array([name in _OF_TWO for name in stems], np.bool_)[trace.op] & (trace.inputs.sizes() == 1)
    clamps = np.array([name == "clamp" for name in stems], np.bool_)[trace.op]
    filled = np.array([name in _FILLED for name in stems], np.bool_)[trace.op]
    count: Int64 = (of_two | filled) + _CONSTANTS_OF_CLAMP * clamps.astype(np.int64)
    return count


def _awaited(node: Int64, storage: Int64, needs_memory: Flags, count: int) -> Flags:
    """Tell of which storages [S] the first reader needs them in memory. Nodes come in ascending order."""
    first = np.full(count, len(node), np.int64)
    np.minimum.at(first, storage, np.arange(len(node)))
    is_read = first < len(node)
    awaited = np.zeros(count, np.bool_)
    awaited[is_read] = needs_memory[first[is_read]]
    return awaited


def _lays_out(trace: Trace, is_convolution: Flags, attributes: Sequence[str]) -> Flags:
    """Tell which nodes [N] are convolutions whose result lies in channels last."""
    lays_out = np.zeros(len(trace), np.bool_)
    if not attributes:
        return lays_out
    nodes = np.flatnonzero(is_convolution & (trace.attribute >= 0))
    used, which = np.unique(trace.attribute[nodes], return_inverse=True)
    parsed = [parse_geometry(attributes[attribute]) for attribute in used.tolist()]
    lies_last = np.array([one is not None and one.lies_last(is_laid_out=True) for one in parsed], np.bool_)
    lays_out[nodes] = lies_last[which]
    return lays_out


def _parts(trace: Trace, is_view: Flags, numel: Int64) -> Int64:
    """Return how many views like it make up the storage, for each node [N] that views a part of one."""
    parts = np.ones(len(trace), np.int64)
    views = np.flatnonzero(is_view)
    whole = numel[trace.inputs.ids[trace.inputs.offsets[views]]]
    parts[views] = np.clip(whole // np.maximum(trace.numel[views], 1), 1, MOST_PARTS_SEEN)
    return parts


def _unread(trace: Trace, touched: Int64, kind: Int64, new: Csr) -> Flags:
    """Tell which storages [S] are one of several results of a generated kernel, and nothing reads them in their graph.

    Inductor lowers each result for itself (the offsets of a max pool, a mean beside its variance), and what nothing
    needs is dropped: `dead_node_elimination` in scheduler.py.
    """
    born, died = trace.storages.born, trace.storages.died
    unread = np.zeros(len(born), np.bool_)
    several = (kind != OpKind.EXTERN) & (trace.region >= 0) & (new.sizes() > 1)
    made = new.ids[several[new.rows()]]
    if len(made):
        code = trace.compiled_parts()
        dies = (died[made] >= 0) & (code[died[made]] == code[born[made]])
        unread[made] = dies & (touched[made] == born[made])
    return unread


def _inlined_pads(pads: Flags, new: Csr, multiplied: Int64) -> Int64:
    """Return the paddings that are computed from what they pad like any other value, without that being written.

    Not those of products (`multiplied` are the storages that products read): `pad_mm` makes them, and where they are
    lowered what they pad is there already.
    """
    node = new.rows()
    is_multiplied = np.isin(new.ids, multiplied)
    return np.setdiff1d(np.flatnonzero(pads), node[is_multiplied])


def _inlined_concatenations(
    trace: Trace, kind: Int64, is_view: Flags, new: Csr, reads: tuple[Int64, Int64], is_returned: Flags
) -> Int64:
    """Return the concatenations of few parts that are computed in what reads them.

    That is where only pointwise nodes do, or where every part would have to be copied into it. Not where a part is
    computed for another reader as well: that one, and the concatenation, are written. Nor in a backward, where measured
    and replayed peaks show them written, which the source does not explain. Follows `fuse_pointwise_use` and
    `horizontal_fuse_cat` of `cat` in torch/_inductor/lowering.py. `reads` are the nodes that compute with a storage,
    and that storage.
    """
    sizes, born, died = trace.inputs.sizes(), trace.storages.born, trace.storages.died
    found = np.flatnonzero((kind == OpKind.CONCAT) & (new.sizes() == 1) & (sizes > 0) & (sizes <= MOST_PARTS))
    if not len(found):
        return found
    count = len(trace.storages)
    node, storage = reads
    is_pointwise = kind[node] == OpKind.POINTWISE
    is_whole = _flags(storage[~is_pointwise & (kind[node] != OpKind.CONCAT)], count) | is_returned
    code = trace.compiled_parts()
    made = new.ids[new.offsets[found]]
    dies = (died[made] >= 0) & (code[died[made]] == code[found])
    fits = dies & (trace.phase[found] != BACKWARD)
    is_asked = fits & is_whole[made]
    fits[is_asked] = _all_copied(trace, kind, code, found[is_asked], storage[np.isin(kind[node], _NEEDS_MEMORY)])

    parts = trace.inputs.ids
    leaves = (born >= 0) & ((died < 0) | (code[died] != code[born]))
    users = np.bincount(storage, minlength=count) + leaves
    is_computed = (born >= 0) & (kind[born] == OpKind.POINTWISE)
    is_shared = _flags(storage[is_pointwise], count) | (is_computed & (users > 1))
    is_shared[trace.inputs.ids[is_view[trace.inputs.rows()]]] = False  # a view is a node of its own
    has_shared = _flags(trace.inputs.rows()[is_shared[parts]], len(trace))
    inlined: Int64 = found[fits & ~has_shared[found]]
    return inlined


def _all_copied(trace: Trace, kind: Int64, code: Int64, found: Int64, in_memory: Int64) -> Flags:
    """Tell of which nodes [found] every part must be copied: it was there before, or is a value not written so far.

    Not where a part is computed from what a reduction makes: each element would do that anew. `in_memory` are storages
    that are written for what reads them, `code` numbers the compiled parts.
    """
    born = trace.storages.born
    is_written = _flags(in_memory, len(born))
    copied = np.zeros(len(found), np.bool_)
    for place, node in enumerate(found.tolist()):
        parts = trace.inputs.row(node)
        own = parts[(born[parts] >= 0) & (code[born[parts]] == code[node])]
        if (kind[born[own]] == OpKind.POINTWISE).all() and not is_written[own].any():
            copied[place] = not _is_reduced(trace, kind, code, own, node)
    return copied


def _is_reduced(trace: Trace, kind: Int64, code: Int64, storages: Int32, node: int) -> bool:
    """Tell whether pointwise values are computed from what a reduction makes in their graph."""
    born = trace.storages.born
    waiting, seen = storages.tolist(), set(storages.tolist())
    while waiting and len(seen) <= _MOST_INLINED:
        maker = int(born[waiting.pop()])
        if maker < 0 or code[maker] != code[node] or kind[maker] not in (OpKind.POINTWISE, OpKind.REDUCTION):
            continue
        if kind[maker] == OpKind.REDUCTION:
            return True
        read = trace.inputs.row(maker)[: _MOST_INLINED + 1].tolist()  # more than that ends it anyway
        new = [storage for storage in read if storage not in seen]
        seen.update(new)
        waiting += new
    return bool(waiting)


def _last_rows(csr: Csr, count: int) -> Int64:
    last = np.full(count, -1, np.int64)
    np.maximum.at(last, csr.ids, csr.rows())
    return last


def _last_touches(trace: Trace) -> Int64:
    """Return the last node that reads or writes each storage [S]; -1: none does."""
    touched = np.full(len(trace.storages), -1, np.int64)
    for csr in (trace.inputs, trace.outputs):
        np.maximum.at(touched, csr.ids, csr.rows())
    return touched


def _returned(trace: Trace, touched: Int64, is_view: Flags, is_exp: Flags) -> Flags:
    """Tell which storages a compiled graph returns while its caller drops them at once.

    They die with the graph's last node, as do values that this node is the last to read; but nothing reads them
    then. A view that nothing reads is there because it is returned. An exponential that nothing reads is not: it is
    what inductor's `prepare_softmax_online` leaves of the softmax it replaces.
    """
    born, died = trace.storages.born, trace.storages.died
    is_last = _flags(np.array([end - 1 for _, end in segments(trace)], np.int64), len(trace))
    returned = np.zeros(len(born), np.bool_)
    made = np.flatnonzero((born >= 0) & (died >= 0))
    made = made[is_last[died[made]]]
    before = touched[made] < died[made]
    returned[made] = np.where(
        before,
        (touched[made] > born[made]) | ~is_exp[born[made]],
        (born[made] == died[made]) | is_view[died[made]],
    )
    return returned


def _returned_views(trace: Trace, touched: Int64, is_view: Flags) -> Int64:
    """Return, for each storage [S], the view that is the last node to touch it where it leaves its graph; -1: none."""
    born, died = trace.storages.born, trace.storages.died
    if not len(trace):
        return touched
    code = trace.compiled_parts()
    last = np.zeros(len(trace), np.int64)
    for first, end in segments(trace):
        last[first:end] = end - 1
    made_in = last[np.maximum(born, 0)]
    leaves = (born >= 0) & ((died < 0) | (died >= made_in))
    is_late = leaves & (code[touched] >= 0) & (touched <= made_in) & is_view[touched]
    return np.where(is_late, touched, -1)


def _loops(
    kind: Int64, inputs: Csr, new: Csr, numel: Int64, size_bytes: Int64, *, along_rows: Flags, is_sum: Flags
) -> tuple[Int64, Int64, Int64]:
    """Return how each node [N] goes through what it reads: the loop, the elements made, those read for each.

    A trace does not tell along which dimensions a reduction goes. Where there are more rows than columns, one that
    makes an element for each row is taken to read along rows, and a sum that makes one for each column down them.
    """
    loop, outer, inner = np.zeros((3, len(kind)), np.int64)
    loop[kind == OpKind.CONCAT] = Loop.PARTS
    makes = np.diff(new.offsets)
    made = np.zeros(len(kind), np.int64)
    made[makes > 0] = new.ids[new.offsets[:-1][makes > 0]]
    if not len(numel):
        return loop, outer, inner
    read = np.zeros(len(kind), np.int64)
    np.maximum.at(read, inputs.rows(), numel[inputs.ids])
    flat = ((kind == OpKind.POINTWISE) & (makes == 1) | (kind == OpKind.WINDOW) & (makes > 0)) & (
        size_bytes[made] >= _FUSED_BYTES
    )
    loop[flat], outer[flat], inner[flat] = Loop.FLAT, numel[made[flat]], 1
    found = np.flatnonzero((kind == OpKind.REDUCTION) & (makes > 0))
    outer[found] = numel[made[found]]
    found = found[outer[found] > 0]
    inner[found] = read[found] // outer[found]
    found = found[(inner[found] > 1) & (inner[found] * outer[found] == read[found])]
    loop[found[((inner <= outer) | along_rows)[found] & (read[found] >= _FUSED_BYTES // 4)]] = Loop.ROWS
    rows, columns = inner[found], outer[found]
    is_long = (rows >= _FEWEST_ROWS) & (rows >= 2 * columns) & (columns <= _LONGEST_ROW)
    loop[found[is_sum[found] & is_long & (read[found] >= _FEWEST_ELEMENTS)]] = Loop.COLUMNS
    return loop, outer, inner


def _flags(ids: NDArray[np.integer], count: int) -> Flags:
    flags = np.zeros(count, np.bool_)
    flags[ids] = True
    return flags


def _saved(trace: Trace) -> NDArray[np.bool_]:
    """Tell which storages a compiled forward makes for its own backward, which frees them."""
    born, died = trace.storages.born, trace.storages.died
    if not len(trace):
        return np.zeros(len(born), np.bool_)
    made = (born >= 0) & (trace.region[born] >= 0) & (trace.phase[born] != BACKWARD)
    freed = (died >= 0) & (trace.region[died] == trace.region[born]) & (trace.phase[died] == BACKWARD)
    saved: NDArray[np.bool_] = made & freed
    return saved


def _donated(trace: Trace, saved: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Tell which storages a compiled backward may overwrite: saved by its own forward, seen by nobody else."""
    donated, born, read = saved.copy(), trace.storages.born, trace.inputs.ids
    donated[read[trace.region[trace.inputs.rows()] != trace.region[born[read]]]] = False
    return donated
