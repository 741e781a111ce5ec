"""The frozen test split: architectures that no fit, choice or calibration ever sees; only the gate looks at them.

The names lie in `frozen_split.json`. They were drawn once, by the rule in `draw`, from the kinds of the corpus. A name
is never taken out: what it was tested on must stay comparable. `python -m peakcast.training.frozen_split` draws names
for kinds that joined the corpus since, and keeps those there are.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Final

import orjson
import typer

from peakcast.training import corpus as corpora

PATH: Final = Path(__file__).with_name("frozen_split.json")
# One in ten of a kind, and one at least of each kind that has two.
_ONE_IN: Final = 10
# An architecture of one or two records says little about plans and tasks.
_LEAST_RECORDS: Final = 3
# Kinds of one architecture are drawn from together: the learners keep most of them.
_SINGLES: Final = "single"


@cache
def frozen_architectures() -> frozenset[str]:
    """Return the names of the frozen architectures."""
    return frozenset(orjson.loads(PATH.read_bytes())["architectures"])


def split_sha256(names: Iterable[str] | None = None) -> str:
    """Return the hash of the names (default: the frozen ones), for the lineage of a version."""
    names = frozen_architectures() if names is None else names
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()


def draw(kinds: Mapping[str, str], records: Mapping[str, int], keep: Mapping[str, str]) -> dict[str, str]:
    """Return the frozen architectures and their kinds: those in `keep`, and for each kind as many as the rule wants.

    Within a kind those of at least three records come first, then the smallest sha256 of "kind:name": no person and no
    result has a say. `kinds` names the kind of each architecture, `records` how many records it has.
    """
    groups: dict[str, list[str]] = defaultdict(list)
    sizes = Counter(kinds.values())
    for name, kind in kinds.items():
        groups[kind if sizes[kind] > 1 else _SINGLES].append(name)
    drawn = dict(keep)
    for kind, names in groups.items():
        wanted = max(1, round(len(names) / _ONE_IN))
        ordered = sorted(names, key=lambda name: (name not in keep, records[name] < _LEAST_RECORDS, _lot(kind, name)))
        drawn |= {name: kinds[name] for name in ordered[:wanted]}
    return dict(sorted(drawn.items()))


def _lot(kind: str, name: str) -> str:
    return hashlib.sha256(f"{kind}:{name}".encode()).hexdigest()


def main(
    corpus: Annotated[Path, typer.Option(help="Folder of the corpus.")] = Path("training/corpus"),
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = PATH,
) -> None:
    """Draw the frozen split from a corpus; names that are in the file stay."""
    from peakcast.training.zoo import entries

    records = Counter(str(record["architecture"]) for record in corpora.read(corpus) if record.get("graph_id"))
    kinds = {one.architecture: one.kind for one in entries().values() if one.architecture in records}
    keep = orjson.loads(output.read_bytes())["architectures"] if output.exists() else {}
    document = {"rule": "peakcast.training.frozen_split.draw", "architectures": draw(kinds, records, keep)}
    output.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
    typer.echo(f"{len(document['architectures'])} of {len(kinds)} architectures are frozen: {output}")


if __name__ == "__main__":
    typer.run(main)
