"""Configuration strings are read as torch reads them, and refused with a reason where torch would refuse them."""

from __future__ import annotations

import pytest

from peakcast.featurizer.allocator_config import AllocatorConfig, AllocatorConfigError

MIB = 1 << 20


def test_empty_means_defaults() -> None:
    """No configuration is torch's default."""
    assert AllocatorConfig.parse("") == AllocatorConfig()


def test_reads_the_options_that_matter() -> None:
    """Each option lands in its field, spaces ignored; options without effect on one step are accepted."""
    config = AllocatorConfig.parse(
        "expandable_segments:True, max_split_size_mb:128,max_non_split_rounding_mb:32,garbage_collection_threshold:0.8"
    )
    assert config == AllocatorConfig(
        expandable_segments=True, max_split_size_bytes=128 * MIB, max_non_split_rounding_bytes=32 * MIB
    )
    assert not AllocatorConfig.parse("backend:cudaMallocAsync").is_native


def test_one_number_of_divisions_holds_for_all_intervals() -> None:
    """`roundup_power2_divisions:8` fills all 16 intervals."""
    assert AllocatorConfig.parse("roundup_power2_divisions:8").roundup_power2_divisions == (8,) * 16


def test_a_list_of_divisions_fills_by_interval() -> None:
    """256 MiB is interval 8 and 1024 interval 10: below the first its number, `>` from the last named on."""
    config = AllocatorConfig.parse("roundup_power2_divisions:[256:1,1024:4,>:2]")
    assert config.roundup_power2_divisions == (1,) * 9 + (0,) + (2,) * 6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("expandable_segments:yes", "True or False"),
        ("max_split_size_mb:19", "at least 20, got 19"),
        ("max_split_size_mb:-1", "whole number"),
        ("max_split_size_mb:" + "9" * 5000, "whole number"),
        ("roundup_power2_divisions:3", "power of two, got 3"),
        ("roundup_power2_divisions:[3:1]", "start at a power of two"),
        ("roundup_power2_divisions:[4:3]", "0 or a power of two"),
        ("roundup_power2_divisions:[4:2", "unbalanced"),
        ("backend:tcmalloc", "native or cudaMallocAsync"),
        ("max_split_size", "option:value"),
        ("split:1", "unknown allocator option 'split'; torch knows backend"),
        ("a]:1,b", "option:value"),
    ],
)
def test_says_what_is_wrong(text: str, message: str) -> None:
    """The error names the option, the value and what is allowed."""
    with pytest.raises(AllocatorConfigError, match=message):
        AllocatorConfig.parse(text)
