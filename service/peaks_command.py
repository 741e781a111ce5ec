"""`peakcast peaks`: look at reported peaks, settle those in quarantine, export the accepted ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.markup import escape
from rich.table import Table

from peakcast.client.commands.options import JsonOption
from peakcast.client.commands.render import people_console
from peakcast.service.serve import read_settings
from peakcast.service.store.errors import StoreError
from peakcast.service.store.export import export
from peakcast.service.store.peak_store import PeakStore
from peakcast.service.store.review import Review
from peakcast.service.store.tables import Peak

peaks_app = typer.Typer(help="Look at reported peaks, settle those in quarantine, export them.", no_args_is_help=True)

StoreOption = Annotated[
    str | None,
    typer.Option("--store", help="sqlite:///FILE or postgresql://... [PEAKCAST_STORE_URL, the service's default]"),
]
Keys = Annotated[list[str], typer.Argument(help="Keys of peaks.")]
ReporterOption = Annotated[str | None, typer.Option(help="Only those of one reporter.")]

# Off a terminal: reasons are long.
_PIPED_COLUMNS = 160


class Status(StrEnum):
    """What became of a peak."""

    ACCEPTED = "accepted"
    QUARANTINED = "quarantined"
    REJECTED = "rejected"
    ALL = "all"


@peaks_app.command("list")
def list_command(
    store: StoreOption = None,
    status: Annotated[Status, typer.Option(help="Which peaks.")] = Status.QUARANTINED,
    reporter: ReporterOption = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, newest first.")] = 100,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """List peaks, newest first: those in quarantine unless --status says otherwise."""
    with _opened(store) as opened:
        review = Review(opened)
        found = review.peaks(status=None if status is Status.ALL else status.value, reporter=reporter, limit=limit)
        counts = review.counts()
    if as_json:
        _print_json({"counts": counts, "peaks": [_fields(peak) for peak in found]})
        return
    table = Table("key", "reporter", "plan", "device", "status", "reason", title_justify="left")
    for peak in found:
        shown = (peak.key, peak.reporter, peak.plan, ascii(peak.device["name"])[1:-1], peak.status, peak.reason)
        table.add_row(*map(escape, shown))
    people_console(_PIPED_COLUMNS).print(table)
    typer.echo(", ".join(f"{count} {name}" for name, count in counts.items()) or "the store is empty")


@peaks_app.command("show")
def show_command(
    key: Annotated[str, typer.Argument(help="Key of a peak.")],
    store: StoreOption = None,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Show everything about one peak, simulated bytes beside those reported."""
    with _opened(store) as opened:
        peak = Review(opened).peak(key)
    if peak is None:
        raise StoreError(f"no peak has the key {key!r}: peakcast peaks list --status all shows them")
    if as_json:
        _print_json(_fields(peak))
        return
    for name, value in _fields(peak).items():
        text = orjson.dumps(value).decode() if isinstance(value, dict) else ascii(value).strip("'")
        typer.echo(f"{name}: {text}")


@peaks_app.command("release")
def release_command(keys: Keys, store: StoreOption = None, as_json: JsonOption = False) -> None:  # noqa: FBT002
    """Accept peaks that were in quarantine: the next export has them."""
    with _opened(store) as opened:
        _print_changed("released", Review(opened).release(keys), as_json=as_json)


@peaks_app.command("reject")
def reject_command(
    keys: Annotated[list[str] | None, typer.Argument(help="Keys of peaks.")] = None,
    store: StoreOption = None,
    reporter: Annotated[str | None, typer.Option(help="All peaks of a reporter, accepted ones too.")] = None,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Take peaks out for good, by key or all of one reporter. Their keys stay known, so they cannot come again."""
    if bool(keys) == (reporter is not None):
        raise typer.BadParameter("give either keys or --reporter")
    with _opened(store) as opened:
        _print_changed("rejected", Review(opened).reject(keys or (), reporter=reporter), as_json=as_json)


@peaks_app.command("export")
def export_command(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write; a new one, or an earlier export.")],
    store: StoreOption = None,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Write the accepted peaks as a corpus that `peakcast train` reads."""
    with _opened(store) as opened:
        exported = export(opened, output)
    if as_json:
        _print_json(asdict(exported))
        return
    typer.echo(
        f"{exported.records} records of {exported.peaks} peaks, {exported.graphs} graphs of "
        f"{exported.architectures} architectures in {output}"
    )


@contextmanager
def _opened(url: str | None) -> Iterator[PeakStore]:
    settings = read_settings({} if url is None else {"store_url": url})
    resolved = settings.resolved_store_url()
    if resolved is None:
        raise typer.BadParameter("there is no store: PEAKCAST_STORE_URL is none", param_hint="--store")
    opened = PeakStore.open(resolved, timeout_s=settings.store_timeout_seconds)
    try:
        yield opened
    finally:
        opened.close()


def _fields(peak: Peak) -> dict[str, Any]:
    return {column.key: getattr(peak, column.key) for column in Peak.__table__.columns if column.key != "id"}


def _print_changed(what: str, count: int, *, as_json: bool) -> None:
    if as_json:
        _print_json({what: count})
    else:
        typer.echo(f"{count} peaks {what}")


def _print_json(document: object) -> None:
    typer.echo(orjson.dumps(document).decode())
