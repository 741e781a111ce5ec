"""What a call keeps in a model's attributes is gone after the block; what the model holds itself stays."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from peakcast.featurizer.capture.kept import kept_tensors_taken_back


class Keeper(nn.Module):
    """Keeps things in plain attributes, as attention keeps biases."""

    frozen = False

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.cache: dict[str, Any] = {"mine": torch.zeros(1)}
        self.index = torch.zeros(3)

    def keep(self) -> None:
        """Fill and replace."""
        self.cache["bias"] = torch.ones(4)
        self.index = torch.ones(5)
        self.late = torch.ones(6)
        self.calls = 1


class Refusing(Keeper):
    """Lets nobody set an attribute any more, once it is frozen."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse."""
        if self.frozen:
            raise RuntimeError("frozen")
        super().__setattr__(name, value)


@pytest.mark.parametrize("kind", [Keeper, Refusing])
def test_tensors_that_a_call_kept_are_taken_back(kind: type[Keeper]) -> None:
    """A dictionary's new entry, a replaced tensor and a new one; numbers, and what was there, stay."""
    kind.frozen = False
    model = kind()
    mine, index = model.cache["mine"], model.index
    with kept_tensors_taken_back(nn.Sequential(model)):
        model.keep()
        kind.frozen = kind is Refusing
    assert model.cache == {"mine": mine}
    assert model.index is index
    assert not hasattr(model, "late")
    assert model.calls == 1
    assert [name for name, _ in model.named_parameters()] == ["weight"]


def test_an_error_of_the_block_comes_through() -> None:
    """And without a model there is nothing to take back."""
    model = Keeper()

    def fail() -> None:
        model.keep()
        raise ValueError("the step's own")

    with pytest.raises(ValueError, match="the step's own"), kept_tensors_taken_back(model):
        fail()
    assert "bias" not in model.cache
    with kept_tensors_taken_back(None):
        pass
