"""All models of the zoo by name."""

from __future__ import annotations

from functools import cache

from peakcast.training.zoo import audio, language, plain, seed, vision
from peakcast.training.zoo.entry import Entry


@cache
def entries() -> dict[str, Entry]:
    """Give every entry by model name, the seed's first."""
    found: dict[str, Entry] = {}
    for part in (seed.ENTRIES, plain.ENTRIES, language.ENTRIES, audio.ENTRIES, vision.ENTRIES):
        for one in part:
            if one.name in found:
                raise ValueError(f"two models named {one.name!r} in the zoo")
            found[one.name] = one
    return found


def entry(model: str) -> Entry:
    """Find one entry. Raises KeyError with what exists nearby in the message."""
    try:
        return entries()[model]
    except KeyError:
        near = ", ".join(name for name in entries() if name[:3] == model[:3]) or "peakcast collect --list shows all"
        raise KeyError(f"no model {model!r} in the zoo ({near})") from None


def architectures() -> dict[str, str]:
    """Give each model's architecture, the unit of hold-out."""
    return {name: one.architecture for name, one in entries().items()}
