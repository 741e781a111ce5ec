"""From forecasts to the reply: expectations, device bytes, fit, decision and explanation."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from peakcast.featurizer.prior import Prior
from peakcast.featurizer.run import DeviceSpec
from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.vocabulary import PHASES, QUANTITIES
from peakcast.models.decision import available_bytes, decide
from peakcast.models.prediction import Expectation, Explanation, PlanPrediction, Prediction, TensorShare

if TYPE_CHECKING:
    from peakcast.models.predictor import Forecast


def build_prediction(
    spec: GraphSpec,
    names: Sequence[str],
    priors: Sequence[Prior],
    forecast: Forecast,
    *,
    device: DeviceSpec,
    risk: float,
    model_version: str,
    speeds: Mapping[str, float],
    started: float,
) -> Prediction:
    """Build the reply for one graph. `started` is `time.perf_counter()` of when the question came."""
    context = priors[0].overhead_bytes
    room_bytes = available_bytes(device, context)
    opaque = dict(zip(names, forecast.opaque, strict=True))
    plans = []
    for row, (name, prior) in enumerate(zip(names, priors, strict=True)):
        quantities = {
            quantity: Expectation(
                expected_bytes=round(float(forecast.expected_PQ[row, column])),
                upper_bytes=round(float(forecast.upper_PQ[row, column])),
            )
            for column, quantity in enumerate(QUANTITIES)
        }
        plans.append(
            PlanPrediction(
                plan=name,
                **quantities,
                device=_on_device(quantities, context),
                phase=PHASES[prior.peak_phase],
                fits=not opaque[name] and quantities["required"].upper_bytes <= room_bytes,
                confidence=forecast.confidence[row],
                doubts=forecast.doubts[row],
            )
        )
    return Prediction(
        model_version=model_version,
        graph_id=spec.graph_id,
        risk=risk,
        plans=tuple(plans),
        decision=decide(plans, room_bytes=room_bytes, risk=risk, speeds=speeds, opaque=opaque),
        explanation=explain(priors[0]),
        elapsed_ms=round((time.perf_counter() - started) * 1e3, 3),
    )


def _on_device(quantities: Mapping[str, Expectation], context: int) -> Expectation:
    """Return what the card shows as used: the larger reserved of first and steady, context and libraries on top."""
    first, steady = quantities["first_reserved"], quantities["steady_reserved"]
    return Expectation(
        expected_bytes=max(first.expected_bytes, steady.expected_bytes) + context,
        upper_bytes=max(first.upper_bytes, steady.upper_bytes) + context,
    )


def explain(prior: Prior) -> Explanation:
    """Return the parts of the simulated peak (they add up to it) and its largest tensors."""
    parts = prior.parts
    return Explanation(
        prior_bytes=sum(getattr(parts, field.name) for field in fields(parts)),
        parameters_bytes=prior.parameters_bytes,
        inputs_bytes=parts.inputs_bytes,
        gradients_bytes=parts.gradients_bytes,
        optimizer_state_bytes=parts.optimizer_state_bytes,
        saved_activations_bytes=parts.saved_activations_bytes,
        temporaries_bytes=parts.temporaries_bytes,
        outputs_bytes=parts.outputs_bytes,
        workspace_bytes=parts.workspace_bytes,
        rounding_bytes=parts.rounding_bytes,
        top_tensors=tuple(
            TensorShare(node=t.node, op=t.op, bytes=t.bytes, line=t.line, role=t.role) for t in prior.top_tensors
        ),
    )
