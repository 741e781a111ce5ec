"""From the guards that failed to what to change: which sizes varied, and how to compile fewer times."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_SIZE: Final = re.compile(r"tensor '(?P<name>.*?)' size mismatch at index (?P<dim>\d+)\. expected (\d+), actual (\d+)")
# Up to so many, compiling each size once is over soon and makes the fastest code.
_FEW_SIZES: Final = 2

# What else fails as a guard, by Dynamo's words for it.
_OTHER: Final = (
    (re.compile(r"stride mismatch"), "strides changed: call .contiguous() on the input"),
    (re.compile(r"dtype mismatch"), "the dtype changed: cast inputs before the call"),
    (re.compile(r"requires_grad"), "requires_grad changed: keep it the same between calls, or compile each use apart"),
    (
        re.compile(r"grad_mode|GLOBAL_STATE|___check_global_state"),
        "grad or autocast mode changed: evaluate another way",
    ),
    (re.compile(r"\.training"), "train() and eval() alternate: each has a graph of its own, which is compiled once"),
    (re.compile(r"len\("), "a list or dict changed its length: pass one tensor instead"),
    (re.compile(r"rank mismatch"), "the number of dimensions changed: reshape before the call"),
    (
        re.compile(r"(==|!=) -?\d"),
        "a number that changes is part of the graph: pass it as a tensor, or keep it out of the compiled function",
    ),
)


@dataclass(frozen=True, slots=True)
class Varying:
    """A dimension of an input whose size changed, and the sizes seen."""

    name: str
    dim: int
    sizes: tuple[int, ...]


def varying(reasons: Iterable[str]) -> list[Varying]:
    """Return the dimensions whose sizes failed guards, with their sizes in order."""
    seen: dict[tuple[str, int], set[int]] = {}
    for reason in reasons:
        for name, dim, expected, actual in _SIZE.findall(reason):
            seen.setdefault((name, int(dim)), set()).update((int(expected), int(actual)))
    return [Varying(name, dim, tuple(sorted(sizes))) for (name, dim), sizes in seen.items()]


def advice(reasons: list[str], *, gave_up: bool, recompile_limit: int) -> list[str]:
    """Return what to change, the best first. Nothing where recompiles are few and over."""
    said = []
    for found in varying(reasons):
        said.extend(_of_sizes(found, gave_up=gave_up, recompile_limit=recompile_limit))
    for pattern, text in _OTHER:
        if any(pattern.search(reason) for reason in reasons if not _SIZE.search(reason)):
            said.append(text)
    return said


def _of_sizes(found: Varying, *, gave_up: bool, recompile_limit: int) -> list[str]:
    largest, sizes = found.sizes[-1], len(found.sizes)
    pad = f"pad dimension {found.dim} of {found.name} to the largest size there is, {largest} so far: one graph for all"
    if sizes <= _FEW_SIZES and not gave_up:
        return [f"{pad}; or drop the odd batch (drop_last=True)"]
    buckets = len({(size - 1).bit_length() for size in found.sizes})
    said = [
        pad,
        f"torch._dynamo.mark_dynamic({found.name}, {found.dim}) before the call: one graph for every size",
    ]
    if buckets < sizes:
        said.append(f"bucket: pad to the next power of two: {buckets} graphs instead of {sizes}")
    if not gave_up and sizes >= recompile_limit - 1:
        said.append(
            f"after {recompile_limit} graphs Dynamo goes on eager; torch._dynamo.config.recompile_limit caps them"
        )
    return said
