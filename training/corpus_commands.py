"""Commands on a corpus: `python -m peakcast.training.corpus_commands merge|capture|replay|exact|check|compare|card`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from peakcast.training import corpus as store
from peakcast.training import journal
from peakcast.training.capture_corpus import JOURNAL, attach, capture_all, unused_graphs, wanted
from peakcast.training.data_card import data_card
from peakcast.training.exact_accuracy import exact_jobs, exact_rows
from peakcast.training.replay_corpus import FILES, graphs_in_use, merge_replays, replay_all, replay_into, replay_jobs
from peakcast.training.replay_corpus import JOURNAL as REPLAYS
from peakcast.training.seed_records import read_seed

app = typer.Typer(help=__doc__, no_args_is_help=True)

Corpus = Annotated[Path, typer.Option(help="Folder of the corpus.")]
DEFAULT = Path("training/corpus")
# Two measurements of one configuration agree within this.
TOLERANCE = 0.01


@app.command()
def merge(
    records: Annotated[list[Path] | None, typer.Argument(help="Files or folders of `peakcast collect`.")] = None,
    seed: Annotated[Path | None, typer.Option(help="A file of the first measurements, to be converted.")] = None,
    corpus: Corpus = DEFAULT,
) -> None:
    """Add records to the corpus: one for each key, measured before seed, later before earlier."""
    before = store.read(corpus)
    new = [*(read_seed(seed) if seed is not None else ()), *(r for path in records or [] for r in journal.read(path))]
    after = store.merge(before, new)
    _refuse(list(store.faults(after)))
    store.write(corpus, after)
    failed = sum("error" in record for record in new)
    typer.echo(f"{len(before)} records before, {len(new)} read ({failed} failures left out), {len(after)} now")


@app.command()
def capture(
    corpus: Corpus = DEFAULT,
    workers: Annotated[int, typer.Option(min=1, help="Captures side by side, up to 3 GB each.")] = 2,
    limit: Annotated[int | None, typer.Option(min=1, help="At most this many cases.")] = None,
    models: Annotated[str | None, typer.Option(help="Only these models, separated by commas.")] = None,
    timeout_sec: Annotated[float, typer.Option(help="Give a case up after this long.")] = 900.0,
    afresh: Annotated[bool, typer.Option("--afresh", help="Also what has a graph already.")] = False,  # noqa: FBT002
) -> None:
    """Capture the graphs that are missing, without a GPU. Interrupt at will: the next run goes on."""
    records = [*graphs_in_use(corpus)]
    chosen = None if models is None else {name.strip() for name in models.split(",")}
    todo = [one for one in wanted(records, corpus, afresh=afresh) if chosen is None or one.case.model in chosen][:limit]
    with _progress() as bar:
        task = bar.add_task("capturing", total=len(todo))

        def report(outcome: Mapping[str, Any]) -> None:
            bar.advance(task)
            state = f"{len(outcome.get('plans', ()))} plans in {outcome.get('seconds', 0)} s"
            bar.console.print(f"{outcome['case']}: {state}", markup=False, highlight=False)
            for plans, error in outcome["failed"].items():
                bar.console.print(f"  {plans} FAILED: {error}", markup=False, highlight=False)

        try:
            capture_all(corpus, todo, workers=workers, timeout_sec=timeout_sec, report=report)
        finally:
            # Read again: a merge may have gone on in the meantime.
            for name in FILES:
                if records := attach(store.read(corpus, name), corpus):
                    store.write(corpus, records, name)
    (corpus / JOURNAL).unlink(missing_ok=True)
    if not (corpus / REPLAYS).exists():  # else there are graphs whose labels are not merged yet
        for file in unused_graphs(graphs_in_use(corpus), corpus):
            file.unlink()
    records = [*graphs_in_use(corpus)]
    typer.echo(f"{sum(1 for r in records if r.get('graph_id'))} of {len(records)} records have a graph")


@app.command()
def replay(  # noqa: PLR0917 - typer passes options by name
    corpus: Corpus = DEFAULT,
    count: Annotated[int, typer.Option(min=1, help="How many cases to draw, those replayed before among them.")] = 3000,
    seed: Annotated[int, typer.Option(help="Another seed draws others.")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="Replays side by side, up to 3 GB each.")] = 2,
    models: Annotated[str | None, typer.Option(help="Only these models, separated by commas.")] = None,
    most_sec: Annotated[float | None, typer.Option(help="Leave out what is expected to compile longer.")] = None,
    timeout_sec: Annotated[float, typer.Option(help="Give a case up after this long.")] = 600.0,
) -> None:
    """Make compiled labels without a GPU, by replay, each with its graph. Interrupt at will: it goes on."""
    chosen = None if models is None else [name.strip() for name in models.split(",")]
    jobs = [
        job
        for job in replay_jobs(count, seed=seed, models=chosen)
        if most_sec is None or job.expected_seconds <= most_sec
    ]
    with _progress() as bar:
        task = bar.add_task("replaying", total=len(jobs))

        def report(outcome: Mapping[str, Any]) -> None:
            bar.advance(task)
            state = outcome.get("error") or f"{outcome['kernels']} nodes in {outcome['seconds']} s"
            bar.console.print(f"{outcome['key']}: {state}", markup=False, highlight=False)

        try:
            replay_all(corpus, jobs, workers=workers, timeout_sec=timeout_sec, report=report)
        finally:
            labels, failed = merge_replays(corpus)
    typer.echo(f"{labels} replayed labels, {failed} of this run failed")


@app.command()
def exact(
    corpus: Corpus = DEFAULT,
    out: Annotated[Path, typer.Option(help="File that what was replayed is appended to.")] = Path("exact.jsonl"),
    count: Annotated[int, typer.Option(min=1, help="How many measured records to draw.")] = 200,
    seed: Annotated[int, typer.Option(help="Another seed draws others.")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="Replays side by side, up to 3 GB each.")] = 2,
    timeout_sec: Annotated[float, typer.Option(help="Give a case up after this long.")] = 600.0,
) -> None:
    """Replay plans that were measured, under the torch of this host, and compare. Interrupt at will: it goes on."""
    records = store.read(corpus)
    jobs = exact_jobs(records, count, seed=seed)
    with _progress() as bar:
        task = bar.add_task("replaying", total=len(jobs))
        replay_into(out, jobs, workers=workers, timeout_sec=timeout_sec, report=lambda _: bar.advance(task))
    drawn = {job.key for job in jobs}
    outcomes = [outcome for outcome in journal.read(out) if outcome["key"] in drawn]
    typer.echo(
        "| plan | records | median | mean | 95th pct. | median seconds | mean seconds |\n|---|---|---|---|---|---|---|"
    )
    for row in exact_rows(records, outcomes):
        typer.echo(
            f"| {row.kind} | {row.n} | {row.median_percent:.3f} % | {row.mean_percent:.2f} % | {row.p95_percent:.1f} % "
            f"| {row.median_seconds:.1f} | {row.mean_seconds:.1f} |"
        )
    typer.echo(f"{sum('error' in outcome for outcome in outcomes)} of {len(outcomes)} could not be replayed")


@app.command()
def check(corpus: Corpus = DEFAULT) -> None:
    """Refuse reserved architectures, implausible peaks, double keys and missing graphs."""
    records = store.read(corpus)
    _refuse(list(store.faults(records, corpus)))
    typer.echo(f"{len(records)} records, nothing wrong")


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="A file of the first measurements, or records of a collection.")],
    second: Annotated[Path, typer.Argument(help="Records of a collection.")],
    tolerance: Annotated[float, typer.Option(help="Largest relative difference that counts as agreement.")] = TOLERANCE,
) -> None:
    """Compare two measurements of the same configurations. Exit 1 where one lies outside the tolerance."""
    one = list(journal.read(first))
    found = store.differences(list(read_seed(first)) if one and "key" not in one[0] else one, journal.read(second))
    for difference in [d for d in found if abs(d.relative) > tolerance]:
        typer.echo(f"{difference.key} {difference.quantity}: {difference.relative:+.2%}")
    outside = sum(abs(d.relative) > tolerance for d in found)
    keys = len({d.key for d in found})
    typer.echo(f"{keys} configurations, {len(found)} peaks compared: {outside} differ by more than {tolerance:.1%}")
    if outside:
        raise typer.Exit(1)


@app.command()
def card(corpus: Corpus = DEFAULT) -> None:
    """Write the data card, README.md, from the records."""
    (corpus / "README.md").write_text(data_card(store.read(corpus), corpus))
    typer.echo(f"wrote {corpus / 'README.md'}")


def _progress() -> Progress:
    """Return a bar on standard error, which is drawn on a terminal alone."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, disable=not console.is_terminal)


def _refuse(faults: list[str]) -> None:
    for fault in faults[:20]:
        typer.echo(fault, err=True)
    if faults:
        typer.echo(f"{len(faults)} faults", err=True)
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
