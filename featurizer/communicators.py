"""NCCL's communicators: device bytes that torch's allocator does not see, for each process group that is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from peakcast.featurizer.spec import GraphSpec
    from peakcast.featurizer.trace import Trace

# Measured on two H200s of one host (driver 580.159.04, torch 2.11.0 for CUDA 13.0): what the card's free memory lost
# with the first all-reduce on the first group, NCCL's own context and buffers, and on each of three further ones
# (509,607,936, 507,510,784, 509,607,936), alike on both. Buffers grow with channels and peers; other numbers of ranks
# were not measured.
FIRST_COMMUNICATOR_BYTES: Final = 880_803_840
FURTHER_COMMUNICATOR_BYTES: Final = 509_607_936

_GROUP: Final = "group="
_COLLECTIVES: Final = ("c10d.", "_c10d_functional.")
# Waits for a collective; it names no group, and starts none.
_WAITS: Final = "_c10d_functional.wait_tensor"


def communicators_of(trace: Trace, spec: GraphSpec) -> int:
    """Count the process groups that a step uses. Collectives that name none use one."""
    talks = np.array([op.startswith(_COLLECTIVES) and not op.startswith(_WAITS) for op in spec.ops], np.bool_)
    nodes = np.flatnonzero(talks[trace.op]) if len(trace) else np.zeros(0, np.int64)
    named = {spec.attributes[code] for code in set(trace.attribute[nodes].tolist()) if code >= 0}
    groups = sum(attribute.startswith(_GROUP) for attribute in named)
    return groups or int(len(nodes) > 0)


def bytes_for_communicators(spec: GraphSpec) -> int:
    """Return what the communicators of a step take on the card, under whichever captured plan uses most of them."""
    return communicator_bytes(max((communicators_of(trace, spec) for trace in spec.traces.values()), default=0))


def communicator_bytes(count: int) -> int:
    """Return what so many communicators take on the card."""
    return FIRST_COMMUNICATOR_BYTES + (count - 1) * FURTHER_COMMUNICATOR_BYTES if count else 0
