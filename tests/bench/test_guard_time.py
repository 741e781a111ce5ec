"""What the guard costs: asking before a cold compile, beside that compile, and calling a model whose graph was seen."""

from __future__ import annotations

import time
from statistics import median

import pytest
import torch
from torch import nn
from torch._inductor.utils import fresh_cache

import peakcast
from peakcast.client.guard import compiled_before
from peakcast.client.guard.policy import Policy
from peakcast.client.guard.verdict import Verdict
from peakcast.featurizer.run import DeviceSpec

pytestmark = [
    pytest.mark.bench,
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]

CALLS = 300


class Layer(nn.Module):
    """A transformer layer in plain operators."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend, then feed forward."""
        batch, length, width = x.shape
        q, k, v = self.attention(self.norms[0](x)).view(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        heads = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


class Stack(nn.Module):
    """Layers one after another; not `nn.Sequential`, of which Dynamo compiles one layer and runs it for all."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width) for _ in range(depth))
        self.head = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply all layers, then the head."""
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def _first_step_s(policy: Policy | None) -> tuple[float, Verdict | None]:
    """Return what the first step takes from a cold cache, under a guard or, without a policy, compiled bare."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    compiled_before._compiled.clear()
    model = Stack(64, 12)
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(4, 32, 64)

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    with fresh_cache():
        if policy is None:
            model.compile()
            started_s = time.perf_counter()
            step()
            return time.perf_counter() - started_s, None
        with peakcast.guard(model, optimizer, device=DeviceSpec(), policy=policy) as guard:
            time.sleep(15)  # as a training loads its data meanwhile, the capturing process imports torch
            started_s = time.perf_counter()
            guard.step(step)
            taken_s = time.perf_counter() - started_s
            assert (guard.counts["questions"], guard.counts["compiles"]) == (1, 1)
            return taken_s, guard.decision


def test_cost_of_asking() -> None:
    """A cold compile bare, with its question before it, and with the question meanwhile; then a known decision."""
    _first_step_s(None)  # with what is paid once in a process
    bare_s, _ = _first_step_s(None)
    print(f"\ncold compile and first step without a guard: {bare_s:.2f} s")
    for name, meanwhile in (("asked first", False), ("asked meanwhile", True)):
        policy = Policy(plans=("inductor", "eager"), compile_meanwhile=meanwhile)
        taken_s, verdict = _first_step_s(policy)
        assert verdict is not None
        nodes = len(verdict.specs[0].traces["inductor"])
        print(
            f"{name}, {nodes} nodes, {verdict.plan}: {taken_s:.2f} s, {taken_s / bare_s - 1:.0%} more; captured in "
            f"{verdict.captured_s:.2f} s, answered in {verdict.asked_s:.2f} s, waited for {verdict.waited_s:.2f} s, "
            f"{verdict.waited_s / bare_s:.0%} of the compile"
        )

    small = nn.Linear(4, 4)
    y = torch.randn(2, 4)
    bare_ms = _median_ms(lambda: small(y))
    policy = Policy(plans=("eager",))
    with peakcast.guard(small, None, device=DeviceSpec(), policy=policy) as guard:
        small(y)
        guarded_ms = _median_ms(lambda: small(y))
        stepped_ms = _median_ms(lambda: guard.step(lambda: small(y)))
    print(f"seen graph: bare call {bare_ms:.3f} ms, guarded {guarded_ms:.3f} ms, in guard.step {stepped_ms:.3f} ms")
    assert guarded_ms < 2.0


def _median_ms(call: object) -> float:
    taken_ms = []
    for _ in range(CALLS):
        started_s = time.perf_counter()
        call()  # type: ignore[operator]
        taken_ms.append(1e3 * (time.perf_counter() - started_s))
    return median(taken_ms)
