"""Run one function in several ranks of a process group, each with a card of its own, and collect what it gives.

A rank is `python -m peakcast.training.ranks FOLDER RANK`. Without CUDA the group is gloo's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, Final

from peakcast.training.pool import die_with_parent, resolve

_ORDER: Final = "order.json"
_TICK_S: Final = 0.1
# What comes afterwards is not worth a long wait.
_AFTERWARDS_S: Final = 60.0
_SHOWN_CHARACTERS: Final = 600


class RankError(RuntimeError):
    """Say which rank failed, and how."""


def run_ranks(
    function: str, payload: Any, *, ranks: int, timeout_s: float, afterwards: str | None = None
) -> list[dict[str, Any]]:
    """Call "module:function" with `payload` (JSON values) in each rank and return what they gave, by rank.

    `afterwards` names a second function, called in the same ranks with the same payload. What it gives becomes the
    entry `afterwards` of each result, or says there how it `failed`: it cannot take the results with it.

    Raises:
        RankError: if a rank fails or dies, or the time is over; the others are killed then, as they would wait for it.
    """
    with tempfile.TemporaryDirectory(prefix="peakcast-ranks-", ignore_cleanup_errors=True) as folder:
        order = {"function": function, "payload": payload, "ranks": ranks, "parent": os.getpid()}
        order["afterwards"] = afterwards
        Path(folder, _ORDER).write_text(json.dumps(order))
        processes = []
        lost = ""
        try:
            for rank in range(ranks):
                with _log(folder, rank).open("wb") as log:
                    command = [sys.executable, "-W", "ignore", "-m", "peakcast.training.ranks", folder, str(rank)]
                    processes.append(subprocess.Popen(command, stdout=log, stderr=log))
            _wait(processes, folder, timeout_s)
        except RankError as error:
            if afterwards is None or not _have_results(folder, ranks):
                raise
            lost = str(error)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        results = [json.loads(_result(folder, rank).read_text()) for rank in range(ranks)]
        for rank, result in enumerate(results if afterwards else ()):
            found = _afterwards(folder, rank)
            result["afterwards"] = json.loads(found.read_text()) if found.exists() else {"failed": lost}
        return results


def _wait(processes: list[subprocess.Popen[bytes]], folder: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    had_results = False
    while True:
        codes = [process.poll() for process in processes]
        # All of them: a rank that loses its peer fails too, perhaps before the peer is looked at.
        failed = [(rank, code) for rank, code in enumerate(codes) if code]
        if failed:
            raise RankError("; ".join(_how_it_ended(folder, rank, code) for rank, code in failed))
        if all(code == 0 for code in codes):
            return
        if not had_results and _have_results(folder, len(processes)):
            had_results = True
            deadline = min(deadline, time.monotonic() + _AFTERWARDS_S)
        if time.monotonic() > deadline:
            waiting = [str(rank) for rank, code in enumerate(codes) if code is None]
            raise RankError(f"no result of rank {', '.join(waiting)} within {timeout_s:.0f} s")
        time.sleep(_TICK_S)


def _how_it_ended(folder: str, rank: int, code: int) -> str:
    text = _log(folder, rank).read_text(errors="replace").strip()
    return f"rank {rank} ended with status {code}: {text[-_SHOWN_CHARACTERS:]}"


def _log(folder: str, rank: int) -> Path:
    return Path(folder, f"rank-{rank}.log")


def _result(folder: str, rank: int) -> Path:
    return Path(folder, f"rank-{rank}.json")


def _afterwards(folder: str, rank: int) -> Path:
    return Path(folder, f"afterwards-{rank}.json")


def _have_results(folder: str, ranks: int) -> bool:
    return all(_result(folder, rank).exists() for rank in range(ranks))


def _write(path: Path, found: Any) -> None:
    """Write all of it or nothing: the process may be killed meanwhile."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(found))
    unfinished.replace(path)


def main(folder: str, rank: int) -> int:
    """Be one rank: join the group, call the function, leave its result in the folder."""
    order = json.loads(Path(folder, _ORDER).read_text())
    die_with_parent(order["parent"])
    ranks = order["ranks"]
    os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)})
    import torch

    has_cards = torch.cuda.is_available()
    if has_cards:
        torch.cuda.set_device(rank)
    meeting_point = f"file://{folder}/meeting-point"
    torch.distributed.init_process_group(
        "nccl" if has_cards else "gloo", init_method=meeting_point, rank=rank, world_size=ranks
    )
    try:
        found = resolve(order["function"])(order["payload"])
    except Exception:  # noqa: BLE001  (the parent reads it in the log)
        traceback.print_exc()
        return 1
    _write(_result(folder, rank), found)
    if order["afterwards"] is not None:
        try:
            extra = resolve(order["afterwards"])(order["payload"])
        except Exception as error:  # noqa: BLE001  (a note beside the result)
            text = str(error).strip().splitlines() or [""]
            _write(_afterwards(folder, rank), {"failed": f"{type(error).__name__}: {text[0][:_SHOWN_CHARACTERS]}"})
            return 1  # the others may wait for this rank: the parent ends them
        _write(_afterwards(folder, rank), extra)
    torch.distributed.barrier()  # nobody leaves while another still talks to it
    return 0


if __name__ == "__main__":
    exit_code = main(sys.argv[1], int(sys.argv[2]))
    sys.stdout.flush()
    # Past the teardown of the group, which waits for ranks that may have failed.
    os._exit(exit_code)
