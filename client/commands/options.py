"""Command line options that several commands share, and how their text is read."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from pydantic import ByteSize, TypeAdapter, ValidationError

from peakcast.featurizer.plans import parse_plan
from peakcast.featurizer.run import RunSpec

PlansOption = Annotated[
    list[str] | None,
    typer.Option("--plans", help="Plans, separated by commas or given again: eager,inductor:budget=0.5"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, and nothing else there.")]
WorldSizeOption = Annotated[
    int | None,
    typer.Option(min=1, help="Ranks the step runs on; rank 0 is captured. Default: WORLD_SIZE, as a launcher sets it."),
]

# More than any size has.
_MOST_DIGITS = 18
# No card has less; a bare number is bytes, and hardly ever meant so.
_LEAST_MEMORY_BYTES = 1 << 26


def read_plans(texts: list[str] | None) -> list[str] | None:
    """Return the canonical plan names of `--plans a,b --plans c`, each once."""
    names = [name.strip() for text in texts or () for name in text.split(",") if name.strip()]
    try:
        return list(dict.fromkeys(parse_plan(name).name for name in names)) or None
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--plans") from None


def read_memory(text: str | None, option: str) -> int | None:
    """Return the bytes of "80GiB", "80GB" or "85899345920"."""
    if text is None:
        return None
    try:
        size_bytes = int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError:
        raise typer.BadParameter(
            f"{text!r} is no size: give one such as 80GiB, 40GB or 512MiB", param_hint=option
        ) from None
    if size_bytes < _LEAST_MEMORY_BYTES:
        raise typer.BadParameter(f"{text!r} is {size_bytes:,} bytes: did you mean {text}GiB?", param_hint=option)
    return size_bytes


def read_symbols(pairs: list[str] | None) -> dict[str, int]:
    """Return the values of `--symbol batch=64`; whether the graph has them is for others to say."""
    values = {}
    for pair in pairs or ():
        name, _, text = pair.partition("=")
        if not name or not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS):
            raise typer.BadParameter(f"{pair!r}: give NAME=NUMBER, for instance batch=64", param_hint="--symbol")
        values[name] = int(text)
    return values


def read_run(pairs: list[str] | None, captured: RunSpec) -> RunSpec:
    """Return the captured run with `--run key=value` put over it."""
    given: dict[str, Any] = {}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not equals or key not in RunSpec.model_fields:
            problem = f"{pair!r}: give KEY=VALUE; keys: {', '.join(RunSpec.model_fields)}"
            raise typer.BadParameter(problem, param_hint="--run")
        # An empty value takes back what was captured: `--run autocast=`.
        given[key] = value or RunSpec.model_fields[key].default
    try:
        # Everything given on a command line is text.
        return RunSpec.model_validate({**captured.model_dump(), **given}, strict=False)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        what = f"{first['loc'][0]}={first['input']}: {first['msg'].removeprefix('Value error, ')}"
        raise typer.BadParameter(what, param_hint="--run") from None
