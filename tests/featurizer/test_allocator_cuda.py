"""The simulated allocator against torch's own, event by event, on a machine with a GPU."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from peakcast.featurizer.allocator import required_bytes, simulate_allocator
from peakcast.featurizer.allocator_config import AllocatorConfig

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

CONFIGS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:40",
    "roundup_power2_divisions:4",
    "max_split_size_mb:64,roundup_power2_divisions:[64:1,256:2,>:4]",
)

# Runs in a process of its own, since the configuration is read once: events in, what torch counted after each out.
REAL = """
import json, sys, torch
from torch.cuda import caching_allocator_alloc as alloc, caching_allocator_delete as delete
sizes, events, limits = json.load(sys.stdin)
torch.cuda.init()
total = torch.cuda.mem_get_info()[1]

def play(note):
    held = {}
    try:
        for event in events:
            if event >= 0:
                held[event] = alloc(sizes[event])
            else:
                delete(held.pop(~event))
            if note is not None:
                note.append((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
        return True
    except torch.OutOfMemoryError:
        return False
    finally:
        for pointer in held.values():
            delete(pointer)
        torch.cuda.empty_cache()

timeline = []
play(timeline)
low, high = limits
page = 2 << 20
low, high = -(-low // page), -(-high // page)
while low < high:
    middle = (low + high) // 2
    torch.cuda.set_per_process_memory_fraction((middle * page + 1024) / total)
    if play(None):
        high = middle
    else:
        low = middle + 1
json.dump({"timeline": timeline, "required_bytes": high * page}, sys.stdout)
"""


def random_events(seed: int, count: int, live: int) -> tuple[list[int], list[int]]:
    """Draw allocations of all size classes with frees between, at most `live` of them alive at once."""
    rng = random.Random(seed)
    common = [rng.randrange(1, 100 << 20) for _ in range(6)]  # models ask for the same sizes over and over
    sizes, events, alive = [], [], []
    for tensor in range(count):
        classes = (rng.randrange(1, 1 << 20), rng.randrange(1 << 20, 10 << 20), rng.randrange(10 << 20, 150 << 20))
        sizes.append(rng.choice((*classes, *common)))
        events.append(tensor)
        alive.append(tensor)
        while len(alive) > live or (alive and rng.random() < 0.45):
            events.append(~alive.pop(rng.randrange(len(alive))))
    return sizes, events


def run_on_gpu(conf: str, sizes: list[int], events: list[int], limits: tuple[int, int]) -> dict[str, Any]:
    """Play events through torch's allocator in a fresh process."""
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": conf}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", REAL],
        input=json.dumps([sizes, events, limits]),
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("conf", CONFIGS)
@pytest.mark.parametrize("seed", [0, 1])
def test_equals_torch_event_by_event(conf: str, seed: int) -> None:
    """Allocated and reserved bytes are torch's after every event, and so is the smallest limit."""
    sizes, events = random_events(seed, count=400, live=60)
    config = AllocatorConfig.parse(conf)
    simulated = simulate_allocator(np.array(sizes), events, config)
    required = required_bytes(np.array(sizes), events, config)
    limits = (int(simulated.allocated_bytes.max()) // 2, int(simulated.reserved_bytes.max()) * 2)
    real = run_on_gpu(conf, sizes, events, limits)
    timeline = np.array(real["timeline"], np.int64)
    # To the byte on an H200. Another driver may place segments otherwise, which decides between blocks of one size.
    np.testing.assert_allclose(simulated.allocated_bytes, timeline[:, 0], rtol=0.01, atol=4 << 20)
    np.testing.assert_allclose(simulated.reserved_bytes, timeline[:, 1], rtol=0.03, atol=4 << 20)
    assert required == pytest.approx(real["required_bytes"], rel=0.02)
