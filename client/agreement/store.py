"""How ranks agree on one plan: proposals and one sealed decision in c10d's key-value store, without a collective.

Each rank writes its proposal and counts itself. The last to come merges and seals; the others wait for the seal. A rank
whose time is up seals what has come by then. `compare_set` lets exactly one decision through, which every rank adopts,
also one that comes later. A rank that is gone costs the others their time-out and no more: nothing waits for it twice.
"""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal

from torch.distributed import DistStoreError
from torch.distributed.distributed_c10d import Store, _get_default_store

from peakcast.client.agreement.agreement import UNKNOWN_GRAPH, Proposal, Sealed, merge, name_ranks

# Beyond the time-out, for the last reads and the seal. A store that has not answered by then is taken for dead.
_GRACE: Final = timedelta(seconds=2)


class AgreementWarning(RuntimeWarning):
    """Say that the ranks did not agree as they should: one missing, late, with another graph, or no store."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """What this rank runs, and how it came about.

    `how`: `sealed` - agreed while this rank was there; `late` - it came after the seal and adopts it; `alone` - the
    store did not answer, and the rank takes the plan that needs least of those that fit on it. `fits_here` is false
    where the plan adopted is not among those that fit on this rank; None as plan (nothing fits everywhere) never fits.
    `least` is what to run alike then, where something must run: `Sealed` says which.
    """

    plan: str | None
    least: str | None
    how: Literal["sealed", "late", "alone"]
    fits_here: bool
    missing: tuple[int, ...]
    strangers: tuple[tuple[int, str], ...]
    reason: str


def agree(
    proposal: Proposal,
    *,
    store: Store | None = None,
    rank: int,
    world_size: int,
    timeout: timedelta = timedelta(seconds=10),
    sequence: int | None = None,
) -> Agreement:
    """Agree with the other ranks on one plan for one compile, within `timeout` and 2 s of grace, whatever they do.

    Args:
        proposal: what this rank would run.
        store: a c10d store that all ranks share; the default process group's where left out.
        rank: this rank, 0 to world_size - 1.
        world_size: how many ranks there are.
        timeout: how long to wait for the others.
        sequence: number of this agreement, the same on all ranks: the index of the training step, where ranks may
            compile at different steps. Left out, each rank's calls are counted.

    Warns:
        AgreementWarning: where a rank is missing, late or compiles another graph, or the store does not answer.

    Raises:
        ValueError: for a rank outside 0 to world_size - 1, or a time-out that is not positive.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be 0 to {world_size - 1}, got {rank}")
    if timeout <= timedelta(0):
        raise ValueError(f"timeout must be positive, got {timeout}")
    deadline_s = time.monotonic() + timeout.total_seconds()
    exchange = _Exchange(proposal, rank=rank, world_size=world_size, deadline_s=deadline_s, sequence=sequence)
    # A store whose host hangs never returns from a call, and some calls take no time-out. A thread can be left behind.
    thread = threading.Thread(target=exchange.run, args=(store,), name="peakcast-agreement", daemon=True)
    thread.start()
    thread.join(timeout=max(0.0, deadline_s - time.monotonic()) + _GRACE.total_seconds())
    agreement = exchange.agreement or _alone(proposal, exchange.failure or f"no answer within {timeout + _GRACE}")
    warning = _warning(agreement, rank)
    if warning:
        warnings.warn(warning, AgreementWarning, stacklevel=2)
    return agreement


class _Exchange:
    """One rank's part in one agreement, run in a thread of its own."""

    def __init__(
        self, proposal: Proposal, *, rank: int, world_size: int, deadline_s: float, sequence: int | None
    ) -> None:
        self.proposal, self.rank, self.world_size = proposal, rank, world_size
        self.deadline_s, self.sequence = deadline_s, sequence
        self.agreement: Agreement | None = None
        self.failure = ""

    def run(self, store: Store | None) -> None:
        """Exchange, and leave behind either an agreement or the failure in words."""
        try:
            shared: Any = _get_default_store() if store is None else store  # Any: torch's stubs lack `clone`
            # A connection of its own: a call that waits holds the lock of its connection, which collectives need too.
            self.agreement = self._exchange(shared.clone())
        except Exception as error:  # noqa: BLE001 - a store may fail in any way; the training goes on without it
            self.failure = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"

    def _exchange(self, store: Any) -> Agreement:
        if self.sequence is None:
            root = f"peakcast/agree/{store.add(f'peakcast/agree/calls/{self.rank}', 1) - 1}"
        else:
            root = f"peakcast/agree/step-{self.sequence}"
        seal = f"{root}/sealed"
        store.set(f"{root}/{self.rank}", self.proposal.to_bytes())
        found: bytes | None = None
        if store.add(f"{root}/came", 1) >= self.world_size:
            proposals = self._read(store, root)
            if len(proposals) == self.world_size:
                found = self._seal(store, seal, proposals)
        if found is None:
            left = timedelta(seconds=max(self.deadline_s - time.monotonic(), 0.001))
            with contextlib.suppress(DistStoreError):  # time is up
                store.wait([seal], left)
            found = store.get(seal) if store.check([seal]) else self._seal(store, seal, self._read(store, root))
        return self._adopt(Sealed.from_bytes(found))

    def _read(self, store: Any, root: str) -> dict[int, Proposal]:
        """Read what has come. A proposal that cannot be read counts as none: its rank is named as missing."""
        there = [rank for rank in range(self.world_size) if store.check([f"{root}/{rank}"])]
        proposals: dict[int, Proposal] = {}
        for rank, text in zip(there, store.multi_get([f"{root}/{rank}" for rank in there]), strict=True):
            with contextlib.suppress(ValueError):
                proposals[rank] = Proposal.from_bytes(text)
        return proposals

    def _seal(self, store: Any, seal: str, proposals: dict[int, Proposal]) -> bytes:
        """Seal, unless another rank has: returns what is sealed then."""
        sealed = merge(proposals, world_size=self.world_size)
        return bytes(store.compare_set(seal, "", sealed.to_bytes().decode()))

    def _adopt(self, sealed: Sealed) -> Agreement:
        late = self.rank in sealed.missing
        strangers = dict(sealed.strangers)
        if late and self.proposal.graph_id not in {sealed.graph_id, UNKNOWN_GRAPH}:
            strangers[self.rank] = self.proposal.graph_id
        return Agreement(
            plan=sealed.plan,
            least=sealed.least,
            how="late" if late else "sealed",
            fits_here=sealed.plan in {need.plan for need in self.proposal.fitting()},
            missing=tuple(rank for rank in sealed.missing if rank != self.rank),
            strangers=tuple(sorted(strangers.items())),
            reason=sealed.reason,
        )


def _alone(proposal: Proposal, failure: str) -> Agreement:
    plan, least = proposal.leanest(), merge({0: proposal}, world_size=1).least
    reason = f"the store of the process group does not answer ({failure})"
    return Agreement(plan, least, "alone", fits_here=plan is not None, missing=(), strangers=(), reason=reason)


def _warning(agreement: Agreement, rank: int) -> str:
    """Put into words what a person should know, or nothing where all went well."""
    if agreement.how == "alone":
        chosen = (
            f"it runs {agreement.plan}, which needs least of what fits here" if agreement.plan else "nothing fits here"
        )
        return f"rank {rank} decides without the others: {agreement.reason}; {chosen}"
    parts = []
    if agreement.how == "late":
        parts.append(f"rank {rank} came late and adopts what the others had agreed on")
        if agreement.plan is not None and not agreement.fits_here:
            parts.append(f"{agreement.plan} is not sure to fit on it")
    if agreement.missing:
        parts.append(f"{name_ranks(agreement.missing)} did not answer in time")
    parts += [f"rank {other} compiles another graph, {graph_id[:12]}" for other, graph_id in agreement.strangers]
    return f"{'; '.join(parts)}. Agreed: {agreement.reason}" if parts else ""
