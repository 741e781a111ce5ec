"""Where the milliseconds of an answer go, beside the least any reader of such a document pays: parsing its JSON."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import orjson
import pytest
from bench.graphs import GRAPHS, corpus_document, gpt2_document, repeated
from bench.timing import Row, p50_ms

from peakcast.featurizer.nodes import node_matrix
from peakcast.featurizer.prior import simulate
from peakcast.featurizer.run import DeviceSpec
from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.summary import summarize
from peakcast.models.asked import settled_run
from peakcast.models.predictor import Predictor

pytestmark = pytest.mark.bench


def test_graphs_of_1400_nodes(root: Path, rows: list[Row], is_compiled: bool) -> None:
    """A plan of 1,400 nodes is predicted in-process, one thread: the median and the slowest of seven graphs."""
    predictor = Predictor.load()
    documents = [corpus_document(root, prefix) for prefix in GRAPHS]
    specs = [GraphSpec.from_json(document) for document in documents]
    baseline_ms = median(p50_ms(lambda document=document: orjson.loads(document)).cpu_ms for document in documents)
    taken_ms = [p50_ms(lambda spec=spec: predictor.predict(spec)) for spec in specs]
    cpu_ms = [taken.cpu_ms for taken in taken_ms]
    how = "compiled" if is_compiled else "Python"
    target = "p50 <= 5 ms" if is_compiled else ""
    beside = (baseline_ms, "orjson.loads")
    rows.append(
        Row(f"1,400 nodes, in-process, {how}: median graph", median(taken_ms), "ms", *beside, target, median(cpu_ms))
    )
    rows.append(Row(f"1,400 nodes, in-process, {how}: slowest graph", max(taken_ms), "ms", *beside, cpu_ms=max(cpu_ms)))
    assert all(1380 <= len(spec.traces["eager"]) <= 1420 for spec in specs)


def test_stages_of_gpt2(root: Path, rows: list[Row], is_compiled: bool) -> None:
    """Each step from the wire to the decision is timed on GPT-2 small, eager and compiled."""
    document = gpt2_document(root)
    spec = GraphSpec.from_json(document)
    run, device, predictor = settled_run(spec, None), DeviceSpec(), Predictor.load()
    beside = (p50_ms(lambda: orjson.loads(document)).cpu_ms, "orjson.loads")
    how = "compiled" if is_compiled else "Python"
    if not is_compiled:
        read_ms = p50_ms(lambda: GraphSpec.from_json(document))
        rows.append(Row("GPT-2 small: GraphSpec.from_json", read_ms, "ms", *beside, cpu_ms=read_ms.cpu_ms))
    for plan in spec.traces:
        prior = simulate(spec, plan, run, device)
        stages = {
            "simulate": lambda plan=plan: simulate(spec, plan, run, device).required_bytes,
            "node_matrix": lambda plan=plan: node_matrix(spec, plan),
            "summarize": lambda plan=plan, prior=prior: summarize(spec, plan, prior, run, device),
        }
        for stage, call in stages.items():
            if stage == "simulate" or not is_compiled:
                taken = p50_ms(call)
                rows.append(Row(f"GPT-2 small, {plan}: {stage}, {how}", taken, "ms", *beside, cpu_ms=taken.cpu_ms))
    target = "<= 15 ms" if is_compiled else ""
    taken_ms = p50_ms(lambda: predictor.predict(spec))
    rows.append(Row(f"GPT-2 small, both plans, in-process, {how}", taken_ms, "ms", *beside, target, taken_ms.cpu_ms))
    assert spec.graph_id == GraphSpec.from_json(document).graph_id


def test_cost_is_linear(root: Path, rows: list[Row], is_compiled: bool) -> None:
    """A step repeated 9 and 36 times, up to 50,000 nodes, costs about as much for each node."""
    spec = GraphSpec.from_json(corpus_document(root, GRAPHS[0]))
    predictor = Predictor.load()
    how = "compiled" if is_compiled else "Python"
    once_us = 0.0
    for times in (1, 9, 36):
        longer = repeated(spec, times)
        count = len(longer.traces["eager"])
        taken = p50_ms(lambda longer=longer: predictor.predict(longer), 5)
        taken_us = 1e3 * taken.cpu_ms / count
        once_us = once_us or taken_us
        target = "linear: about 1 x" if times > 1 and is_compiled else ""
        rows.append(
            Row(f"{count:,} nodes, {how}: CPU for each node", taken_us, "us", once_us, "that of one step", target)
        )
    assert count > 50_000
