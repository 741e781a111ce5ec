"""Try to poison the predictor through the peaks that training loops report, and see it repelled.

A stranger floods the store with peaks of half the truth: a predictor that learned from them would call steps safe that
run out of memory. Trained on once as what they are, reports of one source, and once as if they had got past that and
lay in the corpus itself.

    python examples/attacks/poison.py --corpus training/corpus
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from peakcast.models.predictor import Predictor
from peakcast.models.registry import PRETRAINED, Registry
from peakcast.training import corpus as store
from peakcast.training.dataset import load_datasets
from peakcast.training.finished import CACHE
from peakcast.training.frozen_split import frozen_architectures
from peakcast.training.influence import REPORTED
from peakcast.training.retrain import Retraining, split_frozen
from peakcast.training.stages import Stages


@dataclass(frozen=True, slots=True)
class Attack:
    """How the peaks are falsified: each record `copies` times, its peaks times `scale`."""

    scale: float = 0.5
    copies: int = 3
    records: int = 200


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one training: the mean error on the frozen split, and what the gate said."""

    name: str
    poisoned_records: int
    poisoned_weight_share: float
    frozen_error_percent: float
    promoted: bool
    reason: str


def poisoned(corpus: Path, attack: Attack) -> list[dict[str, Any]]:
    """Return falsified copies of the corpus's records; of frozen architectures there are none, as in an honest one."""
    usable = [
        record
        for record in store.read(corpus)
        if record.get("graph_id")
        and not record.get("out_of_memory")
        and record["architecture"] not in frozen_architectures()
    ]
    step = max(1, len(usable) // attack.records)
    return [
        {
            **record,
            "key": f"{record['key']}|copy {copy}",
            "measured": {name: round(value * attack.scale) for name, value in record["measured"].items()},
        }
        for record in usable[::step]
        for copy in range(attack.copies)
    ]


def write(folder: Path, corpus: Path, records: list[dict[str, Any]]) -> Path:
    """Write records as a corpus, with the graphs they name."""
    store.write(folder, records)
    for graph_id in {str(record["graph_id"]) for record in records if record.get("graph_id")}:
        source, target = store.graph_path(corpus, graph_id), store.graph_path(folder, graph_id)
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    return folder


def train(name: str, corpora: list[Path], registry: Path, place: tuple[Path, Path | None, int]) -> Outcome:
    """Train on corpora as `peakcast train --promote` does, and say what came of it."""
    cache, settings, jobs = place
    with Stages() as stages:
        stages(name)
        done = Retraining(tuple(corpora), registry, jobs=jobs, cache=cache, settings=settings).run(stages)
    if done.verdict.passes:
        Registry(registry).promote(done.manifest.version)
    fitted, frozen = split_frozen(load_datasets(corpora, cache=cache, jobs=jobs))
    bad = np.array(["|copy " in key for key in fitted.keys], dtype=bool)
    expected = Predictor.load(registry / done.manifest.version).forecast(frozen.examples, 0.05).expected_PQ
    error = float(np.nanmean(np.abs(expected / frozen.measured_PQ - 1.0)) * 100.0)
    share = float(fitted.weights[bad].sum() / fitted.weights.sum())
    return Outcome(name, int(bad.sum()), share, error, done.verdict.passes, done.verdict.reason)


def run(corpus: Path, attack: Attack, *, cache: Path, settings: Path | None, jobs: int) -> list[Outcome]:
    """Train honestly, then with the poison as reports, then with the poison in the corpus."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        records = poisoned(corpus, attack)
        reports = [{**record, "source": REPORTED, "reporter": "mallory"} for record in records]
        export = write(root / "export", corpus, reports)
        inside = write(root / "inside", corpus, [*store.read(corpus), *records])
        place = (cache, settings, jobs)
        registry = root / "registry"
        return [
            train("honest corpus", [corpus], registry, place),
            train("poison reported by one source", [corpus, export], registry, place),
            train("poison inside the corpus", [inside], registry, place),
        ]


def main(  # noqa: PLR0917 - typer passes options by name
    corpus: Annotated[Path, typer.Option(help="Folder of the corpus.")] = Path("training/corpus"),
    scale: Annotated[float, typer.Option(help="What the false peaks are of the true ones.")] = 0.5,
    copies: Annotated[int, typer.Option(min=1, help="How often each false peak is reported.")] = 3,
    records: Annotated[int, typer.Option(min=1, help="How many records are falsified.")] = 200,
    settings: Annotated[Path | None, typer.Option(help="Hyper-parameters.")] = None,
    jobs: int = 2,
    cache: Path = CACHE,
) -> None:
    """Attack, and print what came of it."""
    outcomes = run(corpus, Attack(scale, copies, records), cache=cache, settings=settings, jobs=jobs)
    before = Registry(PRETRAINED).history()
    for one in outcomes:
        verdict = "promoted" if one.promoted else "NOT promoted"
        print(
            f"{one.name}: {one.poisoned_records} false records with {one.poisoned_weight_share:.1%} of the say; "
            f"error on the frozen split {one.frozen_error_percent:.2f} %; {verdict}\n  gate {one.reason}"
        )
    assert Registry(PRETRAINED).history() == before


if __name__ == "__main__":
    typer.run(main)
