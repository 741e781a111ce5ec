"""The Dynamo backend `peakcast`, what it is made of, and the second look at inductor's buffer plan."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import pytest
import torch
from compiled_anew import compiled_anew
from guarded import Net
from torch import nn

from peakcast.client.guard import active_plan, backend
from peakcast.client.guard.plan_backend import PlanBackend
from peakcast.client.guard.second_look import DoesNotFitError, RegionPeak, config_patches, ended_by_second_look
from peakcast.client.guard.segment import Segment
from peakcast.featurizer.plans import parse_plan

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def own_caches() -> Iterator[None]:
    """Give inductor no cache of graphs: what comes out of a cache is not scheduled, so there is nothing to look at."""
    with compiled_anew():
        yield


def segments_of(function: Callable[..., Any], *args: Any) -> list[tuple[Segment, list[Any]]]:
    """Return what Dynamo makes of a call, each graph as a Segment and the values it was called with."""
    found = []

    def keep(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        found.append((Segment(graph, inputs), list(inputs)))
        return graph.forward

    torch.compile(function, backend=keep)(*args)
    return found


def test_torch_finds_the_backend_by_its_name() -> None:
    """The entry point makes `backend="peakcast"` work without an import."""
    assert "peakcast" in torch._dynamo.list_backends(exclude_tags=())


def test_a_segment_travels_as_it_is() -> None:
    """Parameters become its own, in-place nodes stay in place, and the copy computes the same from the arguments."""
    model = Net()

    def call(x: torch.Tensor) -> torch.Tensor:
        y = model(x)
        y.add_(1.0)
        return y * 2

    x = torch.randn(4, 32)
    ((segment, _),) = segments_of(call, x)
    assert ".add_(" in segment.source
    assert sum(p.numel() for p in segment.weights) == sum(p.numel() for p in model.parameters())
    (argument,) = segment.arguments
    assert argument is x
    copy = cloudpickle.loads(cloudpickle.dumps(segment))
    (result,) = copy(x)
    torch.testing.assert_close(result, call(x))


def test_a_segment_with_a_branch_travels_too() -> None:
    """The bodies of higher-order operators come along."""

    def call(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, (x,))

    ((segment, values),) = segments_of(call, torch.ones(3))
    copy = cloudpickle.loads(cloudpickle.dumps(segment))
    (result,) = copy(*values)
    torch.testing.assert_close(result, torch.full((3,), 2.0))


def test_a_guards_decision_is_taken_over() -> None:
    """Inside a guard's call a backend of the user's own place runs the plan that is handed over, without asking."""
    model, x = Net(), torch.randn(4, 32)
    expected = model(x)
    model.compile(backend="peakcast")
    with active_plan.handed_over("eager", lambda _: contextlib.nullcontext()):
        torch.testing.assert_close(model(x), expected)
    assert active_plan.current() is None


def test_an_option_that_is_none_is_refused() -> None:
    """The message lists the options there are."""
    with pytest.raises(ValueError, match="unknown option 'rsk' of backend peakcast; allowed: server, token, risk"):
        backend.peakcast(torch.fx.symbolic_trace(nn.Linear(1, 1)), [torch.ones(1)], options={"rsk": 0.1})


def test_the_bare_backend_asks_about_its_segment_and_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One segment, AdamW assumed: it compiles under a plan that fits, and says once how little it knows."""
    monkeypatch.setattr(backend, "_said", set())
    model, x = Net(), torch.randn(4, 32)
    expected = model(x)
    with caplog.at_level(logging.WARNING, "peakcast"):
        model.compile(backend="peakcast")
        torch.testing.assert_close(model(x), expected)
    (said,) = [record.getMessage() for record in caplog.records if record.name == "peakcast"]
    assert "sees one segment, without loss and optimizer: inductor is expected to require" in said


def product(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Multiply twice; nothing fuses away the product in between."""
    return torch.relu(x @ first) @ second


def compiled_under(plan: str, saw: Callable[[RegionPeak], None] | None) -> Callable[..., Any]:
    """Return `product` compiled by the backend of a plan."""
    return torch.compile(product, backend=PlanBackend(parse_plan(plan), saw=saw))


MATRICES = (torch.ones(256, 64), torch.ones(64, 512), torch.ones(512, 32))


@pytest.mark.skipif(not config_patches(lambda _: None), reason="this torch has no CustomSchedulerPass")
def test_the_second_look_sees_inductors_own_buffers(own_caches: None) -> None:
    """Forward for inference: the product in between, in place through relu, and the result beside it."""
    seen: list[RegionPeak] = []
    with torch.no_grad():
        torch.testing.assert_close(compiled_under("inductor", seen.append)(*MATRICES), product(*MATRICES))
    (region,) = seen
    between, result = 256 * 512 * 4, 256 * 32 * 4
    # relu either writes into the product or beside it, before the result is there.
    assert region.peak_bytes in {between + result, 2 * between}
    assert not region.is_backward


@pytest.mark.skipif(not config_patches(lambda _: None), reason="this torch has no CustomSchedulerPass")
def test_the_second_look_can_end_a_compile(own_caches: None) -> None:
    """What it raises comes out of the compiler, wrapped, and is found; another error is not taken for it."""

    def too_much(region: RegionPeak) -> None:
        raise DoesNotFitError(f"{region.peak_bytes} bytes")

    with pytest.raises(Exception, match="bytes") as raised, torch.no_grad():
        compiled_under("inductor", too_much)(*MATRICES)
    assert isinstance(ended_by_second_look(raised.value), DoesNotFitError)
    assert ended_by_second_look(ValueError("bytes")) is None


def test_a_budget_is_part_of_what_the_compilers_caches_go_by(own_caches: None) -> None:
    """With warm caches another budget saves fewer bytes for the backward: no cached partition of the first is taken."""
    model = Net(width=64, depth=4)
    x = torch.randn(128, 64)

    def saved_bytes(plan: str) -> int:
        torch._dynamo.reset()
        found: dict[int, int] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            if not isinstance(tensor, nn.Parameter):
                found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        compiled = torch.compile(model, backend=PlanBackend(parse_plan(plan)))
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            output = compiled(x)
        output.sum().backward()
        return sum(found.values())

    everything, little = saved_bytes("inductor"), saved_bytes("inductor:budget=0.1")
    assert little < everything
    assert saved_bytes("inductor") == everything
