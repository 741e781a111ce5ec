"""What one app holds: settings, metrics, admission, and the answers once the model is loaded and warm."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import anyio
import orjson
import structlog

from peakcast.models import compiled
from peakcast.models.predictor import Predictor
from peakcast.service.admission import Admission
from peakcast.service.answers import Answers
from peakcast.service.body import PendingBytes
from peakcast.service.errors import ErrorCode, ServiceError
from peakcast.service.examples import example_request
from peakcast.service.graphs import GraphCache
from peakcast.service.kept_graphs import Graphs
from peakcast.service.metrics import Metrics
from peakcast.service.peaks import Peaks
from peakcast.service.settings import Settings
from peakcast.service.store.link import StoreLink

log = structlog.get_logger("peakcast.service")

# A peak waits for the disk, not for a core; and reports that wait for a slow store must leave room to predict.
_PEAK_WORKERS = 4
_PEAKS_WAITING = 16


class State:
    """The parts that requests share. `load` makes it ready; until then `/predict` answers `not_ready`."""

    def __init__(self, settings: Settings, *, on_load_failure: Callable[[], None] | None = None) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.pending_bytes = PendingBytes(int(settings.max_pending_bytes), settings.retry_after_seconds)
        self.workers = anyio.CapacityLimiter(settings.workers)
        self.peak_workers = anyio.CapacityLimiter(_PEAK_WORKERS)
        again = settings.retry_after_seconds
        self.predictions_admitted = Admission(
            settings.max_pending, retry_after_seconds=again, gauge=self.metrics.pending
        )
        self.peaks_admitted = Admission(_PEAKS_WAITING, retry_after_seconds=again, gauge=self.metrics.pending_peaks)
        self.tokens = settings.accepted_tokens()
        self.link = StoreLink(settings.resolved_store_url(), timeout_s=settings.store_timeout_seconds)
        self.metrics.store_up.set_function(lambda: self.link.status == "ready")
        self.graphs = Graphs(GraphCache(int(settings.graph_cache_bytes)), self.link, settings.graph_limits())
        self.peaks = Peaks(settings, self.metrics, self.link, self.graphs, self._predictor)
        self.model_version: str | None = None
        self.example_reply: dict[str, object] | None = None
        self._answers: Answers | None = None
        self._load_error: str | None = None
        self._on_load_failure = on_load_failure

    def load(self) -> None:
        """Verify and load the artefact, and predict once. Blocks; failures are logged and kept for `/health/ready`."""
        try:
            predictor = Predictor.load(self.settings.model_path)
            answers = Answers(predictor, self.settings, self.metrics, self.graphs)
            # The reply doubles as the example of the OpenAPI document: it is what this model really says.
            reply = orjson.loads(answers.compute(answers.parse(orjson.dumps(example_request()))))
        except Exception as error:  # whatever is wrong with an artefact, the service is not ready
            self._load_error = f"{type(error).__name__}: {error}"
            log.exception("model_not_loaded", error=self._load_error)
            if self._on_load_failure is not None:
                self._on_load_failure()
            return
        self.example_reply = reply
        self.model_version = reply["model_version"]
        self._answers = answers
        self.metrics.ready.set(1)
        self.metrics.model.labels(self.model_version).set(1)
        log.info("ready", model_version=self.model_version, warm_up_ms=round(reply["elapsed_ms"], 1))
        self._speed_up()

    def _speed_up(self) -> None:
        """Do what makes later answers faster, while the first ones are given already."""
        started = time.perf_counter()
        try:
            is_compiled = compiled.load()
        except Exception:  # answers go on in Python
            log.exception("not_compiled")
            is_compiled = False
        # What is there now stays: the collector need not walk through it again with every few requests.
        gc.collect()
        gc.freeze()
        log.info("warm", is_compiled=is_compiled, elapsed_s=round(time.perf_counter() - started, 1))

    @property
    def answers(self) -> Answers:
        """Return the loaded answers.

        Raises:
            ServiceError: NOT_READY while the model loads, or if it could not be loaded.
        """
        if self._answers is None:
            why = "the model is still loading" if self._load_error is None else f"no usable model ({self._load_error})"
            raise ServiceError(
                ErrorCode.NOT_READY,
                f"not ready: {why}",
                headers={"Retry-After": str(self.settings.retry_after_seconds)},
            )
        return self._answers

    def _predictor(self) -> Predictor | None:
        return None if self._answers is None else self._answers.predictor
