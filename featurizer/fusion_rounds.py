"""Which kernels inductor's scheduler fuses into one, and in which order the fused kernels come.

Follows `fuse_nodes` in torch/_inductor/scheduler.py: in rounds, pairs that touch one buffer and whose loops fit are
fused, those that share most bytes first, unless something that runs in between stands in the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from peakcast.featurizer.fusion_graph import CompiledGraph, Loop
from peakcast.featurizer.fusion_lowering import ALL, WHOLE, Expression, Kernel, leaves
from peakcast.featurizer.op_kinds import OpKind

# inductor's are_long_distant_nodes: kernels that only read one buffer are not fused from further apart than this.
SIBLING_DISTANCE: Final = 64
# inductor's max_fusion_size: kernels fused into one.
MOST_FUSED: Final = 64
# inductor's max_fusion_buffer_group_pairwise_attempts: how many of those that touch a buffer each is tried with.
MOST_TRIED: Final = 64
# inductor's score_fusion_memory_threshold.
LEAST_SHARED_BYTES: Final = 10
# inductor's can_fusion_increase_peak_memory: what could be reused in turn may be this many times what is shared.
MOST_HELD: Final = 32
# inductor tries so often.
ROUNDS: Final = 10
# Pairs looked at, for each kernel: keeps a stranger's graph from taking quadratic time. Those of the corpus stay below.
MOST_PAIRS: Final = 64
# Buffers read by a kernel that others were fused into, for the same reason.
MOST_FUSED_READS: Final = 128

_NEVER_WRITTEN: Final = (OpKind.POINTWISE, OpKind.REDUCTION, OpKind.WINDOW)
_REDUCES: Final = (Loop.ROWS, Loop.COLUMNS)


def fuse_kernels(
    graph: CompiledGraph,
    kernels: list[Kernel],
    after: Mapping[int, AbstractSet[int]],
    end: int,
    returned: set[int],
) -> tuple[list[Kernel], dict[int, int], dict[int, int]]:
    """Fuse kernels: those of one fused kernel run at one time, and times are in the order of the scheduler.

    `after` says which kernels must have run before each, by number, beyond those whose results it reads. Returns the
    kernels left, the storages that live within one fused kernel and are never written, with its time, and the node that
    leads the kernel at each time.
    """
    rounds = _Rounds(graph, kernels, after, end, returned)
    rounds.run()
    order = rounds.order()
    nodes = [kernels[rounds.members[group][0]].node for group in order]
    leaders = dict(zip(sorted(nodes), nodes, strict=True))
    for group, time in zip(order, sorted(nodes), strict=True):
        for number in rounds.members[group]:
            kernels[number].node = time
            kernels[number].sums_both_ways = rounds.columns[group] != 0
    left, unwritten = _absorb(graph, kernels, rounds, end, returned)
    return left, unwritten, leaders


class _Rounds:
    """The state of the fusion. A group is named by its first kernel; sets of kernels are bits of an integer."""

    def __init__(
        self,
        graph: CompiledGraph,
        kernels: list[Kernel],
        after: Mapping[int, AbstractSet[int]],
        end: int,
        returned: set[int],
    ) -> None:
        self.graph = graph
        count = len(kernels)
        self.group = list(range(count))
        self.members = [[number] for number in range(count)]
        self.before = _predecessors(kernels, after)
        self.ancestors, self.descendants = _reach(self.before)
        # As they were before anything was fused: what was fused with an ancestor is none.
        self.needed = list(self.ancestors)
        for number, kernel in enumerate(kernels):
            kernel.number, kernel.ancestors = number, self.ancestors[number]
        self.reads = [set(kernel.expression.reads) for kernel in kernels]
        self.writes = [set(kernel.writes) for kernel in kernels]
        self.parts = [
            {storage: kernel.expression.parts.get(storage, ALL) for storage in kernel.expression.reads}
            for kernel in kernels
        ]
        self.displaced = [set(kernel.expression.displaced) for kernel in kernels]
        self.last = list(range(count))
        self.is_window = [kernel.kind is OpKind.WINDOW for kernel in kernels]
        # Of a group that sums rows and columns in one: the kernels that sum columns.
        self.columns = [0] * count
        self.source = [kernel.source for kernel in kernels]
        changed = {storage for kernel in kernels for storage in kernel.changes}
        self.loop = [
            Loop.NONE
            if not kernel.writes or kernel.changes or changed & kernel.expression.reads
            else Loop(graph.loop[kernel.source])
            for kernel in kernels
        ]
        readers: dict[int, int] = {}
        for kernel in kernels:
            for storage in kernel.expression.reads:
                readers[storage] = readers.get(storage, 0) + 1
        made = {storage for kernel in kernels for storage in kernel.writes}
        self.reused = {
            storage
            for storage in made
            if readers.get(storage) == 1 and storage not in returned and 0 <= graph.died[storage] < end
        }

    def run(self) -> None:
        """Fuse until nothing more fits."""
        looks = MOST_PAIRS * len(self.group)
        for _ in range(ROUNDS):
            touching = self._touching()
            looks -= sum(min(place, MOST_TRIED) for groups in touching for place in range(len(groups)))
            if looks < 0:
                return
            fused = False
            for one, other in self._pairs(touching):
                first, second = self.find(one), self.find(other)
                if first != second and self._score(first, second) >= 0:
                    self._fuse(first, second)
                    fused = True
            if not fused:
                return

    def find(self, number: int) -> int:
        """Return the group of a kernel."""
        while self.group[number] != number:
            number = self.group[number]
        return number

    def _touching(self) -> list[list[int]]:
        """Return, for each buffer, the groups that touch it and could be fused."""
        touching: dict[int, list[int]] = {}
        for number, loop in enumerate(self.loop):
            if self.group[number] == number and loop is not Loop.NONE:
                for storage in self._touched(number):
                    touching.setdefault(storage, []).append(number)
        return list(touching.values())

    def _pairs(self, touching: Iterable[Sequence[int]]) -> list[tuple[int, int]]:
        """Return the pairs that could be fused, the best first."""
        pairs = {
            (one, other)
            for groups in touching
            for place, one in enumerate(groups)
            for other in groups[place + 1 : place + 1 + MOST_TRIED]
        }
        ranked = []
        for one, other in pairs:
            score = self._score(one, other)
            if score >= 0:
                is_alike = (self.loop[one] in _REDUCES) == (self.loop[other] in _REDUCES)
                ranked.append((not is_alike, -score, self._distance(one, other), one, other))
        return [(one, other) for *_, one, other in sorted(ranked)]

    def _distance(self, one: int, other: int) -> int:
        return max(abs(one - self.last[other]), abs(other - self.last[one]))

    def _score(self, one: int, other: int) -> int:
        """Return the bytes that fusing two groups saves; -1 where they are not fused."""
        if not self._may_fuse(one, other):
            return -1
        producer, consumer = min(one, other), max(one, other)
        if self.ancestors[producer] >> consumer & 1:
            producer, consumer = consumer, producer
        if self.columns[consumer]:
            return -1  # nothing is put before a kernel that sums rows and columns
        if {self.loop[one], self.loop[other]} == set(_REDUCES):
            return self._elements(one)
        common = {s for s in self._touched(one) & self._touched(other) if not self._reads_apart(s, one, other)}
        shared_bytes = sum(self.graph.bytes[storage] for storage in common)
        held_bytes = sum(size_bytes for size_bytes, _ in self._reused(one) & self._reused(other))
        pays = shared_bytes >= LEAST_SHARED_BYTES and held_bytes <= MOST_HELD * shared_bytes
        if not pays or not self._may_join_sums(producer, consumer, common):
            return -1
        if self.ancestors[consumer] >> producer & 1:
            moved = self.writes[producer] & self.reads[consumer] & self.displaced[consumer]
            can_read = not moved or self._is_inverted(consumer)
            is_plain = not self.is_window[consumer] and Loop.PARTS not in (self.loop[one], self.loop[other])
            return shared_bytes if can_read and is_plain else -1
        return shared_bytes if self._distance(one, other) <= SIBLING_DISTANCE else -1

    def _reads_apart(self, storage: int, one: int, other: int) -> bool:
        """Tell whether two groups read different parts of a buffer: to inductor they then share nothing (MemoryDep)."""
        if storage in self.writes[one] or storage in self.writes[other]:
            return False
        bits, other_bits = self.parts[one][storage], self.parts[other][storage]
        return not bits & other_bits and not (bits | other_bits) & ALL

    def _is_inverted(self, group: int) -> bool:
        """Tell whether a kernel can write where it reads instead: it moves the elements of one buffer, no more."""
        (read, *more) = self.reads[group]
        is_unary = not more and len(self.members[group]) == 1 and len(self.writes[group]) == 1
        elements = self.graph.outer[self.source[group]]
        return is_unary and self.loop[group] is Loop.FLAT and self.graph.numel[read] == elements

    def _may_fuse(self, one: int, other: int) -> bool:
        """Tell whether one kernel can compute two groups, and nothing else must run in between."""
        return (
            self._loops_fit(one, other)
            and len(self.members[one]) + len(self.members[other]) <= MOST_FUSED
            and not self.descendants[one] & self.ancestors[other]
            and not self.descendants[other] & self.ancestors[one]
        )

    def _may_join_sums(self, producer: int, consumer: int, common: AbstractSet[int]) -> bool:
        """Tell whether a group may join one that sums rows and columns, if it is one: FusedMixOrderReductions."""
        if not self.columns[producer]:
            return True
        if self.needed[consumer] & self.columns[producer]:
            return False
        shared = sum(self.graph.numel[storage] for storage in common)
        return self.loop[consumer] not in _REDUCES or shared >= self._elements(producer)

    def _elements(self, group: int) -> int:
        return self.graph.outer[self.source[group]] * self.graph.inner[self.source[group]]

    def _touched(self, group: int) -> set[int]:
        return self.reads[group] | self.writes[group]

    def _reused(self, group: int) -> set[tuple[int, int]]:
        """Return the sizes and types of what is read here alone: a buffer that the next kernel could take over."""
        return {(self.graph.bytes[storage], self.graph.dtype[storage]) for storage in self.reads[group] & self.reused}

    def _loops_fit(self, one: int, other: int) -> bool:
        loop, other_loop = self.loop[one], self.loop[other]
        if loop > other_loop:
            return self._loops_fit(other, one)
        graph, source, other_source = self.graph, self.source[one], self.source[other]
        outer, inner = graph.outer[source], graph.inner[source]
        other_outer, other_inner = graph.outer[other_source], graph.inner[other_source]
        if loop is other_loop:
            return loop not in (Loop.NONE, Loop.PARTS) and (outer, inner) == (other_outer, other_inner)
        if loop is Loop.FLAT and other_loop is Loop.ROWS:
            return outer in (other_outer * other_inner, other_outer)
        if loop is Loop.FLAT and other_loop is Loop.PARTS:
            return any(graph.numel[part] == outer for part in graph.inputs[other_source])
        if loop is Loop.ROWS and other_loop is Loop.COLUMNS:
            return (outer, inner) == (other_inner, other_outer) and self._sums_as_well(one, other)
        return False

    def _sums_as_well(self, rows: int, columns: int) -> bool:
        """Tell whether one kernel can go along rows and add up columns: MixOrderReduction in the scheduler."""
        related = self.ancestors[rows] >> columns & 1 or self.ancestors[columns] >> rows & 1
        if related or self.columns[rows] or self.displaced[rows] & self.reads[columns]:
            return False
        elements = self._elements(rows)
        return any(self.graph.numel[storage] == elements for storage in self.reads[rows] & self.reads[columns])

    def _fuse(self, one: int, other: int) -> None:
        into, gone = min(one, other), max(one, other)
        mask = self._bits(into) | self._bits(gone)
        before = (self.ancestors[into] | self.ancestors[gone]) & ~mask
        behind = (self.descendants[into] | self.descendants[gone]) & ~mask
        # Only for those before, or behind, one of the two is anything new.
        for group in self._groups((self.ancestors[into] ^ self.ancestors[gone]) & ~mask):
            self.descendants[group] |= mask | behind
        for group in self._groups((self.descendants[into] ^ self.descendants[gone]) & ~mask):
            self.ancestors[group] |= mask | before
        self.ancestors[into], self.descendants[into] = before, behind
        self.needed[into] |= self.needed[gone]
        loop, other_loop = self.loop[into], self.loop[gone]
        if {loop, other_loop} == set(_REDUCES):
            self.columns[into] = self._bits(into if loop is Loop.COLUMNS else gone)
        else:
            self.columns[into] |= self.columns[gone]
        # Rows rule over columns, and either over what goes element by element.
        if other_loop is Loop.PARTS or (loop is Loop.FLAT and other_loop in _REDUCES) or loop is Loop.COLUMNS:
            self.loop[into], self.source[into] = other_loop, self.source[gone]
        self.group[gone] = into
        self.members[into] = sorted(self.members[into] + self.members[gone])
        self.reads[into] |= self.reads[gone]
        self.writes[into] |= self.writes[gone]
        self.displaced[into] |= self.displaced[gone]
        for storage, bits in self.parts[gone].items():
            self.parts[into][storage] = self.parts[into].get(storage, 0) | bits
        self.is_window[into] |= self.is_window[gone]
        self.last[into] = max(self.last[into], self.last[gone])

    def _bits(self, group: int) -> int:
        return sum(1 << number for number in self.members[group])

    def _groups(self, bits: int) -> Iterator[int]:
        while bits:
            lowest = bits & -bits
            yield self.find(lowest.bit_length() - 1)
            bits ^= lowest

    def order(self) -> list[int]:
        """Return the groups in the scheduler's order: by their first kernels, each after what it needs."""
        seen: set[int] = set()
        order: list[int] = []
        for start, group in enumerate(self.group):
            if group != start or start in seen:
                continue
            seen.add(start)
            stack = [(start, self._needed(start))]
            while stack:
                at, needed = stack[-1]
                following = next((other for other in needed if other not in seen), None)
                if following is None:
                    order.append(at)
                    stack.pop()
                else:
                    seen.add(following)
                    stack.append((following, self._needed(following)))
        return order

    def _needed(self, group: int) -> Iterator[int]:
        needed = {self.find(before) for number in self.members[group] for before in self.before[number]}
        return iter(sorted(needed - {group}))


def _predecessors(kernels: Sequence[Kernel], after: Mapping[int, AbstractSet[int]]) -> list[set[int]]:
    maker = {storage: number for number, kernel in enumerate(kernels) for storage in kernel.writes}
    before: list[set[int]] = []
    for number, kernel in enumerate(kernels):
        found = {maker[storage] for storage in kernel.expression.reads if storage in maker}
        # A trace from a stranger may read what is not made yet.
        before.append({other for other in found | after.get(number, set()) if other < number})
    return before


def _reach(before: Sequence[AbstractSet[int]]) -> tuple[list[int], list[int]]:
    """Return the ancestors and the descendants of each kernel as bits."""
    ancestors, descendants = [0] * len(before), [0] * len(before)
    for number, others in enumerate(before):
        for other in others:
            ancestors[number] |= ancestors[other] | 1 << other
    for number in reversed(range(len(before))):
        for other in before[number]:
            descendants[other] |= descendants[number] | 1 << number
    return ancestors, descendants


def _absorb(
    graph: CompiledGraph, kernels: list[Kernel], rounds: _Rounds, end: int, returned: set[int]
) -> tuple[list[Kernel], dict[int, int]]:
    """Compute what lives within one fused kernel right in what reads it.

    Returns the kernels left, and what is never written, with the time at which it would be.
    """
    readers: dict[int, list[int]] = {}
    for kernel in kernels:
        for storage in kernel.expression.reads:
            readers.setdefault(storage, []).append(kernel.number)

    def is_within(storage: int, kernel: Kernel) -> bool:
        group, reading = rounds.find(kernel.number), readers.get(storage, [])
        is_alone = all(number > kernel.number and rounds.find(number) == group for number in reading)
        return bool(reading) and is_alone and not leaves(graph, storage, end, returned)

    left: list[Kernel] = []
    unwritten: dict[int, int] = {}
    for kernel in kernels:
        is_one = len(kernel.writes) == 1
        within = [storage for storage in kernel.writes if kernel.kind in _NEVER_WRITTEN and is_within(storage, kernel)]
        if not is_one and kernel.kind is OpKind.REDUCTION:
            # Each result is a buffer of its own: `remove_kernel_local_buffers` in codegen/common.py. Its readers run
            # when it is made, so that nothing depends on their reading it.
            kernel.writes = [storage for storage in kernel.writes if storage not in within]
            for storage in within:
                unwritten[storage] = kernel.node
                for number in readers[storage]:
                    kernels[number].expression = _without(storage, kernels[number].expression)
        if not is_one or not within:
            left.append(kernel)
            continue
        (storage,) = within
        reading = readers[storage]
        size = max(len(kernel.expression.reads | kernels[number].expression.reads) for number in reading)
        if size > MOST_FUSED_READS:
            left.append(kernel)
            continue
        for number in reading:
            kernels[number].expression = _joined(graph, kernel, kernels[number].expression)
        for read in kernel.expression.reads:
            readers[read] = sorted({*readers[read], *reading} - {kernel.number})
        unwritten[storage] = kernel.node
    return left, unwritten


def _without(storage: int, reader: Expression) -> Expression:
    return Expression(reader.reads - {storage}, reader.displaced - {storage}, reader.op_count, WHOLE)


def _joined(graph: CompiledGraph, kernel: Kernel, reader: Expression) -> Expression:
    """Return what a reader reads where it computes what the kernel makes.

    It may write in place of what the kernel reads where both could have written in place of their own inputs, one after
    the other: that is, where all three are alike.
    """
    (storage,) = kernel.writes
    own = kernel.expression
    alike = graph.bytes[storage], graph.dtype[storage]
    displaced = {read for read in own.reads - reader.reads if (graph.bytes[read], graph.dtype[read]) != alike}
    moves = kernel.kind is OpKind.WINDOW or storage in reader.displaced
    displaced |= (reader.displaced - {storage}) | (own.reads if moves else own.displaced)
    return Expression((reader.reads - {storage}) | own.reads, displaced, reader.op_count, WHOLE)
