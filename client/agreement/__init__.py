"""How the ranks of a job agree on one plan, in bounded time and without a collective."""

from peakcast.client.agreement.agreement import Need, Proposal
from peakcast.client.agreement.store import Agreement, agree

__all__ = ["Agreement", "Need", "Proposal", "agree"]
