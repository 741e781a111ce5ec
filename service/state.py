"""What one app holds: settings, metrics, admission, and the answers once the model is loaded and warm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio
import orjson
import structlog

from peakcast.models.predictor import Predictor
from peakcast.service.answers import Answers
from peakcast.service.body import PendingBytes
from peakcast.service.errors import ErrorCode, ServiceError
from peakcast.service.examples import example_request
from peakcast.service.metrics import Metrics
from peakcast.service.settings import Settings

log = structlog.get_logger("peakcast.service")


class State:
    """The parts that requests share. `load` makes it ready; until then `/predict` answers `not_ready`."""

    def __init__(self, settings: Settings, *, on_load_failure: Callable[[], None] | None = None) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.pending_bytes = PendingBytes(int(settings.max_pending_bytes), settings.retry_after_seconds)
        self.workers = anyio.CapacityLimiter(settings.workers)
        self.model_version: str | None = None
        self.example_reply: dict[str, object] | None = None
        self._answers: Answers | None = None
        self._pending = 0
        self._load_error: str | None = None
        self._on_load_failure = on_load_failure

    def load(self) -> None:
        """Verify and load the artefact, and predict once. Blocks; failures are logged and kept for `/health/ready`."""
        try:
            predictor = Predictor.load(self.settings.model_path)
            answers = Answers(predictor, self.settings, self.metrics)
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

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Hold one of the places for requests under way.

        Raises:
            ServiceError: BUSY if all are taken.
        """
        if self._pending >= self.settings.max_pending:
            raise ServiceError(
                ErrorCode.BUSY,
                f"{self._pending} requests are under way, {self.settings.max_pending} are allowed: "
                f"ask again in {self.settings.retry_after_seconds} s",
                headers={"Retry-After": str(self.settings.retry_after_seconds)},
            )
        self._pending += 1
        self.metrics.pending.inc()
        try:
            yield
        finally:
            self._pending -= 1
            self.metrics.pending.dec()
            self.metrics.pending_bytes.set(self.pending_bytes.held_bytes)
