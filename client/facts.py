"""What a captured graph says besides its nodes: how the step was run, and the source line of a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from peakcast.models.asked import run_of

if TYPE_CHECKING:
    from peakcast.featurizer.spec import GraphSpec
    from peakcast.models.prediction import Prediction

__all__ = ["run_of", "with_lines"]


def with_lines(prediction: Prediction, spec: GraphSpec) -> Prediction:
    """Return the prediction with the source lines of its largest tensors, as far as `spec` has them.

    A service keeps no source lines: who holds the graph puts them back.
    """
    trace = spec.traces.get(prediction.plans[0].plan) if prediction.plans else None
    if trace is None or not spec.lines:
        return prediction
    tensors = []
    for tensor in prediction.explanation.top_tensors:
        update: dict[str, Any] = {}
        if tensor.line is None and 0 <= tensor.node < len(trace):
            index = int(trace.line[tensor.node])
            update = {"line": spec.lines[index]} if 0 <= index < len(spec.lines) else {}
        tensors.append(tensor.model_copy(update=update))
    explanation = prediction.explanation.model_copy(update={"top_tensors": tuple(tensors)})
    return prediction.model_copy(update={"explanation": explanation})
