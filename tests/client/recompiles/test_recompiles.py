"""The recompile watch on real compiles: counts, reasons, bytes, leaks, the limit, and CUDA graph captures."""

from __future__ import annotations

import gc
import json
import logging
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch._inductor.config as inductor_config
from compiled_anew import compiled_anew
from torch import nn
from torch._dynamo.callback import CallbackTrigger, callback_handler
from torch._inductor.cudagraph_trees import is_cudagraph_capture_sizes

from peakcast.client.recompiles.advice import Varying, advice, varying
from peakcast.client.recompiles.compile_log import Compile
from peakcast.client.recompiles.graph_captures import CaptureCap, capped_captures
from peakcast.client.recompiles.live_bytes import tensor_bytes
from peakcast.client.recompiles.watch import RecompileWatch

KIB = 1 << 10
WIDTH = 64


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    # Collecting and counting then walk through the test's own objects, not through all of torch's.
    gc.collect()
    gc.freeze()
    yield
    torch.compiler.reset()


class Layer(nn.Module):
    """A linear layer with a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a scalar."""
        return self.linear(x).square().mean()


def compiled_step(*, dynamic: bool | None = False, backend: str = "aot_eager") -> Callable[[int], None]:
    """Return a training step that takes the size of its batch."""
    model = Layer()
    model.compile(backend=backend, dynamic=dynamic)

    def step(batch: int) -> None:
        model(torch.ones(batch, WIDTH)).backward()
        model.zero_grad()

    return step


def test_a_changing_batch_is_counted_and_its_sizes_named() -> None:
    """Accumulation over batches of 4, 5 and 6 rows: one compile and two again, for dimension 0 of x."""
    step = compiled_step()
    step(3)  # before the watch: not counted
    with RecompileWatch() as watch:
        for batch in (4, 5, 4, 6, 5, 3):
            step(batch)
            watch.step()
    report = watch.report()
    assert (report.steps, report.compiles, report.recompiles) == (6, 3, 3)
    (frame,) = report.frames
    assert (frame.frame.name, frame.eager_since) == ("forward", None)
    assert frame.frame.file == __file__
    assert set(frame.reasons) == {
        "tensor 'x' size mismatch at index 0. expected 3, actual 4",
        "tensor 'x' size mismatch at index 0. expected 4, actual 5",
        "tensor 'x' size mismatch at index 0. expected 4, actual 6",  # the graph used last is asked first
    }
    assert frame.compile_ms > 0
    assert report.advice[0] == "forward: pad dimension 0 of x to the largest size there is, 6 so far: one graph for all"
    assert "mark_dynamic(x, 0)" in report.advice[1]


def test_a_fixed_batch_is_silent() -> None:
    """One compile, none again, nothing to advise, and no slope over twenty steps."""
    step = compiled_step()
    with RecompileWatch(live_bytes=tensor_bytes) as watch:
        for _ in range(20):
            step(4)
            watch.step()
    report = watch.report()
    assert (report.compiles, report.recompiles, report.advice) == (1, 0, [])
    assert report.slope is not None
    assert not report.slope.leaks


def test_dynamos_limit_is_told_with_the_step(caplog: pytest.LogCaptureFixture) -> None:
    """With a limit of three graphs the fourth size runs eager, in step 4, and the watch says so."""
    before = torch._dynamo.config.recompile_limit
    told: list[Compile] = []
    step = compiled_step()
    with (
        caplog.at_level(logging.WARNING, "peakcast"),
        RecompileWatch(recompile_limit=3, on_compile=told.append) as watch,
    ):
        for batch in range(2, 12):
            step(batch)
            watch.step()
    assert torch._dynamo.config.recompile_limit == before
    report = watch.report()
    (frame,) = report.frames
    assert (frame.compiles, frame.recompiles, frame.eager_since) == (3, 2, 4)
    assert [each.gave_up for each in told if not each.backward] == [False, False, False, True]
    (record,) = (record for record in caplog.records if record.name.startswith("peakcast"))
    assert "runs eager from here on: it was compiled 3 times" in record.getMessage()
    assert "eager since step 4 for every size not compiled by then" in str(report)
    # The last guard failed for the fifth of the ten sizes; the others never reached the compiler.
    assert report.advice[0].endswith("pad dimension 0 of x to the largest size there is, 5 so far: one graph for all")


def test_dynamic_sizes_end_the_recompiles() -> None:
    """What the advice promises: with a dynamic batch five sizes need two graphs at most."""
    step = compiled_step(dynamic=None)
    with RecompileWatch() as watch:
        for batch in (4, 5, 6, 7, 8):
            step(batch)
            watch.step()
    assert watch.report().recompiles <= 1


def test_the_backward_belongs_to_its_frame() -> None:
    """It is compiled when it first runs: told apart, and its time counted, with inductor too."""
    told: list[Compile] = []
    step = compiled_step(backend="inductor")
    # From a warm cache the backward comes with the forward.
    with compiled_anew(), RecompileWatch(on_compile=told.append) as watch:
        step(4)
        watch.step()
    assert [(each.frame.name, each.backward) for each in told] == [("forward", False), ("forward", True)]
    assert told[0].graph_nodes > 0
    (frame,) = watch.report().frames
    assert frame.compiles == 1
    assert frame.compile_ms == pytest.approx(told[0].duration_ms + told[1].duration_ms)


def test_bytes_kept_by_each_recompile_are_found() -> None:
    """A mask for each size, kept in a cache as many models do: 64 KiB stay with each recompile, to the byte."""
    masks = {}

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., object]:
        masks[len(masks)] = torch.ones(16 * KIB)  # 64 KiB
        return graph.forward

    model = Layer()
    model.compile(backend=backend, dynamic=False)
    with RecompileWatch(live_bytes=tensor_bytes) as watch:
        for batch in range(2, 8):
            with torch.no_grad():
                model(torch.ones(batch, WIDTH))
            watch.step()
    report = watch.report()
    assert report.bytes_per_recompile == 64 * KIB
    assert [each.recompiles for each in report.after_compiles] == [0, 1, 2, 3, 4, 5]
    assert report.advice[-1].startswith("65,536 bytes more stay alive with each recompile")


def test_a_leak_of_64_kib_a_step_is_found_and_garbage_is_none() -> None:
    """Kept for good it is a leak; in cycles that wait for the collector it is not."""
    kept: list[torch.Tensor] = []

    class Node:
        def __init__(self) -> None:
            self.tensor = torch.ones(16 * KIB)
            self.me = self

    def run(leak: Callable[[], object]) -> RecompileWatch:
        step = compiled_step()
        gc.collect()
        gc.disable()
        try:
            with RecompileWatch(live_bytes=tensor_bytes) as watch:
                for _ in range(24):
                    step(4)
                    leak()
                    watch.step()
        finally:
            gc.enable()
        return watch

    report = run(lambda: kept.append(torch.ones(16 * KIB))).report()
    assert report.slope is not None
    assert report.slope.leaks
    assert report.slope.bytes_per_step == 64 * KIB
    assert "64 KiB more stay alive with each step" in report.advice[-1]
    cycles = run(Node)
    grown = cycles._slope.slope()
    assert grown.leaks  # as it looks before the collection
    slope = cycles.report().slope
    assert slope is not None
    assert not slope.leaks


def test_a_compiled_model_that_is_dropped_leaves_nothing() -> None:
    """Compile and drop in a loop: after a reset and a collection the bytes alive are what they were before."""
    gc.collect()
    before_bytes = tensor_bytes()
    alive = []
    for _ in range(3):
        step = compiled_step(backend="inductor")
        step(4)
        del step
        torch.compiler.reset()
        gc.collect()
        alive.append(tensor_bytes())
    assert alive == [before_bytes] * 3


def test_garbage_of_a_compile_is_collected() -> None:
    """A cycle made while compiling is gone when the step goes on, unless nobody collects."""
    alive = []
    for collect in (True, False):
        torch.compiler.reset()
        made = []

        def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor], made: list[object] = made) -> object:
            cycle: list[object] = [torch.ones(16 * KIB)]
            cycle.append(cycle)
            made.append(tensor_bytes())
            return graph.forward

        model = Layer()
        model.compile(backend=backend)
        gc.collect()
        gc.disable()
        try:
            # torch collects the young after a compile by itself: not what has outlived a collection before.
            quiet = torch._dynamo.config.patch(run_gc_after_compile=False)
            with RecompileWatch(collect=collect), torch.no_grad(), quiet:
                model(torch.ones(4, WIDTH))
                alive.append(tensor_bytes() - made[0])
        finally:
            gc.enable()
    assert alive[0] <= -64 * KIB
    assert alive[1] > -64 * KIB


def test_the_report_is_json() -> None:
    """Everything in it, with the reasons, sizes and advice."""
    step = compiled_step()
    with RecompileWatch(live_bytes=tensor_bytes) as watch:
        for batch in (4, 5):
            step(batch)
            watch.step()
    told = json.loads(json.dumps(watch.report().to_dict()))
    assert told["recompiles"] == 1
    assert told["frames"][0]["varying"] == [{"input": "x", "dimension": 0, "sizes": [4, 5]}]
    assert told["frames"][0]["reasons"] == {"tensor 'x' size mismatch at index 0. expected 4, actual 5": 1}
    assert [each["step"] for each in told["after_compiles"]] == [1, 2]
    assert "drop_last=True" in told["advice"][0]


def test_it_leaves_no_callback_and_survives_a_reset() -> None:
    """A reset drops Dynamo's callbacks: the next step listens again; afterwards none of ours is left."""
    starts, ends = list(callback_handler.start_callbacks), list(callback_handler.end_callbacks)
    step = compiled_step()
    with RecompileWatch() as watch:
        step(4)
        torch.compiler.reset()
        watch.step()
        assert len(callback_handler.start_callbacks) == 1
        step(4)
        watch.step()
    assert watch.report().compiles == 2
    assert (callback_handler.start_callbacks, callback_handler.end_callbacks) == ([], [])
    assert (starts, ends) == ([], [])


def test_captures_are_counted_by_dynamos_callback() -> None:
    """As cudagraph_trees calls it around each recording."""
    with RecompileWatch() as watch:
        for _ in range(3):
            with callback_handler.install_callbacks(CallbackTrigger.CUDAGRAPH_RECORDING, "0/0"):
                pass
        with callback_handler.install_callbacks(CallbackTrigger.LAZY_BACKWARD, "0/0"):
            pass
    assert watch.report().captures == 3


def test_captures_are_capped_where_inductor_asks() -> None:
    """The first two sizes and graphs of fixed sizes are captured, further sizes run without; then it is as before."""
    before = inductor_config.triton.cudagraph_capture_sizes
    with RecompileWatch(capture_limit=2) as watch:
        assert [is_cudagraph_capture_sizes(size) for size in (8, (8, 2), 9, 8, None, 9)] == [
            *(True, True, False, True, True, False)
        ]
    assert inductor_config.triton.cudagraph_capture_sizes is before
    assert watch.report().captures_refused == 2


def test_the_cap_leaves_inductors_cache_key_alone() -> None:
    """Its pickled form is the same whatever it has seen, and inductor compiles with it."""
    with capped_captures(1) as cap:
        assert isinstance(cap, CaptureCap)
        fresh = pickle.dumps(cap)
        compiled_step(backend="inductor")(4)
        assert 7 in cap
        assert pickle.dumps(cap) == fresh


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # inductor warms its pool up with one
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_reduce_overhead_captures_one_graph_a_length_up_to_the_cap() -> None:
    """Ten lengths under a cap of four: the memory of the pool stops growing, and a fixed length is flat."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()).cuda()
    compiled = torch.compile(model, mode="reduce-overhead", dynamic=True)
    with torch.no_grad(), RecompileWatch(capture_limit=4) as watch:
        for length in range(2, 12):
            for _ in range(4):
                compiled(torch.ones(length, WIDTH, device="cuda"))
                watch.step()
    report = watch.report()
    assert 0 < report.captures <= 4 + 1  # one more where a graph of fixed sizes came first
    assert report.captures_refused > 0


def test_sizes_are_read_out_of_the_reasons() -> None:
    """For each input and dimension, in order, each once; other guards name none."""
    reasons = [
        "tensor 'L['batch']['ids']' size mismatch at index 1. expected 128, actual 64",
        "tensor 'x' size mismatch at index 0. expected 2, actual 1",
        "tensor 'x' size mismatch at index 0. expected 2, actual 3",
        "tensor 'x' dtype mismatch. expected Float, actual Half",
    ]
    assert varying(reasons) == [Varying("L['batch']['ids']", 1, (64, 128)), Varying("x", 0, (1, 2, 3))]


def test_advice_for_many_sizes_offers_buckets() -> None:
    """1 to 12 rows are four buckets of powers of two (1, 2, 4, 8, 16 without 1 or as 0 bits: five)."""
    reasons = [f"tensor 'x' size mismatch at index 0. expected {size}, actual {size + 1}" for size in range(1, 12)]
    said = advice(reasons, gave_up=False, recompile_limit=8)
    assert "pad to the next power of two: 5 graphs instead of 12" in said[2]
    assert "recompile_limit caps them" in said[3]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda model: model(torch.ones(4, WIDTH, dtype=torch.float64)), "dtype"),
        (lambda model: model(torch.ones(WIDTH, 4).t()), "contiguous"),
        (lambda model: model(torch.ones(2, 4, WIDTH)), "reshape"),
        (lambda model: model(torch.ones(4, WIDTH), 3), "a number that changes"),
        (lambda model: model(torch.ones(4, WIDTH), requires_grad=True), ""),
    ],
    ids=["dtype", "strides", "rank", "number", "nothing"],
)
def test_advice_follows_dynamos_real_reasons(change: Callable[[Callable[..., object]], object], told: str) -> None:
    """Each change of a call makes Dynamo recompile for a reason that the advice knows."""

    def function(x: torch.Tensor, times: int = 2, *, requires_grad: bool = False) -> torch.Tensor:
        return x.to(torch.float32) * times

    compiled = torch.compile(function, backend="eager", dynamic=False)
    with RecompileWatch() as watch:
        compiled(torch.ones(4, WIDTH))
        watch.step()
        change(compiled)
        watch.step()
    said = " ".join(watch.report().advice)
    assert told in said
    assert bool(said) == bool(told)


def test_limits_that_cannot_be_are_refused() -> None:
    """With the value and what is allowed."""
    with pytest.raises(ValueError, match="recompile_limit must be 1 or more, got 0"):
        RecompileWatch(recompile_limit=0)
    with pytest.raises(ValueError, match="capture_limit must be 0 or more, got -1"):
        RecompileWatch(capture_limit=-1)
    with pytest.raises(ValueError, match="must be 0 or more, got -2"):
        CaptureCap(-2)


@pytest.mark.slow
def test_the_example_shows_what_its_page_says() -> None:
    """Twelve lengths as they come: eight compiles, eager since step 9, masks that stay; padded: one compile."""
    script = Path(__file__).parents[3] / "examples" / "changing_batch.py"
    # The page shows a run on the CPU, where other bytes are alive than on a card.
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, timeout=240, env=env)
    timeless = re.compile(r"\d+\.\d s|\(.*?changing_batch.py")
    page = (Path(__file__).parents[3] / "docs" / "RECOMPILES.md").read_text()
    assert timeless.sub("", ran.stdout).strip() in timeless.sub("", page)
    assert "12 steps; 8 compiles of 1 function, 7 of them recompiles" in ran.stdout
    assert "eager since step 9" in ran.stdout
    assert "12 steps; 1 compile" in ran.stdout
