"""The forms a correction is learned in, and how each is turned into a share of the prior.

- ratio: `measured / prior - 1`. Fusion scales bytes.
- additive: `asinh((measured - prior) / UNIT_BYTES)`. Workspaces add bytes, whatever the prior.
- scratch: `(measured - prior) / scratch`, where scratch is how far the peak would rise if kernels took as much as they
  read and write (`models/scratch.py`). Convolutions in another layout, scatters and sorts take about that, or nothing.

The trees learn all three, the LSTM the first two. Its own say counts beside theirs: it reads the order of the nodes,
they read sums over the graph, and the two miss different things.

Shapes: P examples, Q quantities, H = 5 heads.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from peakcast.models.example import Floats

HEADS = ("ratio", "additive", "scratch")
# In the order of `corrections`: those of the trees, then the LSTM's own.
ALL_HEADS = (*HEADS, "lstm_ratio", "lstm_additive")
# Linear below the size of a workspace, logarithmic above.
UNIT_BYTES = float(16 << 20)
# Beyond these the simulation has failed altogether, and a correction drawn from other graphs will not mend it.
LIMITS = (-0.4, 1.5)
SCRATCH_LIMITS = (-1.0, 2.0)
# Scratch below half a percent of the prior tells nothing: what is missing there has other causes.
_LEAST_SCRATCH = 5e-3


def head_targets(prior_PQ: Floats, measured_PQ: Floats, scratch_P: Floats) -> dict[str, Floats]:
    """Return each head's targets [P, Q]; NaN where there is nothing to learn from."""
    missing, scratch = measured_PQ - prior_PQ, _usable_scratch(prior_PQ, scratch_P)
    return {
        "ratio": np.clip(missing / prior_PQ, *LIMITS),
        "additive": np.arcsinh(missing / UNIT_BYTES),
        "scratch": np.clip(missing / scratch, *SCRATCH_LIMITS),
    }


def head_weights(prior_PQ: Floats, measured_PQ: Floats, scratch_P: Floats) -> dict[str, Floats]:
    """Return weights [P, Q] that make an error of each head's unit count by what it is of the peak."""
    slope = np.hypot(UNIT_BYTES, np.nan_to_num(measured_PQ - prior_PQ)) / prior_PQ
    return {
        "ratio": np.ones_like(prior_PQ),
        "additive": np.clip(slope, 1e-3, 10.0),
        "scratch": np.clip(np.nan_to_num(_usable_scratch(prior_PQ, scratch_P)) / prior_PQ, 1e-3, 2.0),
    }


def corrections(outputs: Mapping[str, Floats], prior_PQ: Floats, scratch_P: Floats, sequence_P2Q: Floats) -> Floats:
    """Return what each head (axis 0, in the order of ALL_HEADS) says as a share of the prior, [5, P, Q]."""
    scratch = np.nan_to_num(_usable_scratch(prior_PQ, scratch_P))
    count = prior_PQ.shape[1]
    shares = {
        "ratio": outputs["ratio"],
        "additive": _as_share(outputs["additive"], prior_PQ),
        "scratch": outputs["scratch"] * scratch / prior_PQ,
        "lstm_ratio": sequence_P2Q[:, :count],
        "lstm_additive": _as_share(sequence_P2Q[:, count:], prior_PQ),
    }
    return np.stack([shares[name] for name in ALL_HEADS])


def _as_share(additive: Floats, prior_PQ: Floats) -> Floats:
    share: Floats = np.sinh(np.clip(additive, -12.0, 12.0)) * UNIT_BYTES / prior_PQ
    return share


def _usable_scratch(prior_PQ: Floats, scratch_P: Floats) -> Floats:
    scratch = np.broadcast_to(scratch_P[:, None], prior_PQ.shape)
    return np.where(scratch > _LEAST_SCRATCH * prior_PQ, scratch, np.nan)
