"""Measure peaks on a GPU: the command, with a progress bar for people, lines or JSON for machines.

Run `peakcast collect`, or `python -m peakcast.training.collect` where only this package's sources, torch and the model
libraries are at hand.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table

from peakcast.client.guard.memory_facts import allocator_settings
from peakcast.training.collection import (
    MEASURING,
    MEASURING_RANKS,
    MEMORY_BYTES,
    Progress,
    collect,
    finished_keys,
)
from peakcast.training.jobs import Job, plan_jobs, plan_spread_jobs
from peakcast.training.zoo.case import RANKS

__all__ = ["collect", "collect_command"]

# 0: everything planned is measured. 3: the budget ended first; run again to go on. 4: some jobs failed.
EXIT_INCOMPLETE = 3
EXIT_FAILURES = 4


def collect_command(  # noqa: PLR0917 - typer passes options by name
    out: Annotated[Path, typer.Option(help="Folder for records.jsonl; what it holds already is skipped.")] = Path(
        "records"
    ),
    workers: Annotated[int, typer.Option(min=1, help="Processes side by side, dealt out to the cards.")] = 4,
    budget_seconds: Annotated[float | None, typer.Option(help="Stop after this long.")] = None,
    models: Annotated[list[str] | None, typer.Option(help="Only these models (repeat, or separate by commas).")] = None,
    plans: Annotated[list[str] | None, typer.Option(help="Only these plans (repeat, or separate by commas).")] = None,
    ranks: Annotated[
        int, typer.Option(min=1, max=RANKS, help="2: measure models spread over two cards, DDP and FSDP2.")
    ] = 1,
    limit: Annotated[int | None, typer.Option(min=1, help="At most this many jobs.")] = None,
    done: Annotated[list[Path] | None, typer.Option(help="More files or folders of records to skip.")] = None,
    record_timeout_seconds: Annotated[float, typer.Option(help="Give a job up after this long.")] = 300.0,
    memory_gib: Annotated[
        float, typer.Option(help="Bound on the expected peaks of all that runs at a time on one card.")
    ] = MEMORY_BYTES / 2**30,
    retry_failed: Annotated[bool, typer.Option(help="Measure again what failed before.")] = False,  # noqa: FBT002
    only_list: Annotated[  # noqa: FBT002
        bool, typer.Option("--list", help="Show what would be measured, and measure nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary, or the list, as JSON.")] = False,  # noqa: FBT002
) -> None:
    """Measure peaks of the zoo's models on this machine's GPUs, under the allocator of PYTORCH_CUDA_ALLOC_CONF."""
    try:
        planned = plan_jobs if ranks == 1 else plan_spread_jobs
        jobs = [job.under(allocator_settings()) for job in planned(_split(models), _split(plans))[:limit]]
    except KeyError as error:
        raise typer.BadParameter(str(error.args[0]), param_hint="--models") from error
    if only_list:
        _print_list(jobs, finished_keys([out, *(done or [])], retry_failed=retry_failed), as_json=as_json)
        return
    cards = _cards(ranks)
    with _Display(quiet=as_json) as display:
        progress = collect(
            out,
            jobs=jobs,
            workers=workers,
            budget_seconds=budget_seconds,
            done=done or (),
            retry_failed=retry_failed,
            record_timeout_seconds=record_timeout_seconds,
            memory_bytes=int(memory_gib * 2**30),
            measuring=MEASURING if ranks == 1 else MEASURING_RANKS,
            cards=cards if ranks == 1 else (),
            watch=display.watch,
        )
    _print_summary(progress, out, as_json=as_json)
    if progress.interrupted:
        raise typer.Exit(130)
    if progress.left:
        raise typer.Exit(EXIT_INCOMPLETE)
    if progress.failed:
        raise typer.Exit(EXIT_FAILURES)


def main() -> None:
    """Run the command by itself."""
    typer.run(collect_command)


def _cards(ranks: int) -> list[str]:
    """Name the cards there are; say at once, in one place, what otherwise every worker would."""
    import torch

    # NVML answers without making a CUDA context, which would take memory of the card for the whole run.
    seen = torch.cuda.device_count()
    if seen == 0:
        typer.echo("error: peaks are measured on a GPU, and torch sees no CUDA device here", err=True)
        raise typer.Exit(2)
    if seen < ranks:
        typer.echo(f"error: --ranks {ranks} needs {ranks} GPUs, one a rank, and torch sees {seen}", err=True)
        raise typer.Exit(2)
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return named.split(",")[:seen] if named else [str(number) for number in range(seen)]


def _split(values: list[str] | None) -> list[str] | None:
    return None if not values else [part.strip() for value in values for part in value.split(",") if part.strip()]


class _Display:
    """A progress bar on a terminal, a line for each record elsewhere."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._console = Console(stderr=True)
        self._bar: Bar | None = None
        self._task: Any = None

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._quiet:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Bar(*columns, console=self._console)
            self._bar.start()
            self._task = self._bar.add_task("measuring", total=None)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def watch(self, progress: Progress, record: Mapping[str, Any]) -> None:
        if self._bar is not None:
            finished = progress.measured + progress.failed
            self._bar.update(self._task, total=progress.planned - progress.skipped, completed=finished)
        if not record or self._quiet:
            return
        text = f"{progress.elapsed_seconds:7.1f}s {progress.left:5d} left  {record['key']}: {_outcome(record)}"
        if self._bar is not None and "error" not in record:
            self._bar.update(self._task, description=record["key"][:60])
        elif self._bar is not None:
            self._console.print(text, markup=False)
        else:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()


def _outcome(record: Mapping[str, Any]) -> str:
    if "error" in record:
        return f"FAILED {record['error']}"[:220]
    if record.get("out_of_memory"):
        return "out of memory"
    peaks = record.get("measured", {})
    mib = {name: peaks.get(f"{name}_bytes", 0) / 2**20 for name in ("steady_allocated", "steady_reserved", "required")}
    return (
        f"{mib['steady_allocated']:.0f} MiB allocated, {mib['steady_reserved']:.0f} reserved, "
        f"{mib['required']:.0f} required, first step {record.get('first_step_seconds', 0.0):.1f} s"
    )


def _print_list(jobs: list[Job], finished: set[str], *, as_json: bool) -> None:
    todo = [job for job in jobs if job.key not in finished]
    if as_json:
        typer.echo(
            json.dumps([{"key": job.key, **job.to_dict(), "expected_seconds": job.expected_seconds} for job in todo])
        )
        return
    for job in todo:
        typer.echo(f"{job.key}  about {job.expected_bytes / 2**30:.1f} GiB, {job.expected_seconds:.0f} s")
    hours = sum(job.expected_seconds for job in todo) / 3600
    typer.echo(f"{len(todo)} to measure, {len(jobs) - len(todo)} measured already, about {hours:.1f} process hours")


def _print_summary(progress: Progress, out: Path, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(progress.to_dict()))
        return
    table = Table("", "records", title=f"peaks in {out}", title_justify="left")
    for name in ("planned", "skipped", "measured", "out_of_memory", "failed", "left", "crashed_workers"):
        table.add_row(name.replace("_", " "), str(getattr(progress, name)))
    table.add_row("elapsed", f"{progress.elapsed_seconds:.0f} s")
    Console().print(table)
    for line in progress.failures[:20]:
        typer.echo(f"failed: {line}")


if __name__ == "__main__":
    main()
