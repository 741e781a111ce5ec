"""Questions about the data: which are answered without doubt, and which are counted as guessed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from peakcast.featurizer.capture.fake_step import new_fake_mode, whole_steps_on_fake_tensors


def _ask(question: Callable[[torch.Tensor], object]) -> tuple[object, dict[str, str]]:
    with whole_steps_on_fake_tensors() as guesses, new_fake_mode():
        return question(torch.randn(4)), guesses.as_text()


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (lambda x: bool((x > 0).all()), True),
        (lambda x: bool(torch.isnan(x).any()), False),
        (lambda x: bool((x > 0).sum() == 4), True),
        (lambda x: bool((x > 0).sum() == (x < 0).sum()), True),
        (lambda x: bool(torch.rand([]) < 0.5), False),
        (lambda x: bool(torch.rand(()) > torch.tensor(0.5)), False),
        (lambda x: bool(torch.tensor(0.5) >= torch.rand([])), False),
        (lambda x: x.sum().item(), 0.0),
    ],
)
def test_no_guess(question: Callable[[torch.Tensor], object], answer: object) -> None:
    """All, any, equality of scalars, a drawn number against a probability, and floats are not counted."""
    assert _ask(question) == (answer, {})


@pytest.mark.parametrize(
    ("question", "answer", "counted"),
    [
        (lambda x: bool(x.sum() > 0), False, {"guessed_conditions": "1"}),
        (lambda x: bool(x[0] < torch.randn(())), False, {"guessed_conditions": "1"}),
        (lambda x: (x > 0).sum().item(), 0, {"guessed_integers": "1"}),
        (lambda x: int(x.argmax()) + int(x.argmin()), 0, {"guessed_integers": "2"}),
        (lambda x: x.nonzero().shape, (4, 1), {"guessed_sizes": "1"}),
        (lambda x: x[x > 0].shape, (4,), {"guessed_sizes": "1"}),
        (lambda x: x.masked_select(x > 0).shape, (4,), {"guessed_sizes": "1"}),
    ],
)
def test_guesses_are_counted(
    question: Callable[[torch.Tensor], object], answer: object, counted: dict[str, str]
) -> None:
    """Other conditions, integers and sizes are, each kind by itself."""
    assert _ask(question) == (answer, counted)


def test_a_draw_compared_with_many_is_an_ordinary_mask() -> None:
    """The result keeps its shape."""
    assert _ask(lambda x: (torch.rand([]) < x).shape) == ((4,), {})
