"""How wide a bound may be before anything is calibrated: the learned excess of an answer, and the classes it is among.

A third ensemble learns by how much peaks exceed what is expected of them: most do not, and where they may is mostly
known before (convolutions, compiled plans, reserved bytes). So easy answers get a narrow scale, and only hard ones a
wide one. Shapes: P plans, Q quantities.
"""

from __future__ import annotations

import numpy as np

from peakcast.models.decision import plan_kind
from peakcast.models.example import Example, Floats

# The excess is learned as log2(excess + this share): differences among excesses that are nearly none are no news.
NEARLY_NONE = 5e-3
# No scale is below this share: nothing is sure to the byte.
SMALLEST_SHARE = 1e-3
# Nor drawn from an excess above half of the peak.
LARGEST_EXCESS = 0.5
# Block granularity of the allocator's large segments: nothing is known finer than that, however sure the trees are.
BLOCK_BYTES = 2 << 20


def excess_target(measured_PQ: Floats, expected_PQ: Floats) -> Floats:
    """Return what the ensemble of the spread learns [P, Q]; NaN where nothing was measured."""
    return np.log2(np.clip(measured_PQ / expected_PQ - 1.0, 0.0, LARGEST_EXCESS) + NEARLY_NONE)


def scale_bytes(log2_excess_PQ: Floats, expected_PQ: Floats) -> Floats:
    """Return the scale of the scores: the learned excess in bytes, and the allocator's granularity on top."""
    excess = np.clip(np.exp2(log2_excess_PQ) - NEARLY_NONE, 0.0, LARGEST_EXCESS)
    scale: Floats = (excess + SMALLEST_SHARE) * expected_PQ + BLOCK_BYTES
    return scale


def class_names(example: Example, quantity: str) -> tuple[str, ...]:
    """Return the calibration classes of a quantity of an example, finest first.

    `required` is measured for a part of the records only, and joins the allocated bytes, which it is nearest to.
    """
    family = "eager" if example.is_eager else "compiled"
    kind = "reserved" if quantity.endswith("reserved") else "allocated"
    fine, coarse = f"{plan_kind(example.plan)}/{example.task}", f"{family}/{example.task}"
    names = (f"{fine}/{quantity}", f"{coarse}/{quantity}", f"{fine}/{kind}", f"{coarse}/{kind}", f"{family}/{kind}")
    return tuple(dict.fromkeys((*names, kind, "all")))
