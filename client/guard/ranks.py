"""One plan for all ranks of a distributed training, agreed on before the first compile."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import torch

from peakcast.client.agreement.agreement import Need, Proposal
from peakcast.client.agreement.store import Agreement, agree
from peakcast.client.guard.verdict import Verdict

_log = logging.getLogger("peakcast")


class Ranks:
    """Agree with the other ranks.

    Args:
        time: how long to wait for ranks that have not decided yet.
    """

    def __init__(self, time: timedelta) -> None:
        self._time = time

    @staticmethod
    def are_several() -> bool:
        """Tell whether there is anybody to agree with."""
        distributed = torch.distributed
        return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1

    def agree(self, proposal: Proposal) -> Agreement:
        """Return what all ranks run; what is odd about it is logged."""
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = agree(
                proposal,
                rank=torch.distributed.get_rank(),
                world_size=torch.distributed.get_world_size(),
                timeout=self._time,
            )
        for warning in told:
            _log.warning("%s", warning.message)
        return found


def proposal_of(verdict: Verdict) -> Proposal:
    """Return what a rank that knows its needs proposes, fastest first as its predictor orders them."""
    needs = [Need(plan, verdict.required[plan]) for plan in (verdict.plan, *verdict.required)]
    return Proposal(verdict.graph_id or "unknown", tuple(dict.fromkeys(needs)), verdict.room_bytes or 0)


def easy_proposal(plans: Sequence[str]) -> Proposal:
    """Return what a rank without a prediction proposes: whatever the others can run."""
    return Proposal("unknown", tuple(Need(plan, 0) for plan in plans), 0)


def adopted(verdict: Verdict, found: Agreement) -> Verdict:
    """Return a rank's verdict after the agreement: where nothing fits everywhere, what lacks least, alike on all."""
    if found.plan is None and found.least is not None:
        return replace(verdict, plan=found.least, action="smallest", reason=found.reason)
    if found.plan is None or found.plan == verdict.plan:
        return verdict
    return verdict.falling_to(found.plan, f"agreed among the ranks: {found.reason}")
