"""The guard under `torch.distributed`: real processes, gloo, DDP; one rank has less memory than the other."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


def run_ranks(*cards_bytes: int, wrapped: str = "ddp") -> list[dict[str, Any]]:
    """Train with a rank for each card; return what each told."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    common = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(len(cards_bytes)),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]),
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", str(HERE / "guarded_rank.py"), str(card_bytes), wrapped],
            env={**common, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, card_bytes in enumerate(cards_bytes)
    ]
    try:
        ended = [rank.communicate(timeout=280) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    told = [[line for line in output.splitlines() if line.startswith("told ")] for output, _ in ended]
    assert all(told), "\n".join(errors[-2000:] for _, errors in ended)
    return [json.loads(lines[-1].removeprefix("told ")) for lines in told]


@pytest.mark.slow
def test_the_rank_with_less_memory_decides_for_all() -> None:
    """Where the plan wanted fits on one rank only, all take the one that fits everywhere, and train alike."""
    large = 80 << 30
    alike = run_ranks(large, large)
    assert [rank["plan"] for rank in alike] == ["eager", "eager"]
    (both,) = [rank for rank in run_ranks(large, 1 << 20) if rank["room_bytes"] < 0]
    required = both["required"]
    assert required["eager:checkpoint"] < required["eager"]
    # Between the two: eager does not fit, eager:checkpoint does.
    overhead_bytes = (1 << 20) - both["room_bytes"]
    little = overhead_bytes + (required["eager"] + required["eager:checkpoint"]) // 2
    ranks = run_ranks(large, little)
    assert [rank["plan"] for rank in ranks] == ["eager:checkpoint", "eager:checkpoint"]
    assert ranks[0]["losses"] == pytest.approx(alike[0]["losses"], rel=1e-5)


@pytest.mark.slow
def test_sharded_ranks_are_asked_about_as_they_are() -> None:
    """An FSDP2 model is captured with its shards: two ranks train alike under the plan wanted."""
    ranks = run_ranks(80 << 30, 80 << 30, wrapped="fsdp2")
    # The only plan asked about is an eager one, which falls back from nothing.
    assert [(rank["plan"], rank["action"]) for rank in ranks] == [("eager", "fall_back")] * 2
    assert "2 ranks were not measured" in ranks[0]["reason"]
    assert ranks[0]["losses"] != []
    assert ranks[0]["required"]["eager"] > 0
