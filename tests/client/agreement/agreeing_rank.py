"""One rank of a process group that agrees on plans: run by torchrun or with its environment set; prints JSON lines."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import warnings
from dataclasses import asdict
from datetime import timedelta

import torch.distributed as dist

from peakcast.client.agreement.agreement import Need, Proposal
from peakcast.client.agreement.store import Agreement, agree

NEEDS = (Need("inductor", 900), Need("hybrid", 800), Need("eager", 700), Need("eager:checkpoint", 500))
RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def agreed(name: str, *, free_bytes: int = 1000, graph_id: str = "graph-a", timeout_s: float = 20.0) -> Agreement:
    """Agree once, and print what came out, with how long it took and what was warned of."""
    start_s = time.monotonic()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = agree(
            Proposal(graph_id, NEEDS, free_bytes),
            rank=RANK,
            world_size=WORLD_SIZE,
            timeout=timedelta(seconds=timeout_s),
        )
    elapsed_s = time.monotonic() - start_s
    told = [str(each.message) for each in caught if each.category.__name__ == "AgreementWarning"]
    line = {"case": name, "rank": RANK, "elapsed_s": elapsed_s, "warned": told, **asdict(found)}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
    return found


def all_alive() -> None:
    """Agree where every rank lives: alike, one with less memory, one with another graph, one late."""
    agreed("alike")
    agreed("less memory", free_bytes=750 if RANK == 2 else 1000)
    agreed("another graph", graph_id="graph-b" if RANK == 1 else "graph-a")
    agreed("nothing fits", free_bytes=100 if RANK == 3 else 1000)
    if RANK == 3:
        time.sleep(4)
    # The late rank's own time is long: it must not wait for anybody.
    agreed("late", timeout_s=20.0 if RANK == 3 else 2.0)
    agreed("after the late one")


def some_die() -> None:
    """Agree while rank 3 is killed, then while rank 0, which holds the store, hangs, then after its death."""
    agreed("alike")
    if RANK == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    agreed("killed", timeout_s=2.0)
    sys.stdin.readline()  # told once rank 0 is stopped, which hears nothing then
    agreed("store hangs", timeout_s=1.0)
    sys.stdin.readline()  # told once rank 0 is dead
    agreed("store dead", timeout_s=1.0)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    {"all_alive": all_alive, "some_die": some_die}[sys.argv[1]]()
    sys.stdout.flush()
    # No teardown: with the store's host dead, destroying the group would only report that.
    os._exit(0)
