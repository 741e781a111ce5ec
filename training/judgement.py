"""`peakcast evaluate`: accuracy in folds and on the frozen split, that of spread models, ablation, learning curve."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import orjson
from rich.console import RenderableType
from rich.table import Table

from peakcast.models.predictor import Predictor
from peakcast.models.registry import PRETRAINED, Registry
from peakcast.training.ablation import COLUMNS, ablate, ablation_rows
from peakcast.training.accuracy_summary import summary
from peakcast.training.dataset import Dataset, load_datasets
from peakcast.training.evaluate import HeldOut, cross_validate, frozen_forecast
from peakcast.training.finished import Finished
from peakcast.training.fit import finished_steps
from peakcast.training.fit_members import Members
from peakcast.training.fit_settings import FitSettings, read_settings
from peakcast.training.learning_curve import learning_curve
from peakcast.training.report import accuracy_tables, write_report
from peakcast.training.report_plots import plot_curve
from peakcast.training.retrain import Told, is_frozen_P, split_frozen
from peakcast.training.spread_accuracy import spread_only, spread_records, spread_summary
from peakcast.training.spread_report import spread_table, write_spread_report

_JSON: Final = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS
Found = tuple[dict[str, Any], RenderableType]


@dataclass(frozen=True, slots=True)
class Judgement:
    """What to judge on. Each method returns what it found as plain JSON values and as tables."""

    corpora: tuple[Path, ...]
    folds: int = 5
    risk: float = 0.05
    seed: int = 0
    jobs: int = 2
    cache: Path | None = None
    settings: Path | None = None
    registry: Path = PRETRAINED

    def accuracy(self, told: Told, output: Path | None) -> Found:
        """Judge in folds over all but the frozen architectures, then on the frozen ones."""
        data, frozen, settings = self._read(told)
        held, apart, finished = self._held_out(told, data, frozen, settings)
        found = summary(held, apart)
        if output is not None:
            write_report(held, found, output)
        finished.forget()
        return found, accuracy_tables(found)

    def ranks(self, told: Told, output: Path | None) -> Found:
        """Judge models spread over ranks by pairs that never saw their architecture, beside torch's own tracker."""
        records = spread_records(self.corpora)  # first, since the folds take a while
        told("simulating the corpus")
        everything = load_datasets(self.corpora, cache=self.cache, jobs=self.jobs, note=told.note)
        data, _ = split_frozen(everything)
        settings = read_settings(self.settings, seed=self.seed)
        spread_P, frozen_P = ~everything.is_alone_P, is_frozen_P(everything)
        frozen = everything.where(spread_P & frozen_P & everything.is_measured_P)
        asked = everything.where(spread_P & ~frozen_P)
        held, apart, finished = self._held_out(told, data, frozen, settings, asked=asked)
        known = Registry(self.registry)
        shipped = Predictor.load(known.current()) if known.history() else None
        spread = spread_only(records, [held] if apart is None else [held, apart], shipped)
        found = spread_summary(spread, folds=self.folds, shipped=shipped, data_sha256=held.data.data_sha256)
        if output is not None:
            write_spread_report(found, output)
        finished.forget()
        return found, spread_table(found)

    def ablation(self, told: Told, output: Path | None) -> Found:
        """Judge every part of the pair, alone and joined."""
        data, _, settings = self._read(told)
        finished = finished_steps(data, settings, self.cache)
        rows = ablation_rows(ablate(Members(data, settings, finished, self.jobs, told)))
        shown = Table("variant", title=f"held out by architecture, {len(data)} records; median / mean error")
        for column in COLUMNS:
            shown.add_column(column.name, justify="right")
        for name, cells in rows.items():
            texts = [cells.get(column.name) for column in COLUMNS]
            shown.add_row(
                name, *(f"{c['median_percent']:.2f} / {c['mean_percent']:.2f} %" if c else "-" for c in texts)
            )
        return self._write({"records": len(data), "rows": rows}, output, "ablation"), shown

    def curve(self, told: Told, output: Path | None) -> Found:
        """Fit on ever more architectures and judge on the frozen ones."""
        data, frozen, settings = self._read(told)
        points, prior = learning_curve(data, frozen, settings, jobs=self.jobs, cache=self.cache, told=told)
        shown = Table("architectures", "records", "mean", "median", "compiled mean", "eager mean")
        for point in (prior, *points):
            percents = (
                point.pair_mean_percent,
                point.pair_median_percent,
                point.compiled_mean_percent,
                point.eager_mean_percent,
            )
            shown.add_row(str(point.architectures), str(point.records), *(f"{value:.2f} %" for value in percents))
        if output is not None:
            output.mkdir(parents=True, exist_ok=True)
            plot_curve(points, prior, output / "learning_curve.png")
        rows = [asdict(point) for point in (prior, *points)]
        return self._write({"records": len(frozen), "rows": rows}, output, "learning_curve"), shown

    def _held_out(
        self, told: Told, data: Dataset, frozen: Dataset, settings: FitSettings, *, asked: Dataset | None = None
    ) -> tuple[HeldOut, HeldOut | None, Finished]:
        """Predict measured records, of `data` or those `asked`, by pairs that never saw their architecture.

        In folds over `data`, and then the frozen ones.
        """
        others = "" if asked is None else asked.fingerprint
        finished = finished_steps(data, settings, self.cache, f"folds {self.folds} {self.risk} {others}")
        what = f"refitting the pair {self.folds} times on {len(data)} records"
        told(what)
        held = cross_validate(
            data,
            asked=asked,
            folds=self.folds,
            risk=self.risk,
            settings=settings,
            jobs=self.jobs,
            finished=finished,
            told=lambda fold: told(f"{what}: {fold}"),
        )
        apart = None
        if len(frozen):
            told(f"{len(frozen)} records of the frozen split")
            apart = frozen_forecast(
                data,
                frozen,
                risk=self.risk,
                settings=settings,
                jobs=self.jobs,
                cache=self.cache,
                stage=lambda part: told(f"frozen split: {part}"),
            )
        return held, apart, finished

    def _read(self, told: Told) -> tuple[Dataset, Dataset, FitSettings]:
        told("simulating the corpus")
        data = load_datasets(self.corpora, cache=self.cache, jobs=self.jobs, note=told.note)
        return *split_frozen(data), read_settings(self.settings, seed=self.seed)

    def _write(self, found: dict[str, Any], output: Path | None, name: str) -> dict[str, Any]:
        if output is not None:
            output.mkdir(parents=True, exist_ok=True)
            (output / f"{name}.json").write_bytes(orjson.dumps(found, option=_JSON) + b"\n")
        return found
