"""The pair joined: simulation, LSTM, trees, calibration and coverage give one answer for every plan and quantity.

Shapes: P plans, Q quantities in the order of QUANTITIES.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import orjson

from peakcast.featurizer.prior import Prior, derivation, simulate
from peakcast.featurizer.run import DeviceSpec, RunSpec
from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.vocabulary import QUANTITIES
from peakcast.models.adaptation import Adaptation
from peakcast.models.artefact import ADAPTATION_FILE, Manifest, read_artefact
from peakcast.models.asked import as_captured, check_trace, contradictions, settled_run
from peakcast.models.blend import Blend
from peakcast.models.bounds import class_names, scale_bytes
from peakcast.models.calibration import Calibration
from peakcast.models.coverage import Coverage
from peakcast.models.example import Example, Floats, make_example
from peakcast.models.gbm import Trees, feature_matrix
from peakcast.models.heads import HEADS, corrections
from peakcast.models.largest_batch import predict_symbolic
from peakcast.models.lstm import SequenceModel
from peakcast.models.prediction import Confidence, Prediction
from peakcast.models.registry import Registry
from peakcast.models.reply import build_prediction

# The simulation's rules were read off the records that bounds are calibrated on, and on architectures held back from
# both its errors are larger (docs/ACCURACY.md, frozen split): half of the risk asked for is kept for that.
RULES_SHARE = 0.5
# An answer outside what was measured is bounded at a quarter of the risk asked for.
EXTRAPOLATION = 0.25

STEADY_ALLOCATED, STEADY_RESERVED, FIRST_ALLOCATED, FIRST_RESERVED, REQUIRED = range(5)


@dataclass(frozen=True, slots=True, eq=False)
class Forecast:
    """Bytes for every plan and quantity, and how far each plan's are to be trusted."""

    expected_PQ: Floats
    upper_PQ: Floats
    confidence: tuple[Confidence, ...]
    doubts: tuple[tuple[str, ...], ...]
    opaque: tuple[tuple[str, ...], ...]  # each plan's operators of unknown memory: no bound holds where there is one
    extended: tuple[bool, ...]  # the bound of `required` rests on the tail assumption, not on the data alone


@dataclass(frozen=True, slots=True, eq=False)
class Predictor:
    """A fitted pair.

    `spread` says how wide bounds may be; `feature_names` are the columns the trees were fitted on; `speeds` are medians
    against eager.
    """

    version: str
    sequence: SequenceModel
    heads: Mapping[str, Trees]
    spread: Trees
    blend: Blend
    calibration: Calibration
    coverage: Coverage
    feature_names: Sequence[str]
    speeds: Mapping[str, float]
    adaptation: Adaptation | None = None

    def predict(
        self,
        spec: GraphSpec,
        *,
        run: RunSpec | None = None,
        device: DeviceSpec | None = None,
        plans: Sequence[str] | None = None,
        risk: float = 0.01,
        symbols: Mapping[str, int] | None = None,
    ) -> Prediction:
        """Predict the peaks of a graph under `plans` (default: those it has traces of) and decide among them.

        What `run` leaves out is as the graph was captured. `symbols` are values for the graph's symbols, by default
        their hints; where `batch` is one, the decision names the largest that fits.

        Raises:
            SymbolError: for a symbol that the graph does not have, or a value outside its range.
            ValueError: if `risk` is not strictly between 0 and 1, no plan is asked for, a trace has no nodes, or the
                run contradicts the traces (RunMismatchError).
        """
        if not symbols and not spec.symbols:
            return self.predict_fixed(spec, run=run, device=device, plans=plans, risk=risk)
        return predict_symbolic(self, spec, symbols or {}, run=run, device=device, plans=plans, risk=risk)

    def predict_fixed(
        self,
        spec: GraphSpec,
        *,
        run: RunSpec | None = None,
        device: DeviceSpec | None = None,
        plans: Sequence[str] | None = None,
        risk: float = 0.01,
    ) -> Prediction:
        """Predict with every symbol at its hint, and look for no largest batch; otherwise as `predict`."""
        started = time.perf_counter()
        run, device = settled_run(spec, run), device or DeviceSpec()
        names = list(dict.fromkeys(plans if plans is not None else spec.traces))
        if not names:
            raise ValueError("no plan to predict: give plans, or a graph with at least one trace")
        priors = _simulated(spec, names, run, device)
        for trace_plan in {prior.trace_plan: None for prior in priors}:
            check_trace(spec, trace_plan, run)
        examples = []
        for name, prior in zip(names, priors, strict=True):
            trace = spec.traces[prior.trace_plan]
            captured_run = as_captured(spec, trace, run)
            example = make_example(spec, name, prior, captured_run, device)
            if captured_run is not run:  # the facts are of the graph, the doubts of the question
                facts = replace(example.facts, contradictions=contradictions(spec, trace, run))
                example = replace(example, facts=facts)
            examples.append(example)
        forecast = self.forecast(examples, risk)
        return build_prediction(
            spec,
            names,
            priors,
            forecast,
            device=device,
            risk=risk,
            model_version=self.version,
            speeds=self.speeds,
            started=started,
        )

    def forecast(self, examples: Sequence[Example], risk: float) -> Forecast:
        """Return expected and upper bytes of examples, at the given risk for each quantity by itself."""
        expected, log2_excess = self.unordered(examples)
        scale = scale_bytes(log2_excess, expected)
        covers = [self.coverage_of(example) for example in examples]
        judged = [cover.judge(example.facts) for cover, example in zip(covers, examples, strict=True)]
        upper = np.empty_like(expected)
        extended = []
        for row, (example, (confidence, _)) in enumerate(zip(examples, judged, strict=True)):
            own_risk = risk * (RULES_SHARE if confidence == "in_distribution" else EXTRAPOLATION)
            for column, quantity in enumerate(QUANTITIES):
                names = class_names(example, quantity)
                bound = self.calibration.quantile(names, own_risk)
                value = bound.value
                if self.adaptation is not None and self.adaptation.is_here(example):
                    value = max(value, self.adaptation.quantile(names, own_risk))
                upper[row, column] = expected[row, column] + value * scale[row, column]
            extended.append(bound.support == "tail")
            if confidence == "unknown":
                upper[row] = np.maximum(upper[row], covers[row].cautious_bytes(example.facts))
        expected = ordered(expected, examples, is_warm=True)
        return Forecast(
            expected_PQ=expected,
            upper_PQ=ordered(np.maximum(upper, expected), examples),
            confidence=tuple(confidence for confidence, _ in judged),
            doubts=tuple(doubts for _, doubts in judged),
            opaque=tuple(cover.opaque(example.facts) for cover, example in zip(covers, examples, strict=True)),
            extended=tuple(extended),
        )

    def coverage_of(self, example: Example) -> Coverage:
        """Return what was measured where the example runs."""
        here = self.adaptation is not None and self.adaptation.is_here(example)
        return self.adaptation.coverage if self.adaptation is not None and here else self.coverage

    def unordered(self, examples: Sequence[Example]) -> tuple[Floats, Floats]:
        """Return expected bytes [P, Q] before physics puts them in order, and what the spread learned of them."""
        guesses = self.sequence.predict(examples)
        features = feature_matrix(examples, guesses, self.feature_names)
        prior = np.stack([example.prior_bytes for example in examples])
        outputs = {name: trees.predict(features).reshape(prior.shape) for name, trees in self.heads.items()}
        scratch = np.array([example.scratch_bytes for example in examples])
        expected = self.blend.apply(examples, corrections(outputs, prior, scratch, guesses))
        # What the rules get wrong is learned; a replayed trace is the compiler's own code, and stands as simulated.
        replayed = np.array([example.facts.replayed for example in examples])
        expected[replayed] = prior[replayed]
        if self.adaptation is not None:
            expected = self.adaptation.apply(examples, prior, expected)
        return expected, self.spread.predict(features).reshape(prior.shape)

    def to_files(self) -> dict[str, bytes]:
        """Return the files of an artefact."""
        about = {
            "feature_names": list(self.feature_names),
            "speeds": dict(self.speeds),
        }
        return {
            **self.sequence.to_files(),
            **{f"{name}.txt": self.heads[name].to_text() for name in HEADS},
            "spread.txt": self.spread.to_text(),
            "blend.json": orjson.dumps(self.blend.to_dict()),
            "calibration.json": orjson.dumps(self.calibration.to_dict()),
            "coverage.json": orjson.dumps(self.coverage.to_dict()),
            "trees.json": orjson.dumps(about),
            **({} if self.adaptation is None else {ADAPTATION_FILE: orjson.dumps(self.adaptation.to_dict())}),
        }

    @classmethod
    def from_files(cls, version: str, files: Mapping[str, bytes]) -> Self:
        """Read what `to_files` gave."""
        about: dict[str, Any] = orjson.loads(files["trees.json"])
        adaptation = files.get(ADAPTATION_FILE)
        return cls(
            version=version,
            sequence=SequenceModel.from_files(files),
            heads={name: Trees.from_text(files[f"{name}.txt"]) for name in HEADS},
            spread=Trees.from_text(files["spread.txt"]),
            blend=Blend.from_dict(orjson.loads(files["blend.json"])),
            calibration=Calibration.from_dict(orjson.loads(files["calibration.json"])),
            coverage=Coverage(**orjson.loads(files["coverage.json"])),
            feature_names=about["feature_names"],
            speeds=about["speeds"],
            adaptation=Adaptation.from_dict(orjson.loads(adaptation)) if adaptation is not None else None,
        )

    @classmethod
    def load(cls, path: Path | str | None = None) -> Predictor:
        """Load an artefact's folder, or the version in use of a registry's directory (default: the shipped ones).

        Every file is checked against the manifest's sha256 before it is read; the same version is loaded only once.

        Raises:
            ArtefactError: if there is none, or it was altered.
        """
        root = Path(path) if path is not None else Registry().root
        folder = root if (root / "manifest.json").exists() else Registry(root).current()
        return _load(folder.resolve(), (folder / "manifest.json").stat().st_mtime_ns)


def _simulated(spec: GraphSpec, plans: Sequence[str], run: RunSpec, device: DeviceSpec) -> list[Prior]:
    """Simulate plans; those derived alike from the same trace take the same, and are simulated once."""
    known: dict[tuple[str, bool], Prior] = {}
    for plan in plans:
        key = derivation(spec, plan)
        if key not in known:
            known[key] = simulate(spec, plan, run, device)
    return [replace(known[derivation(spec, plan)], plan=plan) for plan in plans]


@lru_cache(maxsize=4)
def _load(folder: Path, _modified_ns: int) -> Predictor:
    manifest: Manifest
    manifest, files = read_artefact(folder)
    return Predictor.from_files(manifest.version, files)


def ordered(bytes_PQ: Floats, examples: Sequence[Example], *, is_warm: bool = False) -> Floats:
    """Return the bytes with what must hold put right, by raising what is too low: no bound is broken by another's.

    Nothing below the parameters and optimizer state; reserved at least allocated; required at least the larger of the
    allocated, and what a rank without luck allocates; the larger of the reserved at least what is required, since the
    allocator gives cached blocks back before it fails. What a compiler tries in a cold first step counts for a bound; a
    process with warm caches (`is_warm`), in which `required` is measured, does without.
    """
    result = np.maximum(bytes_PQ, np.stack([example.floor_bytes for example in examples]))
    result[:, STEADY_RESERVED] = np.maximum(result[:, STEADY_RESERVED], result[:, STEADY_ALLOCATED])
    result[:, FIRST_RESERVED] = np.maximum(result[:, FIRST_RESERVED], result[:, FIRST_ALLOCATED])
    unlucky = np.array([example.most_allocated_bytes for example in examples], dtype=float)
    tunes = np.array([is_warm and not example.is_eager for example in examples], dtype=bool)
    first = np.where(tunes, 0.0, result[:, FIRST_ALLOCATED])
    least = np.maximum(np.maximum(result[:, STEADY_ALLOCATED], first), unlucky)
    result[:, REQUIRED] = np.maximum(result[:, REQUIRED], least)
    rows = np.arange(len(result))
    larger = np.where(result[:, FIRST_RESERVED] > result[:, STEADY_RESERVED], FIRST_RESERVED, STEADY_RESERVED)
    result[rows, larger] = np.maximum(result[rows, larger], result[:, REQUIRED])
    return result
