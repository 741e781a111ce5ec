"""What the guard costs: asking before a cold compile, beside that compile, and calling a model whose graph was seen."""

from __future__ import annotations

import time
from statistics import median

import pytest
import torch
from torch import nn

import peakcast
from peakcast.client.guard.policy import Policy
from peakcast.featurizer.run import DeviceSpec

pytestmark = pytest.mark.bench

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


def test_cost_of_asking() -> None:
    """Capture and answer against the compile that follows them; a call under a known decision against a bare one."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Layer(64) for _ in range(12)), nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(4, 32, 64)

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    from torch._inductor.utils import fresh_cache

    torch._dynamo.reset()
    policy = Policy(plans=("inductor", "eager"))
    with fresh_cache(), peakcast.guard(model, optimizer, device=DeviceSpec(), policy=policy) as guard:
        time.sleep(15)  # as a training loads its data meanwhile, the capturing process imports torch
        started_s = time.perf_counter()
        guard.step(step)
        whole_s = time.perf_counter() - started_s
        verdict = guard.decision
        assert verdict is not None
        nodes = len(verdict.specs[0].traces["inductor"])
        asking_s = verdict.captured_s + verdict.asked_s
        compile_s = whole_s - asking_s
        print(f"\n{nodes} nodes, {verdict.plan}: captured in {verdict.captured_s:.2f} s, asked {verdict.asked_s:.2f} s")
        print(f"cold compile and first step {compile_s:.2f} s; asking is {asking_s / compile_s:.0%} of it")
        assert (guard.counts["questions"], guard.counts["compiles"]) == (1, 1)

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
