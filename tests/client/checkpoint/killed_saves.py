"""Kill saves with SIGKILL: one before each touch of the file system, then some at random times. Prints JSON lines."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from peakcast.client.checkpoint import load, save, verify

TOUCHES = {"open", "os.mkdir", "os.rename", "os.listdir", "os.scandir", "os.remove", "os.rmdir", "shutil.rmtree"}
RANDOM_KILLS = 15


def filled(value: float, width: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Give a model whose every number, and every number of its optimizer's state, is the value."""
    model = nn.Linear(width, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
            optimizer.state[parameter] = {"momentum_buffer": torch.full_like(parameter, value)}
    return model, optimizer


def value_in(path: Path, width: int) -> list[float]:
    """Return the different numbers in a checkpoint, which must be whole."""
    assert verify(path) == [], verify(path)
    model, optimizer = filled(-1.0, width)
    load(path, model, optimizer)
    buffers = [state["momentum_buffer"] for state in optimizer.state.values()]
    return sorted({number for tensor in (*model.parameters(), *buffers) for number in tensor.unique().tolist()})


def die_at(touch: int) -> None:
    """Kill this process before its n-th touch of the file system."""
    seen = 0

    def watch(event: str, _: Any) -> None:
        nonlocal seen
        if event in TOUCHES:
            seen += 1
            if seen == touch:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def main(path: Path) -> None:
    """Run both series, each over one checkpoint that is saved again and again."""
    width = 8
    save(path / "touched", *filled(0.0, width), plan="eager")
    for touch in range(1, 200):
        before = value_in(path / "touched", width)
        child = os.fork()
        if child == 0:
            die_at(touch)
            save(path / "touched", *filled(float(touch), width), plan="eager")
            os._exit(0)
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        left = len(list((path / "touched").iterdir()))
        after = value_in(path / "touched", width)
        print(json.dumps({"at": touch, "killed": killed, "before": before, "after": after, "left": left}))
        if not killed:
            assert os.waitstatus_to_exitcode(status) == 0
            break

    width = 512  # 1 MiB a tensor: most of a save is spent writing
    save(path / "timed", *filled(0.0, width), plan="eager")
    draw = random.Random(5)
    for at in range(RANDOM_KILLS):
        (before,) = value_in(path / "timed", width)
        ours, theirs = os.pipe()
        start_s = time.monotonic()
        child = os.fork()
        if child == 0:
            value = before
            while True:
                value += 1
                save(path / "timed", *filled(value, width), plan="eager")
                os.write(theirs, b".")
        # One save goes through, and says how long a save takes now; the next are killed somewhere within.
        told = len(os.read(ours, 1))
        time.sleep(draw.uniform(0.0, time.monotonic() - start_s))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(theirs)
        told += len(os.read(ours, 1 << 16))
        os.close(ours)
        line = {"at": at, "timed": True, "told": before + told, "after": value_in(path / "timed", width)}
        print(json.dumps(line))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
