"""One plan for all ranks, out of what each of them could run. Pure: proposals in, decision out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import orjson

# The graph of a rank that could not capture its own: it is no other graph than anybody's.
UNKNOWN_GRAPH: Final = "unknown"

_GIB = 1 << 30
_SHOWN_RANKS = 8


@dataclass(frozen=True, slots=True)
class Need:
    """What one plan needs on one rank: the upper bound of its required bytes."""

    plan: str
    required_upper_bytes: int


@dataclass(frozen=True, slots=True)
class Proposal:
    """What one rank brings: its graph, the plans it would run, fastest first, and the bytes free for any of them."""

    graph_id: str
    needs: tuple[Need, ...]
    free_bytes: int

    def fitting(self) -> tuple[Need, ...]:
        """Return the plans that fit on this rank, fastest first."""
        return tuple(need for need in self.needs if need.required_upper_bytes <= self.free_bytes)

    def leanest(self) -> str | None:
        """Return the plan that fits here and needs least, or None: what a rank runs that can ask nobody."""
        fitting = self.fitting()
        return min(fitting, key=lambda need: need.required_upper_bytes).plan if fitting else None

    def to_bytes(self) -> bytes:
        """Return the proposal as JSON, as it travels through the store."""
        needs = [[need.plan, need.required_upper_bytes] for need in self.needs]
        return orjson.dumps({"graph_id": self.graph_id, "needs": needs, "free_bytes": self.free_bytes})

    @classmethod
    def from_bytes(cls, text: bytes) -> Self:
        """Read a proposal back; ValueError says what is wrong with it."""
        found = _fields(text, {"graph_id": str, "needs": list, "free_bytes": int})
        needs = found["needs"]
        if not all(isinstance(need, list) and [type(part) for part in need] == [str, int] for need in needs):
            raise ValueError(f"needs must be a list of [plan, bytes], got {str(needs)[:80]}")
        return cls(found["graph_id"], tuple(Need(*need) for need in needs), found["free_bytes"])


@dataclass(frozen=True, slots=True)
class Sealed:
    """What the ranks agreed on. `plan` is None where no plan fits on all of them.

    `least` is the plan, out of those that all of them named, that lacks least where it lacks most: what to run alike
    where nothing fits but something must run. None where they name no plan in common. `graph_id` is what most ranks
    compile; `strangers` are the (rank, graph_id) of those that compile something else, `missing` the ranks that had not
    answered when this was sealed.
    """

    plan: str | None
    least: str | None
    graph_id: str
    missing: tuple[int, ...]
    strangers: tuple[tuple[int, str], ...]
    reason: str

    def to_bytes(self) -> bytes:
        """Return the decision as JSON, as it travels through the store."""
        return orjson.dumps(self)

    @classmethod
    def from_bytes(cls, text: bytes) -> Self:
        """Read a decision back; ValueError says what is wrong with it."""
        names = {
            "plan": str | None,
            "least": str | None,
            "graph_id": str,
            "missing": list,
            "strangers": list,
            "reason": str,
        }
        found = _fields(text, names)
        strangers = tuple((int(rank), str(graph_id)) for rank, graph_id in found["strangers"])
        return cls(**{**found, "missing": tuple(found["missing"]), "strangers": strangers})


def merge(proposals: Mapping[int, Proposal], *, world_size: int) -> Sealed:
    """Choose the plan that all ranks run, the most careful of them winning.

    With every rank present that is the fastest plan that fits on each of them. Where ranks disagree on the order, the
    plan whose worst place in any rank's order is best. With a rank missing, what fits there is not known, so it is the
    plan that needs least, out of those that fit on all ranks present. A rank that compiles another graph is named, and
    what fits there counts too: it runs the same plan.

    Raises:
        ValueError: without any proposal, or with one of a rank outside 0 .. world_size - 1.
    """
    outside = [rank for rank in proposals if not 0 <= rank < world_size]
    if not proposals or outside:
        raise ValueError(f"proposals of ranks 0 to {world_size - 1} are needed, got {sorted(proposals) or 'none'}")
    present = dict(sorted(proposals.items()))
    missing = tuple(rank for rank in range(world_size) if rank not in present)
    # Of graphs equally common, that of the lowest rank: a Counter keeps the order of first sight.
    known = {rank: each.graph_id for rank, each in present.items() if each.graph_id != UNKNOWN_GRAPH}
    graph_id = Counter(known.values()).most_common(1)[0][0] if known else UNKNOWN_GRAPH
    strangers = tuple((rank, other) for rank, other in known.items() if other != graph_id)
    common = _common(list(present.values()))
    if not common:
        plan = None
    elif missing:
        plan = min(common, key=lambda plan: _largest_need_bytes(plan, list(present.values())))
    else:
        plan = common[0]
    reason = _reason(plan, present, missing, strangers)
    return Sealed(plan, _least(list(present.values())), graph_id, missing, strangers, reason)


def name_ranks(ranks: Sequence[int]) -> str:
    """Write ranks for a sentence: `rank 3`, `ranks 1, 2 and 5`."""
    words = [str(rank) for rank in ranks[:_SHOWN_RANKS]]
    if len(ranks) > _SHOWN_RANKS:
        words.append(f"{len(ranks) - _SHOWN_RANKS} more")
    return f"rank {words[0]}" if len(words) == 1 else f"ranks {', '.join(words[:-1])} and {words[-1]}"


def _common(proposals: Sequence[Proposal]) -> list[str]:
    """Return the plans that fit on every rank, fastest first."""
    orders = [[need.plan for need in proposal.fitting()] for proposal in proposals]
    shared = [plan for plan in orders[0] if all(plan in order for order in orders)]
    kept = [[plan for plan in order if plan in shared] for order in orders]
    return sorted(shared, key=lambda plan: (max(order.index(plan) for order in kept), shared.index(plan)))


def _largest_need_bytes(plan: str, proposals: Sequence[Proposal]) -> int:
    return max(need.required_upper_bytes for each in proposals for need in each.needs if need.plan == plan)


def _least(proposals: Sequence[Proposal]) -> str | None:
    """Return the plan that all ranks name and that lacks least where it lacks most, whether it fits or not."""
    named = [need.plan for need in proposals[0].needs]
    shared = [plan for plan in named if all(plan in {need.plan for need in each.needs} for each in proposals)]
    lacks_bytes = {
        plan: max(
            need.required_upper_bytes - each.free_bytes
            for each in proposals
            for need in each.needs
            if need.plan == plan
        )
        for plan in shared
    }
    return min(shared, key=lambda plan: (lacks_bytes[plan], plan)) if shared else None


def _reason(
    plan: str | None,
    present: Mapping[int, Proposal],
    missing: Sequence[int],
    strangers: Sequence[tuple[int, str]],
) -> str:
    """Say in one sentence what was chosen, who was not there, and which rank kept the others from a faster plan."""
    parts = []
    if plan is None:
        parts.append(f"no plan fits on all of {name_ranks(list(present))}")
    elif missing:
        parts.append(f"{plan}, which needs least, because {name_ranks(missing)} did not answer")
    else:
        parts.append(f"{plan} is the fastest that fits on all ranks")
    # A rank's own first choice that another rank cannot run is what a person asks about.
    wanted = dict.fromkeys(each.fitting()[0].plan for each in present.values() if each.fitting())
    for passed_over in (name for name in wanted if name != plan):
        short = [rank for rank, each in present.items() if passed_over not in {need.plan for need in each.fitting()}]
        if short:
            parts.append(
                f"{passed_over} does not fit on {name_ranks(short)} ({_shortage(passed_over, present[short[0]])})"
            )
    parts += [f"rank {rank} compiles another graph, {graph_id[:12]}" for rank, graph_id in strangers]
    return "; ".join(parts)


def _shortage(plan: str, proposal: Proposal) -> str:
    needs = {need.plan: need.required_upper_bytes for need in proposal.needs}
    free = f"{proposal.free_bytes / _GIB:.2f} GiB are free there"
    return f"{needs[plan] / _GIB:.2f} GiB needed, {free}" if plan in needs else f"not among its plans; {free}"


def _fields(text: bytes, types: Mapping[str, Any]) -> dict[str, Any]:
    """Read a JSON object with these fields and no others."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"not JSON: {text[:40]!r}") from error
    if not isinstance(found, dict) or set(found) != set(types):
        raise ValueError(f"expected the fields {', '.join(types)}, got {text[:80]!r}")
    for name, kind in types.items():
        if not isinstance(found[name], kind):
            # The text is at fault, not the caller: no TypeError.
            raise ValueError(f"{name} must be {kind}, got {str(found[name])[:80]!r}")  # noqa: TRY004
    return found
