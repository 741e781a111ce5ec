"""Learn the operators' vectors from captured graphs: operators in like surroundings come out near each other.

Levy, Goldberg, Dagan: "Improving Distributional Similarity with Lessons Learned from Word Embeddings" (TACL 2015):
positive pointwise mutual information between a word and its contexts, cut to a few dimensions by SVD. Here a word is
an operator, and its contexts are who wrote what it reads, who reads what it writes, how large its outputs are beside
its inputs, and what it looks like; a little comes from the letters of its name (Bojanowski et al., "Enriching Word
Vectors with Subword Information", TACL 2017), which holds up what is seen in few graphs. No random numbers: the same
graphs give the same file.

Shapes: U operators, C contexts, R = min(U, C) singular values, D = 8 dimensions.
"""

from __future__ import annotations

import hashlib
import lzma
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import typer
from numpy.typing import NDArray

from peakcast.featurizer.op_embedding import DIMENSIONS, OpEmbedding, stems
from peakcast.featurizer.spec import GraphSpec, walk
from peakcast.featurizer.trace import Trace
from peakcast.featurizer.vocabulary import PHASES, ROLES

_TINY: Final = 1e-12

# Counts of (operator, context).
Counts = dict[str, Counter[str]]

# Contexts are smoothed as word2vec does: rare ones would else have the largest mutual information.
_SMOOTHING: Final = 0.75
# Share of an operator's evidence that its name's letters make up. Between 0.1 and 0.5 the neighbours hardly change; at
# 0 the operators of one or two graphs lie at random.
_NAME_SHARE: Final = 0.1
# An input or output is large from this part of the largest on: statistics, biases and scalars are not.
_LARGE: Final = 0.25


def count_contexts(spec: GraphSpec) -> Counts:
    """Count in which surroundings each operator of a spec occurs, over all plans and branches."""
    counts: Counts = defaultdict(Counter)
    for outer in spec.traces.values():
        for trace in walk(outer):
            _count_trace(spec, trace, counts)
    return counts


def _count_trace(spec: GraphSpec, trace: Trace, counts: Counts) -> None:
    names = [spec.ops[op] for op in trace.op.tolist()]
    relatives = {name: list(stems(name))[-1] for name in set(names)}
    # Who wrote a storage last, views aside; before the first write, what it is for.
    writer: list[str | None] = [None] * len(trace.storages)
    sizes_bytes, roles, died = trace.storages.bytes.tolist(), trace.storages.role.tolist(), trace.storages.died.tolist()
    for node, name in enumerate(names):
        reads, writes = set(trace.inputs.row(node).tolist()), set(trace.outputs.row(node).tolist())
        fresh = writes - reads
        is_view = bool(writes) and not fresh and not _writes_in_place(name)
        own = counts[name]
        for storage in reads:
            source = writer[storage]
            if source is None:
                own[f"reads {ROLES[roles[storage]]}"] += 1
            else:
                own[f"after {relatives[source]}"] += 1
                counts[source][f"before {relatives[name]}"] += 1
        for storage in () if is_view else writes:
            writer[storage] = name
            own[f"makes {ROLES[roles[storage]]}"] += 1
        own[f"phase {PHASES[trace.phase[node]]}"] += 1
        own[f"rank {trace.rank[node]}"] += 1
        own[f"dtype {spec.dtypes[trace.dtype[node]]}"] += 1
        own[f"{_few(len(reads))} inputs"] += 1
        own[f"{_few(len(writes))} outputs"] += 1
        own["view" if is_view else "in place" if writes and not fresh else "makes new"] += 1
        if reads and fresh:
            read_bytes, made_bytes = [sizes_bytes[s] for s in reads], [sizes_bytes[s] for s in fresh]
            own[f"output {_beside(max(made_bytes), max(read_bytes))}"] += 1
            own[f"{_few(_large(read_bytes))} large inputs"] += 1
            own[f"{_few(_large(made_bytes))} large of {_few(len(made_bytes))} outputs"] += 1
            own["reads only " + " and ".join(sorted({ROLES[roles[s]] for s in reads}))] += 1
            own["an input dies" if any(died[s] == node for s in reads) else "no input dies"] += 1


def _writes_in_place(name: str) -> bool:
    packet, _, overload = name.rpartition(".")
    return packet.endswith("_") or overload.startswith("out") or "foreach" in packet or "fused" in packet


def _few(count: int) -> str:
    return str(count) if count <= 4 else "many"


def _large(sizes_bytes: list[int]) -> int:
    return sum(size >= _LARGE * max(sizes_bytes) for size in sizes_bytes)


def _beside(size_bytes: int, largest_bytes: int) -> str:
    """Name the ratio of two sizes: equal, or the nearest power of two within a factor of 64."""
    if size_bytes == largest_bytes:
        return "equal"
    power = round(math.log2((size_bytes + 1) / (largest_bytes + 1)))
    return f"times 2^{max(-6, min(6, power))}"


def _trigrams(name: str) -> set[str]:
    _, _, rest = name.partition(".")
    packet = f"<{rest.rpartition('.')[0].strip('_') or name}>"
    return {f"named {packet[i : i + 3]}" for i in range(len(packet) - 2)} | {
        f"named {word}" for word in packet[1:-1].split("_")
    }


def learn(specs: Iterable[GraphSpec]) -> OpEmbedding:
    """Return an embedding learned from graphs. Raises ValueError when they hold fewer than eight operators."""
    weights: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    ids = []
    for spec in specs:
        ids.append(spec.graph_id)
        for name, contexts in count_contexts(spec).items():
            for context, count in contexts.items():
                # A graph of 40 equal blocks says about as much as one of 4.
                weights[name][context] += float(np.log1p(count))
    ops = sorted(weights)
    for name in ops:
        trigrams = _trigrams(name)
        share = _NAME_SHARE * sum(weights[name].values()) / len(trigrams)
        for trigram in trigrams:
            weights[name][trigram] += share
    if len(ops) < DIMENSIONS:
        raise ValueError(f"{len(ids)} graphs hold {len(ops)} operators; at least {DIMENSIONS} are needed")
    names = sorted({context for row in weights.values() for context in row})
    column = {context: index for index, context in enumerate(names)}
    count_UC = np.zeros((len(ops), len(names)))
    for row, name in enumerate(ops):
        for context, weight in weights[name].items():
            count_UC[row, column[context]] = weight
    digest = hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()
    return OpEmbedding(tuple(ops), _embed(count_UC), {"graphs": len(ids), "graph_ids_sha256": digest})


def _embed(count_UC: NDArray[np.float64]) -> NDArray[np.float32]:
    context_C = count_UC.sum(axis=0) ** _SMOOTHING
    expected_UC = np.outer(count_UC.sum(axis=1), context_C / context_C.sum())
    with np.errstate(divide="ignore"):
        ppmi_UC = np.maximum(0.0, np.log(count_UC / expected_UC))
    # Rows of one length: a rare operator has few contexts and large information in each, and would rule otherwise.
    ppmi_UC /= np.maximum(np.linalg.norm(ppmi_UC, axis=1, keepdims=True), _TINY)
    left_UR, singular_R, _ = np.linalg.svd(ppmi_UC, full_matrices=False)
    vectors_UD = left_UR[:, :DIMENSIONS] * singular_R[:DIMENSIONS]
    # A singular vector's sign is free: let its largest entry be positive.
    largest_D = np.abs(vectors_UD).argmax(axis=0)
    vectors_UD *= np.sign(vectors_UD[largest_D, np.arange(DIMENSIONS)])
    norm_U1 = np.linalg.norm(vectors_UD, axis=1, keepdims=True)
    unit_UD: NDArray[np.float64] = vectors_UD / np.maximum(norm_U1, _TINY)
    return unit_UD.astype(np.float32)


def read_graphs(corpus: Path) -> Iterator[GraphSpec]:
    """Yield the specs of `graphs/*.json.xz` under a corpus, in the order of their file names."""
    for path in sorted((corpus / "graphs").glob("*.json.xz")):
        yield GraphSpec.from_json(lzma.decompress(path.read_bytes()))


def main(
    corpus: Annotated[Path, typer.Argument(help="Folder of the corpus, with graphs/*.json.xz.")],
    output: Annotated[Path, typer.Argument(help="The file to write, e.g. featurizer/op_embedding.json.")],
) -> None:
    """Learn the operators' vectors from the graphs of a corpus."""
    embedding = learn(read_graphs(corpus))
    output.write_bytes(embedding.to_json())
    typer.echo(f"{len(embedding.ops)} operators from {embedding.learned_from['graphs']} graphs in {output}")


if __name__ == "__main__":
    typer.run(main)
