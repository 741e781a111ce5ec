"""The options of PYTORCH_CUDA_ALLOC_CONF that change what the CUDA caching allocator reserves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

MIB: Final = 1 << 20

# Intervals of `roundup_power2_divisions`: [1, 2) MiB, [2, 4) MiB, ... up to 64 GiB.
_INTERVALS: Final = 16
# torch refuses to forbid splitting below the size of a large buffer.
_SMALLEST_SPLIT_MB: Final = 20

_SIMULATED: Final = (
    "expandable_segments",
    "max_split_size_mb",
    "max_non_split_rounding_mb",
    "roundup_power2_divisions",
)
# Valid for torch, but without effect on what one step on one stream reserves (garbage collection acts only under a
# fraction set by hand, the rest on pinned host memory or locking), so they are accepted and ignored.
_IGNORED: Final = (
    "backend",
    "garbage_collection_threshold",
    "graph_capture_record_stream_reuse",
    "large_segment_size_mb",
    "per_process_memory_fraction",
    "pinned_free_catch_all",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "release_lock_on_cudamalloc",
    "throw_on_cudamalloc_oom",
)


class AllocatorConfigError(ValueError):
    """The allocator configuration string is not one torch would accept."""


@dataclass(frozen=True, slots=True)
class AllocatorConfig:
    """How the allocator rounds, splits and grows. The defaults are torch's.

    `roundup_power2_divisions` holds one number for each interval from 1 MiB up; 0 and 1 switch it off there.
    `is_native` is False for `backend:cudaMallocAsync`, whose pool is the driver's and is not simulated.
    """

    expandable_segments: bool = False
    max_split_size_bytes: int | None = None
    max_non_split_rounding_bytes: int = _SMALLEST_SPLIT_MB * MIB
    roundup_power2_divisions: tuple[int, ...] = (0,) * _INTERVALS
    is_native: bool = True

    @classmethod
    def parse(cls, text: str) -> AllocatorConfig:
        """Read a PYTORCH_CUDA_ALLOC_CONF string; empty gives the defaults.

        Raises:
            AllocatorConfigError: for an unknown option, or a value torch would refuse; says which and what is allowed.
        """
        config = cls()
        for key, value in _pairs(text):
            if key == "expandable_segments":
                config = replace(config, expandable_segments=_flag(key, value))
            elif key == "max_split_size_mb":
                config = replace(config, max_split_size_bytes=_split_mb(key, value) * MIB)
            elif key == "max_non_split_rounding_mb":
                config = replace(config, max_non_split_rounding_bytes=_split_mb(key, value) * MIB)
            elif key == "roundup_power2_divisions":
                config = replace(config, roundup_power2_divisions=_divisions(value))
            elif key == "backend":
                if value not in ("native", "cudaMallocAsync"):
                    raise AllocatorConfigError(f"backend must be native or cudaMallocAsync, got {value!r}")
                config = replace(config, is_native=value == "native")
            elif key not in _IGNORED:
                known = ", ".join(sorted((*_SIMULATED, *_IGNORED)))
                raise AllocatorConfigError(f"unknown allocator option {key!r}; torch knows {known}")
        return config


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """Split `a:1,b:[x:1,y:2]` at the commas outside brackets."""
    text = "".join(text.split())
    start = depth = 0
    for position, letter in enumerate(f"{text},"):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth <= 0:
            item, start = text[start:position], position + 1
            if not item:
                continue
            key, colon, value = item.partition(":")
            if not colon or not value or depth < 0:
                raise AllocatorConfigError(f"expected option:value in the allocator configuration, got {item!r}")
            yield key, value
    if depth:
        raise AllocatorConfigError(f"unbalanced brackets in the allocator configuration {text!r}")


def _flag(key: str, value: str) -> bool:
    if value not in ("True", "False"):
        raise AllocatorConfigError(f"{key} must be True or False, got {value!r}")
    return value == "True"


def _number(key: str, value: str) -> int:
    # isascii: int() also reads digits of other scripts, which torch's stoi does not.
    if not (value.isascii() and value.isdigit()) or len(value) > len("1048576"):
        raise AllocatorConfigError(f"{key} must be a whole number, got {value!r}")
    return int(value)


def _split_mb(key: str, value: str) -> int:
    number = _number(key, value)
    if number < _SMALLEST_SPLIT_MB:
        raise AllocatorConfigError(f"{key} must be at least {_SMALLEST_SPLIT_MB}, got {number}")
    return number


def _is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def _divisions(value: str) -> tuple[int, ...]:
    """Read one number for all intervals, or `[256:1,512:2,>:4]` with interval starts in MiB."""
    key = "roundup_power2_divisions"
    if not value.startswith("["):
        number = _number(key, value)
        if not _is_power_of_two(number):
            raise AllocatorConfigError(f"{key} must be a power of two, got {number}")
        return (number,) * _INTERVALS
    result, last_index, is_first = [0] * _INTERVALS, 0, True
    for start, division in _pairs(value[1:-1]):
        number = _number(key, division)
        if number and not _is_power_of_two(number):
            raise AllocatorConfigError(f"{key}: divisions must be 0 or a power of two, got {number}")
        if start == ">":
            result[last_index:] = [number] * (_INTERVALS - last_index)
            continue
        start_mb = _number(key, start)
        if not _is_power_of_two(start_mb):
            raise AllocatorConfigError(f"{key}: intervals must start at a power of two, got {start_mb}")
        last_index = min(start_mb.bit_length() - 1, _INTERVALS - 1)
        if is_first:  # torch gives the intervals below the first one named its number too
            result[:last_index] = [number] * last_index
            is_first = False
        result[last_index] = number
    return tuple(result)
