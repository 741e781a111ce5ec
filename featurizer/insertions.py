"""The nodes that inductor's lowering adds to a compiled graph before anything is fused.

The bias of a convolution is added apart, by code that inductor generates (`convolution` in
torch/_inductor/kernel/conv.py). What attention, or a convolution, cannot read as it lies is copied for each that reads
it (`require_strides` in ir.py, asked for by `sdpa_constraint` in lowering.py and by `convolution`). What a graph is
given is copied into the layout that its convolutions read, once where backward reads it too (`run_node` in graph.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Final

import numpy as np

from peakcast.featurizer.convolution_geometry import Geometry, parse_geometry
from peakcast.featurizer.fusion_lowering import SHARED_READS
from peakcast.featurizer.op_kinds import OpKind, compiled_nodes, op_kind, stem
from peakcast.featurizer.trace import Csr, Int32, Int64, Storages, Trace
from peakcast.featurizer.vocabulary import BACKWARD, DTYPE_BYTES, SAVED, TEMPORARY

if TYPE_CHECKING:
    from peakcast.featurizer.spec import GraphSpec

_ADD: Final = "aten.add.Tensor"
_COPY: Final = "aten.clone.default"
_CONVOLUTION: Final = "convolution"
_ATTENTION: Final = frozenset(
    f"_scaled_dot_product_{kind}_attention{direction}"
    for kind in ("cudnn", "efficient", "flash")
    for direction in ("", "_backward")
)
_TRANSPOSES: Final = frozenset({"permute", "t", "transpose"})
_BIASED: Final = 3  # image, weight and bias
# Where a convolution reads image and weight; backward reads the result's gradient first.
_CONVOLVED: Final = {"convolution": slice(0, 2), "convolution_backward": slice(1, 3)}
# Query, key and value are three. Real graphs stay far below the other: a hostile one could name views without end.
_MOST_PARTS: Final = 8
_MOST_LOOKED_AT: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class _Insertion:
    """A node put before another. It makes a storage of its own, of the type of what `shaped` makes."""

    before: int
    origin: int  # the node it is done for
    shaped: int
    op: str
    reads: tuple[int, ...]
    bytes: int
    source: int  # the storage that it stands in for
    readers: tuple[int, ...] = ()  # the nodes that read a copy instead
    numel: int = -1  # where it is not that of what `shaped` makes


def with_insertions(spec: GraphSpec, trace: Trace) -> tuple[GraphSpec, Trace, Int64] | None:
    """Return a spec that names all operators, the trace with what inductor adds, and where each node comes from [N].

    None where it adds nothing. Storages keep their numbers, new ones follow. Polynomials are left out.
    """
    stems = [stem(op) for op in spec.ops]
    sums = list(_biases(trace, stems))
    copies = [*_copies(spec, trace, stems), *_layouts(spec, trace, stems)]
    if not sums and not copies:
        return None
    named = spec.with_ops(_ADD, _COPY)
    return named, *_rebuilt(trace, named.ops, sums, copies)


def _biases(trace: Trace, stems: Sequence[str]) -> Iterator[_Insertion]:
    """Yield the sums of a convolution and its bias."""
    born, died = trace.storages.born, trace.storages.died
    for node in compiled_nodes(trace, stems, frozenset({_CONVOLUTION})):
        inputs, outputs = trace.inputs.row(node).tolist(), trace.outputs.row(node).tolist()
        if len(inputs) == _BIASED and len(outputs) == 1 and born[outputs[0]] == node != died[outputs[0]]:
            size_bytes = int(trace.storages.bytes[outputs[0]])
            reads = (outputs[0], inputs[-1])
            yield _Insertion(node + 1, node, node, _ADD, reads, size_bytes, outputs[0])


def _copies(spec: GraphSpec, trace: Trace, stems: Sequence[str]) -> Iterator[_Insertion]:
    """Yield the copies of what library calls read through views that they cannot take."""
    reads = _computed_reads(spec, trace, compiled_nodes(trace, stems, _ATTENTION))
    transposed = [
        node for node in compiled_nodes(trace, stems, frozenset({_CONVOLUTION})) if _is_copied(spec, trace, node)
    ]
    if not reads and not transposed:
        return
    images = [(node, int(trace.inputs.row(node)[0])) for node in transposed]
    views, others = _touches(trace, {storage for _, storage in (*reads, *images)})
    attention = {node for node, _ in reads}
    looked_at = copied = 0
    for node, storage in (*reads, *images):
        looked_at += len(views[storage]) + len(others[storage])
        if looked_at > _MOST_LOOKED_AT or copied > len(trace):
            return
        is_attention = node in attention
        before = [view for view in views[storage] if view < node]
        if not before or (is_attention and not _is_inlined(spec, trace, others[storage], attention)):
            continue
        shaped = before[-1]
        if not is_attention and stems[trace.op[shaped]] not in _TRANSPOSES:
            continue
        size_bytes = int(trace.numel[shaped]) * DTYPE_BYTES.get(spec.dtypes[trace.dtype[shaped]], 0)
        is_spread = size_bytes > trace.storages.bytes[storage]  # a mask: attention reads it as it is expanded
        parts = _parts(trace, before, others[storage], shaped, storage) if is_attention else 1
        is_all = parts == 1 and size_bytes == trace.storages.bytes[storage] and len(others[storage]) == 1
        if size_bytes and not is_spread and not (is_attention and is_all):
            copied += parts
            for _ in range(parts):
                yield _Insertion(node, node, shaped, _COPY, (storage,), size_bytes, storage, (node,))


def _layouts(spec: GraphSpec, trace: Trace, stems: Sequence[str]) -> Iterator[_Insertion]:
    """Yield the copies of images and weights that a graph is given into the layout its convolutions read.

    What backward reads as well is copied once, before all else, and backward gets the copy; else each convolution
    copies for itself (`convolution` in kernel/conv.py).
    """
    part_N = trace.compiled_parts()
    readers: dict[tuple[int, int], dict[int, None]] = {}
    for node in compiled_nodes(trace, stems, frozenset(_CONVOLVED)):
        convolved = trace.inputs.row(node)[_CONVOLVED[stems[trace.op[node]]]].tolist()
        for storage, is_laid_out in zip(convolved, _laid_out(spec, trace, node), strict=False):
            if is_laid_out and trace.storages.born[storage] < 0:
                readers.setdefault((int(trace.region[node]), storage), {})[node] = None
    starts = dict(zip(*(found.tolist() for found in np.unique(part_N, return_index=True)), strict=True))
    for (_, storage), nodes in readers.items():
        first, size_bytes = min(nodes), int(trace.storages.bytes[storage])
        element = DTYPE_BYTES.get(spec.dtypes[trace.dtype[first]], 0)
        if not size_bytes or not element:
            continue
        count = size_bytes // element
        if any(trace.phase[node] == BACKWARD for node in nodes):
            start = starts[int(part_N[first])]
            yield _Insertion(start, first, first, _COPY, (storage,), size_bytes, storage, tuple(nodes), count)
            continue
        for node in nodes:
            yield _Insertion(node, node, node, _COPY, (storage,), size_bytes, storage, (node,), count)


def _laid_out(spec: GraphSpec, trace: Trace, node: int) -> tuple[bool, bool]:
    """Tell whether image and weight of a convolution in channels last lie otherwise as they are given.

    What has one channel, or one pixel, lies in both layouts.
    """
    geometry = _geometry(spec, trace, node)
    if geometry is None or not geometry.lies_last(is_laid_out=True):
        return False, False
    # A weight's channels are those of a group: read, or written where it is transposed.
    channels = (geometry.channels_out if geometry.is_transposed else geometry.channels_in) // geometry.groups
    has_pixels = not geometry.image or prod(geometry.image) > 1
    return geometry.channels_in > 1 and has_pixels, channels > 1 and not geometry.is_pointwise


def _computed_reads(spec: GraphSpec, trace: Trace, nodes: Sequence[int]) -> list[tuple[int, int]]:
    """Return nodes with what they read of pointwise values that live in the same part, and that read few buffers."""
    if not nodes:
        return []
    is_reader = np.zeros(len(trace), np.bool_)
    is_reader[nodes] = True
    entries = np.flatnonzero(is_reader[trace.inputs.rows()])
    node, storage = trace.inputs.rows()[entries], trace.inputs.ids[entries]
    born, died, code = trace.storages.born[storage], trace.storages.died[storage], trace.compiled_parts()
    is_pointwise = np.array([op_kind(op) is OpKind.POINTWISE for op in spec.ops], np.bool_)
    lives_inside = (born >= 0) & (died >= 0) & (code[born] == code[node]) & (code[died] == code[node])
    fits = lives_inside & is_pointwise[trace.op[born]] & (trace.inputs.sizes()[born] <= SHARED_READS)
    return list(zip(node[fits].tolist(), storage[fits].tolist(), strict=True))


def _is_inlined(spec: GraphSpec, trace: Trace, readers: Sequence[int], attention: AbstractSet[int]) -> bool:
    """Tell whether nothing but attention needs a value in memory, by the nodes that read it."""
    kinds = {op_kind(spec.ops[trace.op[reader]]) for reader in readers if reader not in attention}
    return not kinds & {OpKind.EXTERN, OpKind.WINDOW}


def _is_copied(spec: GraphSpec, trace: Trace, node: int) -> bool:
    """Tell whether a convolution must have its image copied: over one dimension, where that comes transposed."""
    geometry = _geometry(spec, trace, node)
    if geometry is None or not len(trace.inputs.row(node)):
        return False
    return geometry.is_copied or len(geometry.kernel) == 1


def _geometry(spec: GraphSpec, trace: Trace, node: int) -> Geometry | None:
    attribute = int(trace.attribute[node])
    return parse_geometry(spec.attributes[attribute]) if attribute >= 0 else None


def _touches(trace: Trace, storages: set[int]) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Return the views of each storage, and the nodes that compute with it."""
    views: dict[int, list[int]] = {storage: [] for storage in storages}
    others: dict[int, list[int]] = {storage: [] for storage in storages}
    wanted = np.zeros(len(trace.storages), np.bool_)
    wanted[list(storages)] = True
    at = np.flatnonzero(wanted[trace.inputs.ids])
    rows = trace.inputs.rows()[at]
    makes = trace.outputs.sizes()
    for node, storage in zip(rows.tolist(), trace.inputs.ids[at].tolist(), strict=True):
        is_view = makes[node] == 1 and trace.outputs.ids[trace.outputs.offsets[node]] == storage
        (views if is_view else others)[storage].append(node)
    return views, others


def _parts(trace: Trace, views: Sequence[int], readers: Sequence[int], last: int, storage: int) -> int:
    """Return how many parts of a storage a call reads: as often as each of the last views of one is there.

    A trace does not tell what a view is a view of. Each part (query, key, value) comes by the same views.
    """
    earlier = [reader for reader in readers if reader < last]
    since = max(earlier, default=-1)
    counts = Counter(int(trace.op[view]) for view in views if view > since and trace.numel[view] == trace.numel[last])
    whole = int(trace.storages.bytes[storage]) // max(_element_bytes(trace, storage), 1)
    return max(1, min(min(counts.values(), default=1), whole // max(int(trace.numel[last]), 1), _MOST_PARTS))


def _element_bytes(trace: Trace, storage: int) -> int:
    born = int(trace.storages.born[storage])
    return int(trace.storages.bytes[storage]) // max(int(trace.numel[born]), 1)


def _rebuilt(
    trace: Trace, ops: Sequence[str], sums: Sequence[_Insertion], copies: Sequence[_Insertion]
) -> tuple[Trace, Int64]:
    """Return the trace with these nodes, and the node that each comes from."""
    inserted = sorted((*sums, *copies), key=lambda one: (one.before, one.op == _COPY))
    count, storages = len(trace), trace.storages
    before = np.array([one.before for one in inserted], np.int64)
    # Where the old nodes go, and the new ones.
    place = np.arange(count) + np.searchsorted(before, np.arange(count), side="right")
    placed = before + np.arange(len(inserted))
    origin, shaped = np.empty((2, count + len(inserted)), np.int64)
    origin[place] = shaped[place] = np.arange(count)
    origin[placed], shaped[placed] = [one.origin for one in inserted], [one.shaped for one in inserted]
    op = trace.op[origin]
    op[placed] = [ops.index(one.op) for one in inserted]
    attribute = trace.attribute[origin]
    attribute[placed] = -1
    numel = trace.numel[shaped]
    numel[placed] = [one.numel if one.numel >= 0 else trace.numel[one.shaped] for one in inserted]

    numbers = np.arange(len(storages), len(storages) + len(inserted))
    alias = np.arange(len(storages))
    instead: dict[tuple[int, int], list[int]] = {}
    born, died = _moved(storages.born, place), _moved(storages.died, place)
    role, ends = storages.role.copy(), np.empty(len(inserted), np.int32)
    roles = np.full(len(inserted), TEMPORARY, np.uint8)
    for index, one in enumerate(inserted):
        if one.op == _COPY:
            for reader in one.readers:
                instead.setdefault((reader, int(alias[one.source])), []).append(int(numbers[index]))
            last = max(one.readers)
            ends[index] = place[last]
            if trace.phase[last] == BACKWARD != trace.phase[one.before]:
                roles[index] = SAVED
            if storages.died[one.source] == one.before and alias[one.source] == one.source:
                died[one.source] = placed[index]  # only the copies read it
        else:
            alias[one.source] = numbers[index]
            ends[index], roles[index] = died[one.source], role[one.source]
            died[one.source], role[one.source] = placed[index], TEMPORARY
    read = [[one.source, *one.reads[1:]] if one.op == _ADD else [int(alias[one.source])] for one in inserted]
    return replace(
        trace,
        **{name: getattr(trace, name)[origin] for name in ("phase", "device", "line", "region")},
        **{name: getattr(trace, name)[shaped] for name in ("rank", "dtype")},
        numel=numel,
        op=op,
        attribute=attribute,
        inputs=_csr(_renamed(trace, trace.inputs, alias), instead, (place, placed), read),
        outputs=_csr(_renamed(trace, trace.outputs, alias), {}, (place, placed), numbers[:, None].tolist()),
        storages=Storages(
            bytes=np.append(storages.bytes, [one.bytes for one in inserted]),
            device=np.append(storages.device, trace.device[[one.origin for one in inserted]]),
            role=np.append(role, roles),
            born=np.append(born, placed.astype(np.int32)),
            died=np.append(died, ends),
        ),
        branches=tuple((int(place[node]), branches) for node, branches in trace.branches),
        numel_poly=(),
    ), origin


def _moved(nodes: Int32, place: Int64) -> Int32:
    """Return node numbers as they are in the new trace; those below zero mean none."""
    moved: Int32 = np.where(nodes >= 0, place[nodes], nodes).astype(np.int32)
    return moved


def _renamed(trace: Trace, csr: Csr, alias: Int64) -> Csr:
    """Return the rows with what stands for a storage after the node that makes it."""
    later = csr.rows() > trace.storages.born[csr.ids]
    return Csr(offsets=csr.offsets, ids=np.where(later, alias[csr.ids], csr.ids).astype(np.int32))


def _csr(
    old: Csr,
    instead: Mapping[tuple[int, int], list[int]],
    places: tuple[Int64, Int64],
    added: Sequence[Sequence[int]],
) -> Csr:
    """Return old rows and added ones at their places. `instead` are the storages that a node reads for one of its."""
    place, placed = places
    rows, ids = old.rows(), old.ids.astype(np.int64)
    times = np.ones(len(ids), np.int64)
    filled: list[tuple[int, list[int]]] = []
    for (node, storage), numbers in instead.items():
        entry = int(old.offsets[node]) + old.row(node).tolist().index(storage)
        times[entry] = len(numbers)
        filled.append((entry, numbers))
    begin = np.cumsum(times) - times
    ids = np.repeat(ids, times)
    for entry, numbers in filled:
        ids[begin[entry] : begin[entry] + len(numbers)] = numbers
    rows = np.append(np.repeat(place[rows], times), np.repeat(placed, [len(row) for row in added]))
    ids = np.append(ids, np.array([storage for row in added for storage in row], np.int64))
    order = np.argsort(rows, kind="stable")
    sizes = np.bincount(rows, minlength=len(place) + len(placed))
    return Csr(offsets=np.append(0, np.cumsum(sizes)).astype(np.int32), ids=ids[order].astype(np.int32))
