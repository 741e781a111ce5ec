"""What the pair looks at: TreeSHAP shares of the trees' features, and what each part of a node does to the LSTM."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from peakcast.models.example import Example, Floats
from peakcast.models.gbm import feature_matrix
from peakcast.models.predictor import Predictor

# The twelve numbers of a node: rank and two log sizes, the 8-dim op embedding, placement.
NODE_PARTS = {"shape": slice(0, 3), "op": slice(3, 11), "placement": slice(11, 12)}


# What the columns of the trees tell, the first that fits: kinds of operators, where things lie, when they live and
# under which plan, and the rest, which are sizes.
_TREE_PARTS = {
    "op": re.compile(r".*_(nodes_share|born_share|scratch_share|scratch_log2_mib|overshoot_share|overshoot_log2_mib)"),
    "placement": re.compile(r"traced_on_cpu|device_capability|log2_world_size|expandable_segments"),
    "time and plan": re.compile(
        r"peak_.*|watermark_.*|.*_alive_share|plan=.*|is_.*|uses_.*|budget|optimizer_.*|implementation_.*|training"
        r"|accumulates|autocast_half|torch_version|quantity|saved_per_parameter|prior_over_steady|lstm_.*"
    ),
}


def tree_parts(shares: Mapping[str, float]) -> dict[str, float]:
    """Return the features' shares summed over what they tell: shape (sizes), op, placement, time and plan."""
    parts = dict.fromkeys(("shape", "op", "placement", "time and plan"), 0.0)
    for name, share in shares.items():
        part = next((part for part, pattern in _TREE_PARTS.items() if pattern.fullmatch(name)), "shape")
        parts[part] += share
    return parts


def tree_shares(predictor: Predictor, examples: Sequence[Example]) -> dict[str, float]:
    """Return each feature's share of the mean absolute TreeSHAP value of the ratio trees, largest first."""
    features = feature_matrix(examples, predictor.sequence.predict(examples), predictor.feature_names)
    mean: Floats = np.abs(predictor.heads["ratio"].contributions(features)[:, :-1]).mean(axis=0)
    return _shares(dict(zip(predictor.feature_names, mean.tolist(), strict=True)))


def node_shares(predictor: Predictor, examples: Sequence[Example]) -> dict[str, float]:
    """Return how far the LSTM's ratio outputs move when a part of every node is replaced by its mean, as shares."""
    usual = predictor.sequence.tensors["input_mean"]
    half = predictor.sequence.predict(examples).shape[1] // 2
    known = predictor.sequence.predict(examples)[:, :half]
    moved = {}
    for name, columns in NODE_PARTS.items():
        blinded = []
        for example in examples:
            steps = example.steps_TC.copy()
            steps[:, columns] = usual[columns]
            blinded.append(replace(example, steps_TC=steps))
        moved[name] = float(np.abs(predictor.sequence.predict(blinded)[:, :half] - known).mean())
    return _shares(moved)


def _shares(values: dict[str, float]) -> dict[str, float]:
    # A pair that corrects nothing looks at nothing.
    total = sum(values.values()) or 1.0
    return {name: value / total for name, value in sorted(values.items(), key=lambda item: -item[1])}
