"""Where work runs side by side: processes of this machine, or the workers of a Dask cluster, both through joblib."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal

import joblib

Engine = Literal["processes", "dask"]
# How long a cluster may take to offer its first worker.
_WAIT_SEC: Final = 120


class EngineError(ValueError):
    """An engine that cannot be used as asked."""


@contextmanager
def running_on(engine: Engine, scheduler: str | None, jobs: int) -> Iterator[int]:
    """Let joblib's `Parallel` run on the engine within; gives the number of jobs to ask for.

    A Dask worker that dies takes nothing along: its tasks run again elsewhere, and every task carries what it needs.

    Raises:
        EngineError: if Dask is asked for without a scheduler's address, or processes with one.
    """
    if engine == "processes":
        if scheduler is not None:
            raise EngineError(f"--scheduler {scheduler} is for --engine dask")
        yield jobs
        return
    if scheduler is None:
        raise EngineError("--engine dask needs --scheduler, the address of a running scheduler: tcp://HOST:8786")
    from distributed import Client

    with (
        Client(scheduler, set_as_default=False) as client,  # type: ignore[no-untyped-call]
        joblib.parallel_config(backend="dask", client=client, wait_for_workers_timeout=_WAIT_SEC),
    ):
        client.wait_for_workers(1, timeout=_WAIT_SEC)
        # All there are: workers may join and leave.
        yield -1
