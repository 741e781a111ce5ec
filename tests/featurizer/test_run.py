"""RunSpec and DeviceSpec take what the wire format says and nothing that merely looks like it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from peakcast.featurizer.run import DeviceSpec, RunSpec


@pytest.mark.parametrize(
    ("allocator", "said"),
    [
        ("expandable_segments:maybe", "must be True or False"),
        ("turbo:1", "unknown allocator option 'turbo'"),
        ("max_split_size_mb:1", "at least 20"),
        ("roundup_power2_divisions:[256:1", "unbalanced brackets"),
    ],
)
def test_an_allocator_that_torch_refuses_is_refused(allocator: str, said: str) -> None:
    """The text is read where it comes in; the error is a ValueError that names the field and what is allowed."""
    with pytest.raises(ValueError, match=said) as raised:
        RunSpec(allocator=allocator)
    assert isinstance(raised.value, ValidationError)
    assert raised.value.errors()[0]["loc"] == ("allocator",)


def test_a_valid_allocator_is_kept_as_written() -> None:
    """No canonical form is made: it is a fact of the run."""
    assert RunSpec(allocator="expandable_segments:True").allocator == "expandable_segments:True"


@pytest.mark.parametrize("value", ["4", True, 4.0, None, 0])
@pytest.mark.parametrize("field", ["accumulation", "world_size"])
def test_counts_are_whole_numbers(field: str, value: Any) -> None:
    """Text, true, floats, null and zero are no counts."""
    with pytest.raises(ValidationError):
        RunSpec.model_validate({field: value})


@pytest.mark.parametrize("value", ["80", True, 8e10, None, -1])
@pytest.mark.parametrize("field", ["total_bytes", "used_by_others_bytes", "already_allocated_bytes"])
def test_bytes_are_whole_numbers(field: str, value: Any) -> None:
    """Text, true, floats, null and less than nothing are no bytes."""
    with pytest.raises(ValidationError):
        DeviceSpec.model_validate({field: value})
