"""An ensemble of LightGBM's trees, evaluated without LightGBM: importing it takes longer than a thousand predictions.

LightGBM fits the trees and defines the text they are kept in; this reads that text, and gives the same numbers to the
bit, which the tests hold. It reads what this project fits: one output, no linear leaves, NaN or nothing as missing.

Shapes: R rows, F features, T trees, N places: the inner nodes of all trees, then their leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from peakcast.models.example import Floats

Places = NDArray[np.intp]

# Bits of `decision_type`.
_CATEGORICAL, _DEFAULT_LEFT, _MISSING_SHIFT = 1, 2, 2
_MISSING_NOTHING, _MISSING_NAN = 0, 2
_WORD_BITS = 32
# So many outcomes of nodes are held at once: more fall out of the processor's cache.
_OUTCOMES_AT_ONCE = 1 << 18


# The compiled walk where `compiled.load` put it; one at most.
walks: list[Callable[..., Floats]] = []


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """T trees in flat arrays. The first `len(feature)` places are inner nodes, the others leaves.

    Attributes:
        feature, threshold, left, right: of inner nodes; a row goes left where its feature is at most the threshold.
        nan_left, nan_as_zero: of inner nodes: whether NaN goes left, or counts as zero.
        categorical: [C], inner nodes that ask for membership instead.
        category_row: of inner nodes: the row of `goes_left_CK`; -1 where the node compares.
        goes_left_CK: whether category k goes left; the last stands for all others, and does not.
        value: of leaves.
        root: [T].
        width: F.
        depth: inner nodes on the longest way down.
    """

    feature: Places
    threshold: Floats
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    nan_left: NDArray[np.bool_]
    nan_as_zero: NDArray[np.bool_]
    categorical: Places
    category_row: NDArray[np.int32]
    goes_left_CK: NDArray[np.bool_]
    value: Floats
    root: NDArray[np.int32]
    depth: int
    width: int

    def predict(self, features_RF: Floats) -> Floats:
        """Return the sum over the trees for each row [R], added in the order of the trees.

        Raises:
            ValueError: if the rows have another number of features than the trees were fitted on.
        """
        if features_RF.shape[1] != self.width:
            raise ValueError(f"rows of {features_RF.shape[1]} features; the trees were fitted on {self.width}")
        if walks:
            return walks[0](
                np.ascontiguousarray(features_RF),
                (self.feature, self.threshold),
                (self.left, self.right),
                (self.nan_left, self.nan_as_zero),
                (self.category_row, self.goes_left_CK),
                (self.root, self.value),
            )
        places = len(self.feature) + len(self.value)
        at_once = max(_OUTCOMES_AT_ONCE // places, 1)
        chunks = [self._sums(features_RF[start : start + at_once]) for start in range(0, len(features_RF), at_once)]
        return np.concatenate(chunks) if chunks else np.zeros(0)

    def _sums(self, features_RF: Floats) -> Floats:
        """Walk all trees of all rows down at once.

        Where each inner node would send each row is worked out beforehand: that is plain arithmetic on whole arrays,
        and every level of the walk is one look-up.
        """
        rows, nodes = len(features_RF), len(self.feature)
        places = nodes + len(self.value)
        start_R = np.arange(rows, dtype=np.int32)[:, None] * np.int32(places)
        onward = np.empty((rows, places), np.int32)
        onward[:, :nodes] = np.where(self._goes_left(features_RF), self.left, self.right)
        onward[:, nodes:] = np.arange(nodes, places, dtype=np.int32)
        onward += start_R
        flat = onward.ravel()
        place = start_R + self.root
        for _ in range(self.depth):
            place = flat[place]
        # cumsum adds one after the other, as LightGBM does; sum would pair.
        return np.cumsum(self.value[place - start_R - nodes], axis=1)[:, -1]

    def _goes_left(self, features_RF: Floats) -> NDArray[np.bool_]:
        asked = features_RF.take(self.feature, axis=1)
        goes_left = asked <= self.threshold
        nodes = np.flatnonzero(np.asarray(np.isnan(features_RF).any(axis=0))[self.feature])
        if len(nodes):
            by_nan = np.where(self.nan_as_zero, self.threshold >= 0.0, self.nan_left)[nodes]
            goes_left[:, nodes] = np.where(np.isnan(asked[:, nodes]), by_nan, goes_left[:, nodes])
        if len(self.categorical):
            # A category is the number without its fraction; NaN and what is below zero are none.
            column = asked[:, self.categorical]
            last = self.goes_left_CK.shape[1] - 1
            category = np.where((column > -1.0) & (column < last), column, last).astype(np.intp)
            goes_left[:, self.categorical] = self.goes_left_CK[np.arange(len(self.categorical)), category]
        return goes_left

    @classmethod
    def single_leaf(cls) -> Self:
        """Return a tree that gives 0, whatever is asked."""
        return cls.from_text(
            "tree\nversion=v4\nnum_tree_per_iteration=1\nmax_feature_idx=0\nobjective=regression\n\nTree=0\nnum_leaves=1\nleaf_value=0\n"
        )

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Read LightGBM's text format.

        Raises:
            ValueError: if it is not that, or uses what is not evaluated here.
        """
        head, *bodies = text.partition("\nend of trees")[0].split("\nTree=")
        width = _check_head(_fields(head))
        trees = [_Tree.from_fields(_fields(body), width) for body in bodies]
        if not trees:
            raise ValueError("an ensemble without trees")
        total = sum(len(tree.feature) for tree in trees)
        left: list[NDArray[np.int64]] = []
        right: list[NDArray[np.int64]] = []
        root: list[int] = []
        categorical: dict[int, NDArray[np.int64]] = {}
        nodes, leaves = 0, total
        for tree in trees:
            for children, collected in ((tree.left, left), (tree.right, right)):
                collected.append(np.where(children >= 0, children + nodes, ~children + leaves))
            root.append(nodes if len(tree.feature) else leaves)
            categorical |= {nodes + node: categories for node, categories in tree.categorical()}
            nodes += len(tree.feature)
            leaves += len(tree.value)
        decision = np.concatenate([tree.decision for tree in trees])
        missing = decision >> _MISSING_SHIFT
        if not np.isin(missing, (_MISSING_NOTHING, _MISSING_NAN)).all():
            raise ValueError("zero_as_missing: trees that take zero for missing are not evaluated here")
        goes_left = np.zeros(
            (len(categorical), 1 + max((int(c.max(initial=0)) + 1 for c in categorical.values()), default=0)), np.bool_
        )
        for row, categories in zip(goes_left, categorical.values(), strict=True):
            row[categories] = True
        category_row = np.full(total, -1, np.int32)
        category_row[list(categorical)] = np.arange(len(categorical))
        return cls(
            feature=np.concatenate([tree.feature for tree in trees]).astype(np.intp),
            threshold=np.concatenate([tree.threshold for tree in trees]),
            left=np.concatenate(left).astype(np.int32),
            right=np.concatenate(right).astype(np.int32),
            nan_left=(decision & _DEFAULT_LEFT) != 0,
            nan_as_zero=missing == _MISSING_NOTHING,
            categorical=np.array(list(categorical), np.intp),
            category_row=category_row,
            goes_left_CK=goes_left,
            value=np.concatenate([tree.value for tree in trees]),
            root=np.array(root, np.int32),
            depth=max(tree.depth() for tree in trees),
            width=width,
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Tree:
    """One tree as the text has it: children at least 0 are inner nodes, `~child` leaves."""

    feature: NDArray[np.int64]
    threshold: Floats
    decision: NDArray[np.int64]
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    value: Floats
    boundaries: NDArray[np.int64]
    words: NDArray[np.int64]

    @classmethod
    def from_fields(cls, fields: Mapping[str, str], width: int) -> Self:
        if fields.get("is_linear", "0") != "0":
            raise ValueError("linear_tree: trees with linear leaves are not evaluated here")

        def integers(name: str) -> NDArray[np.int64]:
            return np.array(fields.get(name, "").split(), np.int64)

        tree = cls(
            feature=integers("split_feature"),
            threshold=np.array(fields.get("threshold", "").split(), np.float64),
            decision=integers("decision_type"),
            left=integers("left_child"),
            right=integers("right_child"),
            value=np.array(fields["leaf_value"].split(), np.float64),
            boundaries=integers("cat_boundaries"),
            words=integers("cat_threshold"),
        )
        columns = (tree.feature, tree.threshold, tree.decision, tree.left, tree.right)
        if {len(column) for column in columns} != {len(tree.value) - 1}:
            raise ValueError(
                f"a tree of {len(tree.value)} leaves has {len(tree.value) - 1} inner nodes: one is malformed"
            )
        nodes, leaves = len(tree.feature), len(tree.value)
        for children in (tree.left, tree.right):  # a child comes after its parent: no walk goes round in a ring
            inner = children >= 0
            if (children[inner] <= np.flatnonzero(inner)).any() or not (
                (children < nodes) & (~children < leaves)
            ).all():
                raise ValueError(f"children {children.tolist()} of {nodes} nodes and {leaves} leaves: one is malformed")
        if not ((tree.feature >= 0) & (tree.feature < width)).all():
            raise ValueError(f"features {tree.feature.tolist()} of {width}: one is malformed")
        return tree

    def categorical(self) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield the nodes that ask for membership, with the categories that go left: the bits set in their words."""
        for node in np.flatnonzero(self.decision & _CATEGORICAL).tolist():
            index = int(self.threshold[node])
            words = self.words[self.boundaries[index] : self.boundaries[index + 1]]
            bits = (words[:, None] >> np.arange(_WORD_BITS)) & 1
            yield node, np.flatnonzero(bits.ravel())

    def depth(self) -> int:
        """Return how many inner nodes stand on the longest way down. A child comes after its parent."""
        level = [1] * len(self.feature)
        for node, children in enumerate(zip(self.left.tolist(), self.right.tolist(), strict=True)):
            for child in children:
                if child >= 0:
                    level[child] = level[node] + 1
        return max(level, default=0)


def _fields(block: str) -> dict[str, str]:
    return {name: value for name, found, value in (line.partition("=") for line in block.splitlines()) if found}


def _check_head(fields: Mapping[str, Any]) -> int:
    """Return the number of features."""
    if fields.get("version") not in {"v3", "v4"}:
        raise ValueError(f"not a text of LightGBM that is read here: version {fields.get('version')!r}, v3 or v4")
    objective = str(fields.get("objective", ""))
    if fields.get("num_tree_per_iteration") != "1" or "sqrt" in objective or not objective.startswith("regression"):
        raise ValueError(
            f"objective {objective!r} with {fields.get('num_tree_per_iteration')} outputs: one of regression"
        )
    return int(fields["max_feature_idx"]) + 1
