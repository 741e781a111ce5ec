"""What the guard reads off a real card, and a job that lives under a limit that kills it without; needs a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from guarded import Training

import peakcast
from peakcast.client.guard.memory_facts import device_now, own_bytes_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

MIB = 1 << 20


@pytest.fixture
def clean() -> Iterator[None]:
    """Give the allocator empty, and without a limit afterwards."""
    torch.cuda.empty_cache()
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def test_what_the_step_owns_is_not_counted_as_held(clean: None) -> None:
    """Of a model and a block of 256 MiB beside it, only the block is what the process holds besides the step."""
    model = torch.nn.Linear(4096, 4096, device="cuda")
    beside = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    own_bytes = own_bytes_of(model, None, ())
    assert own_bytes == 4 * (4096 * 4096 + 4096)
    held_bytes = device_now(own_bytes).already_allocated_bytes
    # Small blocks leave a hole in their segment of 2 MiB.
    assert beside.nbytes <= held_bytes <= beside.nbytes + 4 * MIB


def test_a_limit_on_the_process_counts(clean: None) -> None:
    """`set_per_process_memory_fraction` bounds what is free, whatever the card has."""
    total_bytes = torch.cuda.get_device_properties(0).total_memory
    whole = device_now(0)
    torch.cuda.set_per_process_memory_fraction(0.25)
    limited = device_now(0)
    free_bytes = [each.total_bytes - each.used_by_others_bytes for each in (whole, limited)]
    assert free_bytes[1] <= total_bytes // 4 + MIB
    assert free_bytes[0] > free_bytes[1]


@pytest.mark.slow
def test_a_compiled_training_on_the_card_is_measured_and_within_its_bound(clean: None) -> None:
    """The peak of the steady steps is no more than the upper bound that was predicted for the plan."""
    training = Training(width=256, depth=4)
    training.model.cuda()
    x, y = torch.randn(4096, 256, device="cuda"), torch.randint(0, 10, (4096,), device="cuda")
    model, optimizer = training.model, training.optimizer

    def step() -> None:
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    with peakcast.guard(model, optimizer, policy=peakcast.Policy(plans=("inductor", "eager"))) as guard:
        for _ in range(4):
            guard.step(step)
        assert guard.plan == "inductor"
        told = guard.decision.prediction()
        held_bytes = guard.decision.device.already_allocated_bytes
        assert torch.cuda.max_memory_allocated() - held_bytes <= told.steady_allocated.upper_bytes
