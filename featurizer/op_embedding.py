"""Eight learned numbers for each operator: operators used alike in captured graphs are near each other.

`op_embedding.json` is written by `python -m peakcast.training.embed`, and says from which graphs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

DIMENSIONS: Final = 8
SHIPPED: Final = Path(__file__).with_name("op_embedding.json")

Vectors = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class OpEmbedding:
    """Unit vectors by operator name; `learned_from` says how many graphs they come from, with a hash of their ids."""

    ops: tuple[str, ...]
    vectors: Vectors  # [len(ops), 8]
    learned_from: Mapping[str, Any]

    def vectors_of(self, names: Sequence[str]) -> Vectors:
        """Return [len(names), 8]: an operator's vector, else its closest relatives' by name, else zeros."""
        found = np.zeros((len(names), DIMENSIONS), np.float32)
        rows = np.fromiter((self._index.get(name, -1) for name in names), np.int64, len(names))
        is_listed = rows >= 0
        found[is_listed] = self.vectors[rows[is_listed]]
        for row in np.flatnonzero(~is_listed).tolist():
            vector = self.find(names[row])
            if vector is not None:
                found[row] = vector
        return found

    def find(self, name: str) -> Vectors | None:
        """Return the vector of an operator, else the mean of those with the same stem, else None.

        Stems are tried from the finest: `aten.gelu_backward.out` looks for other overloads of gelu_backward, then for
        the out-of-place form, then for gelu.
        """
        index = self._index.get(name)
        if index is not None:
            vector: Vectors = self.vectors[index]
            return vector
        for stem in stems(name):
            if stem in self._by_stem:
                return self._by_stem[stem]
        return None

    def nearest(self, name: str, count: int = 5) -> list[tuple[str, float]]:
        """Return the nearest operators by cosine, best first. Raises KeyError for an operator without a vector."""
        similarity = self.vectors @ self.vectors[self._index[name]]
        order = np.argsort(-similarity, kind="stable")
        return [(self.ops[i], float(similarity[i])) for i in order if self.ops[i] != name][:count]

    @cached_property
    def _index(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self.ops)}

    @cached_property
    def _by_stem(self) -> dict[str, Vectors]:
        rows: dict[str, list[int]] = {}
        for row, name in enumerate(self.ops):
            for stem in stems(name):
                rows.setdefault(stem, []).append(row)
        return {stem: self.vectors[members].mean(axis=0) for stem, members in rows.items()}

    def to_json(self) -> bytes:
        """Return the file's bytes: an operator a line, four decimals."""
        head = {"dimensions": DIMENSIONS, "learned_from": dict(self.learned_from)}
        lines = [orjson.dumps(head)[:-1] + b',"vectors":{']
        for name, vector in zip(self.ops, self.vectors.tolist(), strict=True):
            lines.append(orjson.dumps(name) + b":" + orjson.dumps([round(x, 4) for x in vector]) + b",")
        lines[-1] = lines[-1].removesuffix(b",")
        return b"\n".join([*lines, b"}}", b""])

    @classmethod
    def from_json(cls, text: bytes) -> OpEmbedding:
        """Return the embedding of a file. Raises ValueError if it has vectors of another length."""
        document = orjson.loads(text)
        vectors = np.array(list(document["vectors"].values()), np.float32)
        if vectors.shape[1:] != (DIMENSIONS,):
            raise ValueError(f"vectors must have {DIMENSIONS} dimensions, got shape {vectors.shape}")
        return cls(tuple(document["vectors"]), vectors, document["learned_from"])


def stems(name: str) -> Iterator[str]:
    """Yield coarser and coarser names: without overload, in-place mark, leading underscore, `_backward`."""
    namespace, _, rest = name.partition(".")
    packet = rest.rpartition(".")[0] or rest
    yield (seen := f"{namespace}.{packet}")
    functional = packet.rstrip("_").lstrip("_")
    for stem in (functional, functional.removesuffix("_backward")):
        # Each once: `find` would gain nothing, and the mean of the vectors would count an operator twice.
        if stem and (coarser := f"{namespace}.{stem}") != seen:
            yield (seen := coarser)


@cache
def shipped_embedding() -> OpEmbedding:
    """Return the embedding that comes with the package."""
    return OpEmbedding.from_json(SHIPPED.read_bytes())
