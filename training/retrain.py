"""Offline retraining from end to end: read, leave the frozen split out, fit, write, and ask the gate."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from peakcast.models.artefact import ArtefactError, Manifest
from peakcast.models.predictor import Forecast, Predictor
from peakcast.models.registry import Registry
from peakcast.training.dataset import Dataset, load_datasets
from peakcast.training.fit import finished_steps, fit_pair, save_pair
from peakcast.training.fit_settings import read_settings
from peakcast.training.frozen_split import frozen_architectures
from peakcast.training.gate import JUDGED_RISK, Verdict, judge


class Told(Protocol):
    """Hears what begins, and what is to stay on the screen."""

    def __call__(self, name: str) -> None:
        """Hear that a stage begins."""

    def note(self, text: str) -> None:
        """Hear something that stays."""


@dataclass(frozen=True, slots=True)
class Retrained:
    """A new version, and what the gate says of it."""

    manifest: Manifest
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class InUse:
    """The version in use and what it answers for the frozen split; no forecast where there is none that loads."""

    version: str | None
    forecast: Forecast | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Retraining:
    """What to train from, and where to write. `settings`: a file of hyper-parameters; None: the usual ones."""

    corpora: tuple[Path, ...]
    registry: Path
    seed: int = 0
    jobs: int = 2
    cache: Path | None = None
    settings: Path | None = None

    def run(self, told: Told, *, embedding: bool = False) -> Retrained:
        """Fit a new version and write it into the registry. The version in use stays in use.

        Raises:
            CorpusError: if a corpus is missing or damaged, or holds too few architectures.
        """
        settings = read_settings(self.settings, seed=self.seed)
        fitted, frozen = self._read(told)
        before = self._in_use(frozen)
        if embedding:
            told("learning the operators' vectors")
            told.note(learn_embedding(self.corpora))
            fitted, frozen = self._read(told)
        what = f"fitting {_counted(fitted)}"
        predictor = fit_pair(
            fitted, settings, stage=lambda part: told(f"{what}: {part}"), jobs=self.jobs, cache=self.cache
        )
        manifest = save_pair(
            predictor, fitted, settings, self.registry, parent=before.version, held_out=frozen_architectures()
        )
        finished_steps(fitted, settings, self.cache).forget()
        told(f"gate: {_counted(frozen)} of the frozen split")
        return Retrained(manifest, self._judge(frozen, before, predictor))

    def _read(self, told: Told) -> tuple[Dataset, Dataset]:
        """Return what is fitted on and the frozen split."""
        told("simulating the corpus")
        return split_frozen(load_datasets(self.corpora, cache=self.cache, jobs=self.jobs, note=told.note))

    def _in_use(self, frozen: Dataset) -> InUse:
        known = Registry(self.registry)
        if not known.history():
            return InUse(None, None)
        version = known.history()[0]
        try:
            folder = known.current()
            predictor = Predictor.load(folder)
        except ArtefactError as error:
            return InUse(version, None, f"; {version} does not load, so the simulation stands in for it: {error}")
        if not len(frozen):
            return InUse(version, None)
        held_out = next((m.lineage.held_out for m in known.versions() if m.version == version and m.lineage), [])
        seen = sorted(set(frozen.architectures) - set(held_out))
        note = f"; {version} was fitted on {len(seen)} of these architectures, which favours it" if seen else ""
        return InUse(version, predictor.forecast(frozen.examples, JUDGED_RISK), note)

    def _judge(self, frozen: Dataset, before: InUse, predictor: Predictor) -> Verdict:
        if not len(frozen):
            return Verdict(before.version or "nothing", ())
        after = predictor.forecast(frozen.examples, JUDGED_RISK)
        verdict = judge(frozen, before.forecast, after, version=str(before.version), seed=self.seed)
        return replace(verdict, note=before.note)


def split_frozen(data: Dataset) -> tuple[Dataset, Dataset]:
    """Return the records that may be fitted on, and the measured ones of the frozen architectures.

    Those of models spread over ranks are in neither: the simulation alone is closer to them than what is learned of
    single cards, and a gate must not be passed by them.
    """
    frozen_P = is_frozen_P(data)
    return data.where(~frozen_P & data.is_alone_P), data.where(frozen_P & data.is_measured_P & data.is_alone_P)


def is_frozen_P(data: Dataset) -> NDArray[np.bool_]:
    """Mark the records of frozen architectures [P]."""
    return np.array([name in frozen_architectures() for name in data.architectures], dtype=bool)


def learn_embedding(corpora: tuple[Path, ...]) -> str:
    """Learn the operators' vectors from the graphs of the corpora, frozen architectures left out, and write them.

    Into the file that the featurizer reads: versions fitted before no longer load. Returns what was done, in words.
    """
    from joblib.externals.loky import get_reusable_executor

    from peakcast.featurizer.op_embedding import SHIPPED, shipped_embedding
    from peakcast.models import lstm
    from peakcast.training import corpus as store
    from peakcast.training.embed import learn

    architectures: dict[str, str] = {}
    places: dict[str, Path] = {}
    for folder in corpora:
        for record in store.read(folder):
            graph_id = record.get("graph_id")
            is_alone = int(record["run"].get("world_size", 1)) == 1
            # A stranger's graphs have no say in what operators mean; what is not fitted on has none either.
            may_speak = is_alone and record.get("source") != "reported"
            if graph_id and may_speak and record["architecture"] not in frozen_architectures():
                architectures.setdefault(str(graph_id), str(record["architecture"]))
                places.setdefault(str(graph_id), folder)
    there = [graph_id for graph_id in sorted(places) if store.graph_path(places[graph_id], graph_id).is_file()]
    learned = learn((store.read_graph(places[graph_id], graph_id) for graph_id in there), architectures)
    SHIPPED.write_bytes(learned.to_json())
    # This process and its workers have read the old ones.
    shipped_embedding.cache_clear()
    lstm.embedding_sha256.cache_clear()
    get_reusable_executor().shutdown(wait=True)
    return f"{len(learned.ops)} operators' vectors from {len(there)} graphs in {SHIPPED}"


def _counted(data: Dataset) -> str:
    origins = Counter(data.origins)
    kinds = ", ".join(f"{count} {origin}" for origin, count in sorted(origins.items()))
    return f"{len(data)} records ({kinds}) of {len(set(data.architectures))} architectures"
