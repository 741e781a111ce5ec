"""How much higher the peak would be if kernels took scratch: what the simulation cannot know and the trees can learn.

A convolution in another memory layout, a scatter that sorts, a reduction in two passes: each may take, while it runs,
about as much again as it reads and writes. Whether that matters depends on what lives at that node, so the question
asked here is the peak's: by how many bytes would it rise if all kernels of a class did?
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from peakcast.featurizer.op_classes import OP_CLASSES, class_codes
from peakcast.featurizer.prior import Prior
from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.vocabulary import GPU

# Classes whose kernels are seen to take scratch in proportion to their tensors.
SCRATCH_CLASSES = ("conv", "scatter", "embedding", "gather", "sort", "reduction", "rnn", "attention_math", "custom")


def overshoot_bytes(spec: GraphSpec, prior: Prior) -> dict[str, float]:
    """Return, for each class, the rise of the steady peak if its kernels took as much as they read and write."""
    trace = spec.traces[prior.trace_plan]
    if not len(trace):
        return dict.fromkeys(SCRATCH_CLASSES, 0.0)
    storages = trace.storages
    size_bytes = np.where(storages.device == GPU, storages.bytes, 0).astype(float)
    # The watermark is what lives after a node: what the node touches and frees lived while it ran.
    touched_and_freed = np.zeros(len(trace))
    for csr in (trace.inputs, trace.outputs):
        node = csr.rows()
        counted = 1 + (storages.died[csr.ids] == node)
        touched_and_freed += np.bincount(node, weights=size_bytes[csr.ids] * counted, minlength=len(trace))
    rise = np.maximum(prior.watermark_bytes + touched_and_freed - prior.steady_allocated_bytes, 0.0)
    most = np.zeros(len(OP_CLASSES))
    np.maximum.at(most, class_codes(spec.ops)[trace.op], rise)
    return {name: float(most[OP_CLASSES.index(name)]) for name in SCRATCH_CLASSES}


def overshoot_features(overshoot: Mapping[str, float], prior: Prior) -> dict[str, float]:
    """Return each class's rise as features: a share of the steady peak, and log2 of MiB."""
    whole = max(prior.steady_allocated_bytes, 1)
    shares = {f"{name}_overshoot_share": size / whole for name, size in overshoot.items()}
    return shares | {
        f"{name}_overshoot_log2_mib": math.log2(1.0 + size / (1 << 20)) for name, size in overshoot.items()
    }
