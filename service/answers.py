"""Answers one request from its bytes: parse, validate, look up, predict. Synchronous; runs in a worker thread."""

from __future__ import annotations

import time
from collections.abc import Hashable

from peakcast.client.facts import with_lines
from peakcast.featurizer.limits import SpecError
from peakcast.featurizer.polynomials import SymbolError
from peakcast.models.asked import RunMismatchError
from peakcast.models.prediction import Prediction
from peakcast.models.predictor import Predictor
from peakcast.service.body import parse_json
from peakcast.service.errors import ErrorCode, ServiceError
from peakcast.service.graphs import HeldGraph
from peakcast.service.kept_graphs import Graphs
from peakcast.service.metrics import Metrics
from peakcast.service.query import (
    Asked,
    PredictQuery,
    invalid_graph,
    invalid_symbols,
    mismatch,
    read_graph,
    read_query,
    settle,
)
from peakcast.service.settings import Settings


class Answers:
    """Answer requests with one predictor, keeping graphs and answers by graph_id."""

    def __init__(self, predictor: Predictor, settings: Settings, metrics: Metrics, graphs: Graphs) -> None:
        self.predictor = predictor
        self._settings = settings
        self._metrics = metrics
        self._limits = settings.graph_limits()
        self.graphs = graphs.cache
        self._graphs = graphs

    def parse(self, content: bytes) -> Asked[PredictQuery]:
        """Return what a body asks.

        Raises:
            ServiceError: BODY_TOO_COMPLEX, INVALID_JSON or INVALID_REQUEST.
        """
        return read_query(parse_json(content, self._settings), PredictQuery)

    def known(self, asked: Asked[PredictQuery]) -> bytes | None:
        """Return the reply if this very question about a held graph was answered before; takes microseconds."""
        started = time.perf_counter()
        if asked.query.graph_id is None:
            return None
        held = self.graphs.get(asked.query.graph_id, asked.query.captured_with)
        answer = self.graphs.answer(held, _question(asked.query)) if held is not None else None
        if answer is None:
            return None
        self._metrics.cache_lookups.labels("answer").inc()
        return self._reply(answer, started)

    def compute(self, asked: Asked[PredictQuery]) -> bytes:
        """Return the reply, predicting where needed.

        Raises:
            ServiceError: GRAPH_UNKNOWN, INVALID_GRAPH, or INVALID_REQUEST where the run contradicts the graph.
        """
        started = time.perf_counter()
        spec = None if asked.graph is None else read_graph(asked.graph, self._limits)
        held = self._held(asked.query) if spec is None else self.graphs.put(spec)
        question = _question(asked.query)
        answer = self.graphs.answer(held, question)
        if answer is None:
            answer = self._predict(held, asked.query)
            self.graphs.keep_answer(held, question, answer)
        self._metrics.cache_graphs.set(self.graphs.count)
        self._metrics.cache_bytes.set(self.graphs.size_bytes)
        reply = self._reply(answer if spec is None else with_lines(answer, spec), started)
        self._metrics.predict_seconds.observe(time.perf_counter() - started)
        return reply

    def _held(self, query: PredictQuery) -> HeldGraph:
        assert query.graph_id is not None
        held = self._graphs.find(query.graph_id, query.captured_with)
        self._metrics.cache_lookups.labels("miss" if held is None else "graph").inc()
        if held is None:
            raise ServiceError(
                ErrorCode.GRAPH_UNKNOWN, f"graph {query.graph_id} is not held here: send it as `graph`", path="graph_id"
            )
        return held

    def _predict(self, held: HeldGraph, query: PredictQuery) -> Prediction:
        run = settle(held.spec, query.run)
        try:
            return self.predictor.predict(
                held.spec, run=run, device=query.device, plans=query.plans, risk=query.risk, symbols=query.symbols
            )
        except RunMismatchError as error:
            raise mismatch(error, run_was_sent=query.run is not None) from None
        except SymbolError as error:
            raise invalid_symbols(error) from None
        except SpecError as error:
            raise invalid_graph(error) from None

    def _reply(self, answer: Prediction, started: float) -> bytes:
        self._metrics.decisions.labels(answer.decision.action).inc()
        for plan in answer.plans:
            self._metrics.plans.labels(plan.confidence).inc()
        elapsed_ms = (time.perf_counter() - started) * 1000
        return answer.model_copy(update={"elapsed_ms": elapsed_ms}).model_dump_json().encode()


def _question(query: PredictQuery) -> Hashable:
    # A field left out is as captured, a default that was sent is meant: equal runs, but not the same question.
    given = None if query.run is None else frozenset(query.run.model_fields_set)
    symbols = frozenset((query.symbols or {}).items())
    return (query.run, given, query.device, query.plans, query.risk, symbols)
