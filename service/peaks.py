"""Takes reported peaks: reads, judges against physics, keeps, and compares with what the model in use expected."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import orjson
import structlog

from peakcast.featurizer.limits import SpecError
from peakcast.featurizer.prior import Prior, simulate
from peakcast.featurizer.run import RunSpec
from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.vocabulary import QUANTITIES
from peakcast.models.asked import RunMismatchError, check_trace
from peakcast.models.predictor import Predictor
from peakcast.service.auth import ANONYMOUS
from peakcast.service.body import parse_json
from peakcast.service.errors import ErrorCode, ServiceError
from peakcast.service.kept_graphs import Graphs
from peakcast.service.metrics import Metrics
from peakcast.service.peaks_query import PeakKept, PeakQuery
from peakcast.service.plausibility import Physics, implausible
from peakcast.service.query import Asked, invalid_graph, mismatch, read_graph, read_query, settle
from peakcast.service.settings import Settings
from peakcast.service.store.agreement import configuration_of
from peakcast.service.store.errors import KeyConflictError, QuotaError, StoreError
from peakcast.service.store.link import StoreLink
from peakcast.service.store.peak_store import Added, NewPeak
from peakcast.service.store.tables import ACCEPTED

log = structlog.get_logger("peakcast.service")


class Peaks:
    """Take reported peaks. Synchronous; runs in a worker thread."""

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        link: StoreLink,
        graphs: Graphs,
        predictor: Callable[[], Predictor | None],
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._link = link
        self._graphs = graphs
        self._predictor = predictor
        self._limits = settings.graph_limits()
        self._quota = settings.quota()

    def take(self, content: bytes, reporter: str) -> bytes:
        """Return the reply to one body, once its peak is on the disk, and count what became of it.

        Raises:
            ServiceError: what is wrong with the body; GRAPH_UNKNOWN, KEY_CONFLICT, QUOTA_EXCEEDED, STORE_UNAVAILABLE.
        """
        kind = ANONYMOUS if reporter == ANONYMOUS else "named"
        self._metrics.peaks_received.labels(kind).inc()
        try:
            added, reply = self._take(content, reporter)
        except ServiceError:
            self._metrics.peaks.labels("refused", kind).inc()
            raise
        self._metrics.peaks.labels("repeated" if added.is_repeat else added.status, kind).inc()
        return reply

    def _take(self, content: bytes, reporter: str) -> tuple[Added, bytes]:
        if self._link.is_off:
            raise ServiceError(ErrorCode.NOT_FOUND, "this service keeps no peaks: PEAKCAST_STORE_URL is none")
        reported = read_query(parse_json(content, self._settings), PeakQuery)
        query = reported.query
        spec = self._spec(reported)
        run = settle(spec, query.run)
        prior = self._prior(spec, query, run)
        peak = _new_peak(spec, query, run, prior, reporter)
        try:
            added = self._link.use(lambda store: store.add(peak, self._quota))
        except KeyConflictError as error:
            raise ServiceError(ErrorCode.KEY_CONFLICT, str(error), path="key") from None
        except QuotaError as error:
            headers = {"Retry-After": str(error.retry_after_s)}
            raise ServiceError(ErrorCode.QUOTA_EXCEEDED, str(error), headers=headers) from None
        except StoreError as error:
            raise self._unavailable(error) from error
        if not added.is_repeat:
            if added.reason:
                log.warning("peak_quarantined", key=query.key, reporter=reporter, reason=added.reason)
            if added.status == ACCEPTED and query.source == "measured" and not query.out_of_memory:
                self._compare(spec, query, run)
        return added, PeakKept(key=query.key, graph_id=spec.graph_id).model_dump_json().encode()

    def _spec(self, reported: Asked[PeakQuery]) -> GraphSpec:
        if reported.graph is not None:
            return self._graphs.cache.put(read_graph(reported.graph, self._limits)).spec
        graph_id = reported.query.graph_id
        assert graph_id is not None
        try:
            held = self._graphs.fetch(graph_id, reported.query.captured_with)
        except StoreError as error:
            raise self._unavailable(error) from error
        if held is None:
            raise ServiceError(
                ErrorCode.GRAPH_UNKNOWN, f"graph {graph_id} is not held here: send it as `graph`", path="graph_id"
            )
        return held.spec

    @staticmethod
    def _prior(spec: GraphSpec, query: PeakQuery, run: RunSpec) -> Prior:
        try:
            prior = simulate(spec, query.plan, run, query.device)
            check_trace(spec, prior.trace_plan, run)
        except RunMismatchError as error:
            raise mismatch(error, run_was_sent=query.run is not None) from None
        except SpecError as error:
            raise invalid_graph(error) from None
        return prior

    def _unavailable(self, error: StoreError) -> ServiceError:
        # The reason is for the log: it may name hosts and files.
        log.warning("peak_not_stored", error=str(error))
        return ServiceError(
            ErrorCode.STORE_UNAVAILABLE,
            "the store does not answer: this peak was not kept, send it again",
            headers={"Retry-After": str(self._settings.retry_after_seconds)},
        )

    def _compare(self, spec: GraphSpec, query: PeakQuery, run: RunSpec) -> None:
        """Observe how far the peak lies from what the model in use expects. It is kept: nothing here undoes that."""
        predictor = self._predictor()
        if predictor is None:
            return
        try:
            predicted = predictor.predict_fixed(spec, run=run, device=query.device, plans=[query.plan]).plans[0]
        except Exception:
            log.exception("peak_not_compared", key=query.key)
            return
        for quantity in QUANTITIES:
            measured = query.measured.get(f"{quantity}_bytes")
            expectation = getattr(predicted, quantity)
            if measured is None or (quantity.startswith("first") and query.cache == "warm"):
                continue
            self._metrics.peak_ratio.labels(quantity).observe(measured / max(expectation.expected_bytes, 1))
            if measured > expectation.upper_bytes:
                self._metrics.peaks_above_bound.labels(quantity).inc()


def _new_peak(spec: GraphSpec, query: PeakQuery, run: RunSpec, prior: Prior, reporter: str) -> NewPeak:
    # `required` is found by further simulations: only where it was reported.
    simulated = [name for name in QUANTITIES if name != "required" or "required_bytes" in query.measured]
    prior_bytes = {name: int(getattr(prior, f"{name}_bytes")) for name in simulated}
    physics = Physics(prior_bytes, prior.parameters_bytes, prior.optimizer_state_bytes, query.device.total_bytes)
    measured = dict(query.measured)
    if query.out_of_memory:  # what it had reached by then is below what it needs
        judged = {name: value for name, value in measured.items() if name.removesuffix("_bytes") not in QUANTITIES}
    else:
        judged = measured
    versions = dict(query.versions)
    if "torch" not in versions and "torch" in spec.captured_with:
        versions["torch"] = spec.captured_with["torch"]
    run_fields, device = run.model_dump(), query.device.model_dump()
    content = {
        **query.model_dump(exclude={"key", "graph_id", "captured_with", "run", "versions"}),
        "graph_id": spec.graph_id,
        "run": run_fields,
        "versions": versions,
    }
    return NewPeak(
        key=query.key,
        content_sha256=hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest(),
        reporter=reporter,
        graph_id=spec.graph_id,
        graph_json=spec.to_json(),
        configuration=configuration_of(
            graph_id=spec.graph_id,
            run=run_fields,
            device_name=query.device.name,
            plan=query.plan,
            cache=query.cache,
            source=query.source,
            out_of_memory=query.out_of_memory,
            torch_version=versions.get("torch", ""),
        ),
        plan=query.plan,
        run=run_fields,
        device=device,
        measured=measured,
        prior=prior_bytes,
        versions=versions,
        out_of_memory=query.out_of_memory,
        cache=query.cache,
        source=query.source,
        architecture=query.architecture,
        reason=implausible(judged, physics) or "",
    )
