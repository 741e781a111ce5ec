"""The corpus as arrays: examples, what was measured of them, and the architecture each belongs to.

Records come from three origins: `measured` (the seed's among them), `reported` by somebody's training loop, and
`replayed`, computed without a card. Only measured ones count in any accuracy, choice or bound.

Shapes: P records, Q quantities in the order of QUANTITIES.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import joblib
import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import ValidationError

from peakcast.featurizer.prior import simulate
from peakcast.featurizer.run import DeviceSpec, RunSpec
from peakcast.featurizer.vocabulary import QUANTITIES
from peakcast.models.decision import plan_kind
from peakcast.models.example import Example, Floats, make_example
from peakcast.training.corpus import RECORDS, REPLAYED_RECORDS, CorpusError, Record, graph_path, read_graph
from peakcast.training.corpus import read as corpus_records
from peakcast.training.finished import CACHE
from peakcast.training.influence import MEASURED, REPLAYED, REPORTED, weights

_ORIGINS = {"measured": MEASURED, "seed": MEASURED, "reported": REPORTED, "replayed": REPLAYED}


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Records with a measured peak, row by row."""

    keys: Sequence[str]
    architectures: Sequence[str]
    examples: Sequence[Example]
    measured_PQ: Floats  # NaN where a quantity was not measured
    weights_bytes_P: Floats
    step_seconds_P: Floats
    workloads: Sequence[str]  # the same for the plans of one workload
    origins: Sequence[str]  # measured, reported or replayed
    reporters: Sequence[str]  # who reported it; "" for the other origins
    torch_versions: Sequence[str]  # of the labels, major.minor; the graphs may be traced with another
    data_sha256: str
    created: str  # date of the newest record

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def plans(self) -> list[str]:
        """Return the plan of each record."""
        return [example.plan for example in self.examples]

    @property
    def priors(self) -> Floats:
        """Return the simulated bytes."""
        return np.stack([example.prior_bytes for example in self.examples])

    @property
    def weights(self) -> Floats:
        """Return how much each record may say: architectures count alike, and no reporter rules."""
        return weights(self.architectures, self.origins, self.reporters)

    @property
    def is_measured_P(self) -> NDArray[np.bool_]:
        """Mark the records that were measured here: those that count in accuracy, choices and bounds."""
        return np.array([origin == MEASURED for origin in self.origins], dtype=bool)

    @property
    def is_alone_P(self) -> NDArray[np.bool_]:
        """Mark the records of one process on one card: those of ranks are judged by themselves, and not fitted on."""
        return np.array([example.facts.world_size == 1 for example in self.examples], dtype=bool)

    @property
    def is_replayed_P(self) -> NDArray[np.bool_]:
        """Mark the records whose peaks were computed."""
        return np.array([origin == REPLAYED for origin in self.origins], dtype=bool)

    @property
    def fingerprint(self) -> str:
        """Return a hash of all that a fit reads: the same arrays, the same fit."""
        digest = hashlib.sha256(self.data_sha256.encode())
        for row, example in enumerate(self.examples):
            facts = replace(example.facts, op_share={}, dtypes=frozenset())
            named = (
                self.keys[row],
                self.architectures[row],
                self.origins[row],
                self.reporters[row],
                example.plan,
                facts,
            )
            digest.update(repr((*named, sorted(example.facts.op_share.items()), sorted(example.facts.dtypes))).encode())
            digest.update(repr((sorted(example.summary.items()), example.scratch_bytes, example.peak_step)).encode())
            for array in (example.prior_bytes, example.floor_bytes, example.steps_TC, example.watermark_T):
                digest.update(np.ascontiguousarray(array).tobytes())
            digest.update(example.context_K.tobytes())
        for array in (self.measured_PQ, self.weights_bytes_P, self.step_seconds_P):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> Self:
        """Return the dataset of some rows."""
        return replace(
            self,
            keys=[self.keys[row] for row in rows],
            architectures=[self.architectures[row] for row in rows],
            examples=[self.examples[row] for row in rows],
            measured_PQ=self.measured_PQ[rows],
            weights_bytes_P=self.weights_bytes_P[rows],
            step_seconds_P=self.step_seconds_P[rows],
            workloads=[self.workloads[row] for row in rows],
            origins=[self.origins[row] for row in rows],
            reporters=[self.reporters[row] for row in rows],
        )

    def where(self, chosen_P: Sequence[bool] | NDArray[np.bool_]) -> Self:
        """Return the dataset of the records that are marked."""
        return self.take(np.flatnonzero(np.asarray(chosen_P)))

    def folds(self, count: int, seed: int) -> NDArray[np.int64]:
        """Return the fold of each record, [P]: every architecture in one fold, folds of about equal measured size.

        Raises:
            CorpusError: if there are fewer measured architectures than folds.
        """
        sizes = dict.fromkeys(sorted(set(self.architectures)), 0)
        for name, origin in zip(self.architectures, self.origins, strict=True):
            sizes[name] += origin == MEASURED
        measured = sum(size > 0 for size in sizes.values())
        if measured < count:
            raise CorpusError(f"{count} folds need as many architectures; there are {measured}")
        names = list(sizes)
        shuffled = np.random.default_rng(seed).permutation(len(names))
        filled = [0] * count
        fold_of: dict[str, int] = {}
        # Largest first into the emptiest fold; the seed settles ties.
        for index in sorted(shuffled, key=lambda i: -sizes[names[i]]):
            # What nobody measured fills no fold: it is dealt out.
            fold = filled.index(min(filled)) if sizes[names[index]] else int(index) % count
            fold_of[names[index]] = fold
            filled[fold] += sizes[names[index]]
        return np.array([fold_of[name] for name in self.architectures])

    def speeds(self) -> dict[str, float]:
        """Return each plan kind's median speed relative to eager on the same workloads, three digits."""
        eager = {
            workload: seconds
            for workload, seconds, plan in zip(self.workloads, self.step_seconds_P, self.plans, strict=True)
            if plan == "eager" and seconds > 0
        }
        ratios: dict[str, list[float]] = defaultdict(list)
        for workload, seconds, plan in zip(self.workloads, self.step_seconds_P, self.plans, strict=True):
            if workload in eager and seconds > 0:
                ratios[plan_kind(plan)].append(eager[workload] / seconds)
        return {kind: round(float(np.median(values)), 3) for kind, values in sorted(ratios.items())}


def join(parts: Sequence[Dataset]) -> Dataset:
    """Join datasets into one, in the order of the keys; of two records with a key the earlier part's stays.

    A reported graph with the operators of a measured architecture joins that architecture: what is held out must not
    come in by another name.
    """
    if len(parts) == 1:
        return parts[0]
    chosen: dict[str, tuple[int, int]] = {}
    for place, part in enumerate(parts):
        for row, key in enumerate(part.keys):
            chosen.setdefault(key, (place, row))
    order = [chosen[key] for key in sorted(chosen)]

    def column(name: str) -> list[Any]:
        return [getattr(parts[place], name)[row] for place, row in order]

    examples, origins = column("examples"), column("origins")
    names = column("architectures")
    known = {
        _signature(example): name
        for example, name, origin in zip(examples, names, origins, strict=True)
        if origin == MEASURED
    }
    return Dataset(
        keys=sorted(chosen),
        architectures=[
            known.get(_signature(example), name) if origin == REPORTED else name
            for example, name, origin in zip(examples, names, origins, strict=True)
        ],
        examples=examples,
        measured_PQ=np.array(column("measured_PQ")),
        weights_bytes_P=np.array(column("weights_bytes_P")),
        step_seconds_P=np.array(column("step_seconds_P")),
        workloads=column("workloads"),
        origins=origins,
        reporters=column("reporters"),
        torch_versions=sorted({version for part in parts for version in part.torch_versions}),
        data_sha256=hashlib.sha256("\n".join(part.data_sha256 for part in parts).encode()).hexdigest(),
        created=max(part.created for part in parts),
    )


def _signature(example: Example) -> tuple[str, ...]:
    """Return the operators of the plan: the same for every depth, width and batch of one implementing class."""
    return (plan_kind(example.plan), example.task, *sorted(example.facts.op_share))


def load_datasets(
    corpora: Sequence[Path],
    *,
    cache: Path | None = None,
    jobs: int = 2,
    note: Callable[[str], None] = lambda _: None,
) -> Dataset:
    """Read and join corpora and exports of the store, the ones that matter most first. As `load_dataset`."""
    return join([load_dataset(corpus, cache=cache, jobs=jobs, note=note) for corpus in corpora])


def load_dataset(
    corpus: Path, *, cache: Path | None = None, jobs: int = 2, note: Callable[[str], None] = lambda _: None
) -> Dataset:
    """Read the corpus and simulate every record, graph by graph, over `jobs` processes.

    What was simulated is kept in `cache` (default `.cache/peakcast`), named by the hash of the corpus, its graphs and
    of the code that made it: changing either makes it anew. `note` is told how many records are left out for want of a
    graph.

    Raises:
        CorpusError: if there is no corpus, a file of it is damaged, or it has no usable record.
    """
    if not (corpus / RECORDS).is_file():
        raise CorpusError(f"no corpus at {corpus}: {RECORDS} is not there")
    by_graph = _by_graph(corpus, note)
    records = [record for members in by_graph.values() for record in members]
    if not records:
        raise CorpusError(f"no usable record in {corpus}: they are out of memory, failed, or have no graph")
    data_sha256 = corpus_sha256(records)
    made_by = hashlib.sha256((_graphs_sha256(corpus, by_graph) + _code_sha256()).encode()).hexdigest()
    path = (cache or CACHE) / f"dataset-{data_sha256[:16]}-{made_by[:16]}.joblib"
    if path.exists():
        # Local and named by the hash of what made it; nothing that came over the network is ever unpickled.
        cached: Dataset = joblib.load(path)
        return cached
    parts = joblib.Parallel(n_jobs=jobs)(
        joblib.delayed(examples_of_graph)(corpus, graph_id, members) for graph_id, members in sorted(by_graph.items())
    )
    dataset = assemble([pair for part in parts for pair in part], data_sha256)
    path.parent.mkdir(parents=True, exist_ok=True)
    joblib.dump(dataset, path, compress=3)
    return dataset


def _by_graph(corpus: Path, note: Callable[[str], None]) -> dict[str, list[Record]]:
    """Return the usable records of each graph, and tell `note` how many have none."""
    records = [*corpus_records(corpus), *corpus_records(corpus, REPLAYED_RECORDS)]
    by_graph: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if is_usable(record):
            by_graph[str(record["graph_id"])].append(record)
    nameless = sum(not record.get("graph_id") for record in records)
    if nameless:
        note(f"{nameless} of {len(records)} records name no graph: left out")
    gone = [graph_id for graph_id in sorted(by_graph) if not graph_path(corpus, graph_id).is_file()]
    if gone:
        count = sum(len(by_graph.pop(graph_id)) for graph_id in gone)
        files = f"{len(gone)} missing files, the first {graph_path(corpus, gone[0])}"
        note(f"{count} of {len(records)} records name a graph that is not there: left out ({files})")
    return by_graph


def _graphs_sha256(corpus: Path, graph_ids: Iterable[str]) -> str:
    """Return the hash of the graphs' files: one that was damaged is read, and refused, whatever the cache holds."""
    digest = hashlib.sha256()
    for graph_id in sorted(graph_ids):
        digest.update(hashlib.sha256(graph_path(corpus, graph_id).read_bytes()).digest())
    return digest.hexdigest()


def origin_of(record: Record) -> str | None:
    """Return the origin of a record's peaks; None where its source is none that is known."""
    return _ORIGINS.get(str(record.get("source")))


def is_usable(record: Record) -> bool:
    """Tell whether a record is a label: of a known source, it ran to the end, and its graph was captured."""
    ran = origin_of(record) is not None and not record.get("out_of_memory")
    return ran and bool(record.get("measured")) and bool(record.get("graph_id"))


def examples_of_graph(corpus: Path, graph_id: str, records: Iterable[Record]) -> list[tuple[Record, Example, int]]:
    """Simulate the records of one graph. Returns each with its example and its weights' bytes.

    Raises:
        CorpusError: if the graph's file is damaged, or a record's run or device is not one.
    """
    spec = read_graph(corpus, graph_id)
    made = []
    for record in records:
        try:
            run, device = RunSpec.model_validate(record["run"]), DeviceSpec.model_validate(record["device"])
        except (KeyError, ValidationError) as error:
            raise CorpusError(f"record {record['key']} of {corpus / RECORDS}: {error}") from error
        prior = simulate(spec, record["plan"], run, device)
        made.append((record, make_example(spec, record["plan"], prior, run, device), prior.parameters_bytes))
    return made


def assemble(rows: Sequence[tuple[Record, Example, int]], data_sha256: str) -> Dataset:
    """Build the dataset of simulated records, ordered by key."""
    rows = sorted(rows, key=lambda row: row[0]["key"])
    records = [record for record, _, _ in rows]
    origins = [str(origin_of(record)) for record in records]
    return Dataset(
        keys=[record["key"] for record in records],
        architectures=[_architecture(record, example) for record, example, _ in rows],
        examples=[example for _, example, _ in rows],
        measured_PQ=np.array([measured_bytes(record) for record in records]),
        weights_bytes_P=np.array([weights for _, _, weights in rows], dtype=float),
        step_seconds_P=np.array([record.get("step_seconds") or np.nan for record in records], dtype=float),
        workloads=[_workload(record) for record in records],
        origins=origins,
        reporters=[
            str(record.get("reporter") or "anonymous") if origin == REPORTED else ""
            for record, origin in zip(records, origins, strict=True)
        ],
        torch_versions=sorted({_minor(record.get("versions", {}).get("torch", "")) for record in records} - {""}),
        data_sha256=data_sha256,
        created=max(str(record.get("measured_at", "")) for record in records),
    )


def _architecture(record: Record, example: Example) -> str:
    """Return the record's architecture; where a report names none, its operators tell."""
    if origin_of(record) != REPORTED or record.get("architecture"):
        return str(record["architecture"])
    return f"ops-{hashlib.sha256(' '.join(_signature(example)[2:]).encode()).hexdigest()[:12]}"


def _workload(record: Record) -> str:
    """Return what is the same for the plans of one workload."""
    case = record.get("case") or {"graph_id": record["graph_id"]}
    return orjson.dumps(case, option=orjson.OPT_SORT_KEYS).decode()


def _minor(version: str) -> str:
    return ".".join(version.split("+", maxsplit=1)[0].split(".")[:2])


def measured_bytes(record: Record) -> list[float]:
    """Return the Q labels of a record, NaN where there is none.

    A warm compile cache leaves out what compiling takes: cold and warm first steps never mix, and the cold ones count.
    So does a replay, which compiles nothing on a card: it tells what a steady step allocates, and not what the blocks
    that a first one took come to.
    """
    warm = record.get("cache") == "warm" and not record["plan"].startswith("eager")
    replayed = origin_of(record) == REPLAYED
    labels = []
    for quantity in QUANTITIES:
        value = record["measured"].get(f"{quantity}_bytes")
        # Nothing takes no memory: a zero is no label, and would rule every ratio.
        known = value is not None and value > 0 and not (warm and quantity.startswith("first"))
        known = known and (quantity == "steady_allocated" or not replayed)
        labels.append(float(value) if known else float("nan"))
    return labels


def corpus_sha256(records: Iterable[Record]) -> str:
    """Return the hash of the records, whatever their order. Graphs are named by their own hash in them."""
    lines = sorted(orjson.dumps(dict(record), option=orjson.OPT_SORT_KEYS) for record in records)
    return hashlib.sha256(b"\n".join(lines)).hexdigest()


def _code_sha256() -> str:
    """Return the hash of the code and data that turn a graph into an example."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted([*root.glob("featurizer/*.*"), *root.glob("models/*.py"), Path(__file__)]):
        if path.is_file():
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()
