"""Learn the operators' vectors from captured graphs: operators in like surroundings come out near each other.

Levy, Goldberg, Dagan: "Improving Distributional Similarity with Lessons Learned from Word Embeddings" (TACL 2015):
positive pointwise mutual information between a word and its contexts, cut to a few dimensions by SVD. Here a word is
an operator, and its contexts are counted by `training.contexts`; a little comes from the letters of its name
(Bojanowski et al., "Enriching Word Vectors with Subword Information", TACL 2017), which holds up what is seen in few
graphs. No random numbers: the same graphs give the same file.

Shapes: U operators, C contexts, R = min(U, C) singular values, D = 8 dimensions.
"""

from __future__ import annotations

import hashlib
import lzma
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import typer
from numpy.typing import NDArray

from peakcast.featurizer.op_embedding import DIMENSIONS, OpEmbedding
from peakcast.featurizer.spec import GraphSpec
from peakcast.training import corpus as corpora
from peakcast.training.contexts import Context, Counts, count_contexts

_TINY: Final = 1e-12

# Contexts are smoothed as word2vec does: rare ones would else have the largest mutual information.
_SMOOTHING: Final = 0.75
# Share of an operator's evidence that its name's letters make up. Between 0.1 and 0.5 the neighbours hardly change; at
# 0 the operators of one or two graphs lie at random.
_NAME_SHARE: Final = 0.1
# A matrix product is one by its sizes alone, in whatever surroundings: at 1, `addmm` lies with the casts beside it.
_ASPECT_WEIGHTS: Final = {"contraction": 8.0}


def _trigrams(name: str) -> set[Context]:
    _, _, rest = name.partition(".")
    packet = f"<{rest.rpartition('.')[0].strip('_') or name}>"
    parts = {packet[i : i + 3] for i in range(len(packet) - 2)} | set(packet[1:-1].split("_"))
    return {("named", part) for part in parts}


def learn(specs: Iterable[GraphSpec], architectures: Mapping[str, str] | None = None) -> OpEmbedding:
    """Return an embedding learned from graphs. Raises ValueError when they hold fewer than eight operators.

    `architectures` names the architecture of a graph id; a graph that it lacks counts as one of its own. The graphs of
    an architecture share one say.
    """
    graphs: dict[str, list[Counts]] = defaultdict(list)
    ids = []
    for spec in specs:
        ids.append(spec.graph_id)
        graphs[(architectures or {}).get(spec.graph_id, spec.graph_id)].append(count_contexts(spec))
    weights: dict[str, dict[Context, float]] = defaultdict(lambda: defaultdict(float))
    for members in graphs.values():
        for counts in members:
            for name, contexts in counts.items():
                for context, count in contexts.items():
                    # A graph of 40 equal blocks says about as much as one of 4.
                    weight = _ASPECT_WEIGHTS.get(context[0], 1.0) * float(np.log1p(count))
                    weights[name][context] += weight / len(members)
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
    architectures = {record["graph_id"]: record["architecture"] for record in corpora.read(corpus)}
    embedding = learn(read_graphs(corpus), architectures)
    output.write_bytes(embedding.to_json())
    typer.echo(f"{len(embedding.ops)} operators from {embedding.learned_from['graphs']} graphs in {output}")


if __name__ == "__main__":
    typer.run(main)
