"""What a process that only predicts does: handed to processes of their own, which import it."""

from __future__ import annotations

import time

from peakcast.featurizer.spec import GraphSpec
from peakcast.models import compiled
from peakcast.models.predictor import Predictor


def predict_many(documents: list[bytes], count: int) -> tuple[float, float]:
    """Predict distinct questions in a process of its own; returns the seconds and the CPU seconds of each."""
    compiled.load()
    predictor = Predictor.load()
    specs = [GraphSpec.from_json(document) for document in documents]
    predictor.predict(specs[0])
    start, cpu_start = time.perf_counter(), time.process_time()
    for number in range(count):
        predictor.predict(GraphSpec.from_json(documents[number % len(documents)]), risk=0.01 + 1e-5 * number)
    return (time.perf_counter() - start) / count, (time.process_time() - cpu_start) / count
