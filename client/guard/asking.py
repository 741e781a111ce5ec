"""Ask for a prediction and believe only an answer that can be one. Nothing here stops or changes a training."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from peakcast.client.ask import predict
from peakcast.client.circuit import Breaker, CircuitOpenError
from peakcast.client.errors import AskError, ServerError, ServerUnreachableError
from peakcast.client.metrics.metrics import CLIENT
from peakcast.featurizer.run import DeviceSpec, RunSpec
from peakcast.featurizer.spec import GraphSpec
from peakcast.models.prediction import Expectation, PlanPrediction, Prediction

T = TypeVar("T")
_QUANTITIES = ("steady_allocated", "steady_reserved", "first_allocated", "first_reserved", "required", "device")
# No card and no host has a pebibyte.
_MOST_BYTES = 1 << 50


class WrongAnswerError(AskError):
    """The answer has the form of a prediction, and cannot be one of this question."""


class TimedOutError(AskError):
    """The answer did not come in time."""


class Asking:
    """Ask a server within a time limit, or the predictor of this process.

    Args:
        server: URL; None: predict in this process.
        token: bearer token; default: the environment's PEAKCAST_TOKEN.
        time_s: the most that a question to the server may take, whatever the server does meanwhile.
        risk: how often the upper bounds may be exceeded.
    """

    def __init__(self, server: str | None, *, token: str | None, time_s: float, risk: float) -> None:
        self._server = server
        self._token = token
        self._time_s = time_s
        self._risk = risk
        self._breaker = Breaker()
        self.counts: Counter[str] = Counter()
        if server is None:
            # LightGBM and the artefact take a second or more, which the first capture leaves time for.
            threading.Thread(target=_load_predictor, daemon=True, name="peakcast-load").start()

    def ask(self, spec: GraphSpec, plans: Sequence[str], device: DeviceSpec, run: RunSpec | None = None) -> Prediction:
        """Return a prediction for all `plans`.

        Raises:
            AskError: if there is no answer in time, or a wrong one, or nobody was asked since earlier asks failed.
        """
        try:
            if self._server is None:
                prediction = predict(spec, plans=plans, device=device, run=run, risk=self._risk)
            else:
                prediction = self._from_server(spec, plans, device, run)
        except Exception as error:
            reason = _failure(error)
            self.counts[reason] += 1
            CLIENT.observe_ask_failure(reason)
            raise error if isinstance(error, AskError) else AskError(f"{type(error).__name__}: {error}") from error
        self.counts["answered"] += 1
        return prediction

    def while_it_answers(self, decide: Callable[[], T]) -> T:
        """Return what `decide` returns, which asks; without even calling it while too many asks fail.

        Raises:
            AskError: if it is not called, or raises that itself.
            Exception: whatever else it raises; that is no fault of the server.
        """
        if self._server is None:
            return decide()

        def attempt() -> tuple[T | None, Exception | None]:
            try:
                return decide(), None
            except AskError:
                raise
            except Exception as error:  # noqa: BLE001  (raised again below)
                return None, error

        try:
            result, error = self._breaker.ask(attempt)
        except CircuitOpenError as open_circuit:
            self.counts["circuit_open"] += 1
            CLIENT.observe_ask_failure("circuit_open")
            raise AskError(str(open_circuit)) from None
        finally:
            CLIENT.observe_circuit(self._breaker.state)
        if error is not None:
            raise error
        return cast("T", result)

    def _from_server(
        self, spec: GraphSpec, plans: Sequence[str], device: DeviceSpec, run: RunSpec | None
    ) -> Prediction:
        prediction = within(
            self._time_s,
            lambda: predict(
                spec,
                plans=plans,
                device=device,
                run=run,
                risk=self._risk,
                server=self._server,
                token=self._token,
                timeout_seconds=self._time_s,
            ),
        )
        check_answer(prediction, spec, plans)
        return prediction


def _load_predictor() -> None:
    # Whoever asks is told what is wrong.
    with contextlib.suppress(Exception):
        from peakcast.models.predictor import Predictor

        Predictor.load()


def _failure(error: Exception) -> str:
    """Return the kind of a failed ask, by the names of the client's metrics."""
    if isinstance(error, ServerError):
        return "server_error"
    if isinstance(error, ServerUnreachableError | TimedOutError):
        return "unreachable"
    return "bad_answer"


def within(time_s: float, call: Callable[[], T]) -> T:
    """Return what `call` returns, or give up after `time_s` and leave it running in its thread.

    A server that sends a byte now and then holds every timeout of a socket off for ever.

    Raises:
        AskError: if it takes longer.
        Exception: whatever `call` raises.
    """
    ended: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            ended.put((call(), None))
        except BaseException as error:  # noqa: BLE001  (raised again by who waits)
            ended.put((None, error))

    threading.Thread(target=run, daemon=True, name="peakcast-ask").start()
    try:
        result, error = ended.get(timeout=time_s)
    except queue.Empty:
        raise TimedOutError(f"no answer within {time_s:g} s") from None
    if error is not None:
        raise error
    return result  # type: ignore[no-any-return]


def check_answer(prediction: Prediction, spec: GraphSpec, plans: Sequence[str]) -> None:
    """Check what any honest answer to this question is like.

    Raises:
        WrongAnswerError: if it is of another graph or other plans, its bytes cannot be, or its decision contradicts it.
    """
    if prediction.graph_id != spec.graph_id:
        raise WrongAnswerError(f"the answer is about graph {prediction.graph_id[:64]!a}, asked was {spec.graph_id}")
    answered = [plan.plan for plan in prediction.plans]
    if sorted(answered) != sorted(plans):
        raise WrongAnswerError(f"the answer is about the plans {str(answered)[:200]}, asked were {list(plans)}")
    for plan in prediction.plans:
        _check_bytes(plan)
    decision = prediction.decision
    if (decision.action == "refuse") != (decision.plan is None):
        raise WrongAnswerError(f"the answer decides {decision.action} and names the plan {str(decision.plan)[:64]!a}")
    if decision.plan is not None and (decision.plan not in answered or not prediction.plan(decision.plan).fits):
        raise WrongAnswerError(f"the answer decides for {decision.plan[:64]!a}, which it does not say fits")


def _check_bytes(plan: PlanPrediction) -> None:
    for name in _QUANTITIES:
        quantity: Expectation = getattr(plan, name)
        if not 0 <= quantity.expected_bytes <= quantity.upper_bytes <= _MOST_BYTES:
            raise WrongAnswerError(
                f"{plan.plan}: {name} is expected to be {quantity.expected_bytes} bytes, at most {quantity.upper_bytes}"
            )
    if plan.required.expected_bytes > plan.device.upper_bytes:
        raise WrongAnswerError(f"{plan.plan}: requires more than it shows on the card")
