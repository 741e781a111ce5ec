"""Trees without LightGBM give what LightGBM gives, to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lightgbm
import numpy as np
import pytest

from peakcast.models import compiled
from peakcast.models.example import Floats
from peakcast.models.forest import Forest
from peakcast.models.predictor import Predictor


@pytest.fixture(autouse=True, params=["numpy", "compiled"])
def _how(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run each test on arrays, and with the compiled walk where numba is installed."""
    if request.param == "compiled" and not compiled.load():
        pytest.skip("numba is not installed: the trees are walked by numpy")
    yield
    compiled.unload()


HEADS = ("ratio", "additive", "scratch", "spread")


def shipped(head: str) -> str:
    """Return the text of one of the shipped predictor's ensembles."""
    return Predictor.load().to_files()[f"{head}.txt"].decode()


def hostile_rows(booster: lightgbm.Booster, forest: Forest, *, count: int, seed: int) -> Floats:
    """Return rows that hit thresholds exactly or by a hair, with zeros, infinities, NaN and odd categories."""
    random = np.random.default_rng(seed)
    shape = (count, booster.num_feature())
    rows = random.choice(np.unique(forest.threshold), shape)
    rows = np.nextafter(rows, rows + random.choice([-1.0, 0.0, 1.0], shape))
    for odd in (np.nan, 0.0, -0.0, np.inf, -np.inf, 1e-40):
        rows[random.random(shape) < 0.04] = odd
    asked = np.unique(forest.feature[forest.categorical])
    rows[:, asked] = random.choice([0, 1, 2, 3, 4, 31, 32, 33, 70, 1e6, 2.7, -0.5, -1, -7, np.nan], (count, len(asked)))
    return rows


def fitted(rows: Floats, target: Floats, *, categorical: list[int] | None = None, **parameters: Any) -> str:
    """Fit a few trees and return their text."""
    chosen = {"objective": "regression", "verbosity": -1, "num_threads": 1, "min_data_in_leaf": 3, **parameters}
    data = lightgbm.Dataset(rows, target, categorical_feature=categorical or [])
    return lightgbm.train(chosen, data, num_boost_round=20).model_to_string()


@pytest.mark.parametrize("head", HEADS)
def test_equals_lightgbm_on_the_shipped_trees(head: str) -> None:
    """Every row of hostile values gets the same float64 from the arrays as from LightGBM."""
    text = shipped(head)
    forest, booster = Forest.from_text(text), lightgbm.Booster(model_str=text)
    rows = hostile_rows(booster, forest, count=500, seed=HEADS.index(head))
    expected = booster.predict(rows, num_threads=1)
    assert forest.predict(rows).tolist() == expected.tolist()
    assert np.unique(expected).size > 100  # they reached many leaves
    assert [forest.predict(rows[[index]])[0] for index in range(20)] == expected[:20].tolist()


@pytest.mark.parametrize("use_missing", [True, False])
def test_equals_lightgbm_where_nan_and_categories_were_seen(*, use_missing: bool) -> None:
    """NaN goes the way that was learned or counts as zero; categories beyond 32 are found in their word."""
    random = np.random.default_rng(5)
    rows = random.normal(size=(3000, 4))
    rows[:, 2] = random.integers(0, 70, len(rows))
    target = np.where(rows[:, 2] % 3 == 0, 4.0, -1.0) + rows[:, 0] + random.normal(size=len(rows))
    holes = random.random(len(rows)) < 0.3
    rows[holes, 0] = np.nan
    text = fitted(rows, target + 3.0 * holes, categorical=[2], use_missing=use_missing, max_cat_to_onehot=1)
    forest, booster = Forest.from_text(text), lightgbm.Booster(model_str=text)
    assert len(forest.categorical) > 0
    assert np.delete(forest.nan_as_zero, forest.categorical).all() == (not use_missing)
    for asked in (rows, hostile_rows(booster, forest, count=500, seed=6)):
        assert forest.predict(asked).tolist() == booster.predict(asked, num_threads=1).tolist()


def test_trees_of_one_leaf() -> None:
    """Where nothing can be split every tree is a leaf, and what is asked is not looked at."""
    rows = np.zeros((50, 2))
    text = fitted(rows, np.full(50, 7.0))
    expected = lightgbm.Booster(model_str=text).predict(np.ones((3, 2)), num_threads=1)
    assert Forest.from_text(text).predict(np.ones((3, 2))).tolist() == expected.tolist() == [7.0, 7.0, 7.0]
    assert Forest.from_text(text).predict(np.ones((0, 2))).tolist() == []


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"zero_as_missing": True}, "zero_as_missing"),
        ({"linear_tree": True}, "linear_tree"),
        ({"objective": "binary"}, "objective 'binary"),
        ({"objective": "regression", "reg_sqrt": True}, "objective 'regression sqrt'"),
    ],
)
def test_refuses_what_it_would_evaluate_wrongly(parameters: dict[str, Any], problem: str) -> None:
    """Trees of another kind are refused with the setting that made them so."""
    random = np.random.default_rng(1)
    rows = random.normal(size=(200, 3))
    with pytest.raises(ValueError, match=problem):
        Forest.from_text(fitted(rows, (rows[:, 0] > 0).astype(float), **parameters))


@pytest.mark.parametrize("text", ["", "tree\nversion=v9\n", "tree\nversion=v4\nobjective=regression\n"])
def test_refuses_what_is_no_model(text: str) -> None:
    """A text without a head that is known is refused."""
    with pytest.raises(ValueError, match=r"not a text of LightGBM|objective"):
        Forest.from_text(text)


@pytest.mark.parametrize(
    ("found", "instead"),
    [
        ("left_child=", "left_child=1 "),  # one too many
        ("left_child=1", "left_child=0"),  # its own child
        ("left_child=1", "left_child=99999"),
        ("right_child=", "right_child=-99"),
        ("split_feature=", "split_feature=99"),
    ],
)
def test_a_damaged_tree_is_refused(found: str, instead: str) -> None:
    """A walk that would go round in a ring, or out of the tree or of its features, is refused."""
    text = shipped("ratio")
    assert found in text
    with pytest.raises(ValueError, match="malformed"):
        Forest.from_text(text.replace(found, instead))


def test_rows_of_another_width_are_refused() -> None:
    """Rows with fewer features than the trees were fitted on are no question to them."""
    with pytest.raises(ValueError, match="rows of 3 features; the trees were fitted on"):
        Forest.from_text(shipped("ratio")).predict(np.zeros((1, 3)))
