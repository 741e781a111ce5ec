"""The client's metrics, scraped over HTTP and read from the textfile, and their page."""

from __future__ import annotations

import re
import socket
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families
from torch import nn

from peakcast.client.circuit import Breaker
from peakcast.client.metrics.metrics import (
    ACTIONS,
    CAUSES,
    CLIENT,
    COMPILERS,
    CONFIDENCES,
    FAILURES,
    OUTCOMES,
    ClientMetrics,
)
from peakcast.client.metrics.pressure import BUSY_SHARE, WINDOW_S
from peakcast.client.recompiles.watch import RecompileWatch

PAGE = (Path(__file__).parents[3] / "docs" / "METRICS.md").read_text()


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return every sample by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    """Return the key of one sample."""
    return name, frozenset(labels.items())


def scrape(port: int) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Scrape as Prometheus does."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
        assert reply.headers["Content-Type"].startswith("text/plain")
        return samples(reply.read().decode())


@pytest.fixture
def served() -> object:
    """Give fresh metrics, and the port at which they are served."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    metrics = ClientMetrics()
    stop = metrics.serve(port)
    yield metrics, port
    stop()
    with pytest.raises(OSError, match="refused"):
        scrape(port)


def test_real_compiles_are_scraped(served: tuple[ClientMetrics, int]) -> None:
    """Two sizes compile twice, one of them again; the third reaches the limit; nodes and milliseconds are Dynamo's."""
    metrics, port = served
    torch.compiler.reset()
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    compiled = torch.compile(model, backend="aot_eager", dynamic=False)
    told = []

    def on_compile(each: object) -> None:
        told.append(each)
        metrics.observe_compile(each)  # type: ignore[arg-type]

    with torch.no_grad(), RecompileWatch(recompile_limit=2, on_compile=on_compile) as watch:
        for batch in (2, 3, 4):
            compiled(torch.ones(batch, 8))
            watch.step()
    torch.compiler.reset()
    found = scrape(port)
    forward = [each for each in told if not each.gave_up]  # type: ignore[attr-defined]
    assert found[key("ir_compilation_duration_ms_count")] == len(forward) == 2
    assert found[key("ir_compilation_duration_ms_sum")] == pytest.approx(
        watch.report().compile_ms - told[-1].duration_ms
    )
    assert found[key("graph_node_count")] == forward[-1].graph_nodes > 0
    assert found[key("peakcast_client_recompiles_total")] == 1
    assert found[key("peakcast_client_recompile_limits_total")] == 1
    assert 0 < found[key("memory_pressure_index")] < 100


def test_what_is_observed_is_scraped(served: tuple[ClientMetrics, int]) -> None:
    """Predictions, decisions, fall-backs, rescues, errors, asks and the circuit, each under its label."""
    metrics, port = served
    metrics.observe_prediction("in_distribution")
    metrics.observe_decision("fall_back")
    metrics.observe_decision("fall_back")
    metrics.observe_fall_back("second_look")
    metrics.observe_rescue("rescued")
    metrics.observe_slope(65536.0)
    metrics.observe_peak("inductor:budget=0.5", expected_bytes=1000, upper_bytes=1100, measured_bytes=1004)
    metrics.observe_peak("eager:checkpoint", expected_bytes=1000, upper_bytes=1100, measured_bytes=1200)
    metrics.observe_answer(0.03)
    metrics.observe_ask_failure("unreachable")
    breaker = Breaker()
    for _ in range(3):
        with pytest.raises(ConnectionError):
            breaker.ask(lambda: (_ for _ in ()).throw(ConnectionError()))
    metrics.observe_circuit(breaker.state)
    found = scrape(port)
    assert found[key("peakcast_client_predictions_total", confidence="in_distribution")] == 1
    assert found[key("peakcast_client_decisions_total", action="fall_back")] == 2
    assert found[key("peakcast_client_fall_backs_total", cause="second_look")] == 1
    assert found[key("peakcast_client_rescues_total", outcome="rescued")] == 1
    assert found[key("peakcast_client_live_bytes_per_step")] == 65536
    ratio = "peakcast_client_prediction_error_ratio"
    assert found[key(f"{ratio}_sum", compiler="inductor")] == pytest.approx(1.004)
    assert found[key(f"{ratio}_bucket", compiler="inductor", le="1.005")] == 1
    assert found[key(f"{ratio}_bucket", compiler="inductor", le="1.0")] == 0
    assert found[key("peakcast_client_bounds_exceeded_total", compiler="eager")] == 1
    assert key("peakcast_client_bounds_exceeded_total", compiler="inductor") not in found
    assert found[key("peakcast_client_ask_seconds_bucket", le="0.05")] == 1
    assert found[key("peakcast_client_ask_failures_total", reason="unreachable")] == 1
    assert found[key("peakcast_client_circuit", peakcast_client_circuit="open")] == 1
    assert found[key("peakcast_client_circuit", peakcast_client_circuit="closed")] == 0


def test_no_text_from_outside_becomes_a_label() -> None:
    """What is not in the sets counts as "other"; a plan that is none does too."""
    metrics = ClientMetrics()
    metrics.observe_decision("rm -rf")
    metrics.observe_ask_failure("http://secret")
    metrics.observe_peak("fast", expected_bytes=1, upper_bytes=0, measured_bytes=1)
    labels = {
        label for family in metrics.registry.collect() for each in family.samples for label in each.labels.items()
    }
    assert {value for name, value in labels if name in {"action", "reason", "compiler"}} == {"other"}


def test_the_textfile_is_written_now_again_and_at_the_end(tmp_path: Path) -> None:
    """Whole each time, with nothing else left in the folder."""
    metrics = ClientMetrics()
    path = tmp_path / "peakcast.prom"
    stop = metrics.write_textfile(path, every_s=0.05)
    decided = key("peakcast_client_decisions_total", action="compile")
    assert decided not in samples(path.read_text())
    metrics.observe_decision("compile")
    until_s = time.monotonic() + 20
    while samples(path.read_text()).get(decided) != 1:
        assert time.monotonic() < until_s
        time.sleep(0.01)
    stop()
    slow = metrics.write_textfile(path, every_s=3600)
    metrics.observe_decision("compile")
    slow()
    assert samples(path.read_text())[decided] == 2
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_goes_away_is_told_once_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The training goes on without its textfile."""
    folder = tmp_path / "metrics"
    folder.mkdir()
    path = folder / "a.prom"
    stop = ClientMetrics().write_textfile(path, every_s=0.01)
    for entry in folder.iterdir():
        entry.unlink(missing_ok=True)
    moved = False
    while not moved:
        try:
            for entry in folder.iterdir():
                entry.unlink(missing_ok=True)
            folder.rmdir()
            moved = True
        except OSError:  # a write came between
            continue
    until_s = time.monotonic() + 20
    while "metrics are not written" not in caplog.text:
        assert time.monotonic() < until_s
        time.sleep(0.01)
    time.sleep(0.05)
    stop()
    assert caplog.text.count("metrics are not written") == 1


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda metrics, folder: metrics.write_textfile(folder / "a.txt"), r"must end in \.prom, got .*a\.txt"),
        (
            lambda metrics, folder: metrics.write_textfile(folder / "a.prom", every_s=0),
            "every_s must be above 0, got 0",
        ),
    ],
    ids=["suffix", "interval"],
)
def test_arguments_that_cannot_be_are_refused(
    tmp_path: Path, call: Callable[[ClientMetrics, Path], object], told: str
) -> None:
    """With the value and what is allowed."""
    with pytest.raises(ValueError, match=told):
        call(ClientMetrics(), tmp_path)


def test_every_metric_is_in_the_page_with_its_labels() -> None:
    """Each has a row with its type, labels and values, and no row names a metric that is not there."""
    rows = {match[1]: match[0] for match in re.finditer(r"^\| `([a-z_]+)` \|.*$", PAGE, re.MULTILINE)}
    names = {
        family.name + ("_total" if family.type == "counter" else ""): family for family in CLIENT.registry.collect()
    }
    assert {"ir_compilation_duration_ms", "graph_node_count", "memory_pressure_index"} <= set(names)
    assert set(rows) == set(names)
    for name, family in names.items():
        # An enum is exposed as a gauge of its states.
        assert f"| {'gauge' if family.type == 'stateset' else family.type} |" in rows[name], name
        assert family.documentation in rows[name], name
    told = {"confidence": CONFIDENCES, "action": ACTIONS, "cause": CAUSES, "outcome": OUTCOMES, "reason": FAILURES}
    for label, values in {**told, "compiler": COMPILERS}.items():
        assert f"`{label}`" in PAGE
        for value in (*values, "other"):
            assert f"`{value}`" in PAGE, (label, value)


def test_the_pages_formula_is_the_one_computed() -> None:
    """The page gives the constants of the index as they are in the code."""
    assert "100 * used / total * (1 + activity) / 2" in PAGE
    assert f"share of the last {WINDOW_S:g} s in which Python's garbage collector ran / {BUSY_SHARE:g}" in PAGE
