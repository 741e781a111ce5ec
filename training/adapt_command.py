"""`peakcast adapt`: mend a version for one more card, torch, allocator or precision with a few local records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.table import Table

from peakcast.client.commands.render import people_console
from peakcast.models.registry import PRETRAINED, Registry
from peakcast.training.commands import TABLE_COLUMNS, Cache, Jobs, Json, Root
from peakcast.training.finished import CACHE
from peakcast.training.stages import Stages


def adapt_command(
    records: Annotated[
        list[Path], typer.Option(help="Folder of local records, as a corpus or an export of the store. Repeat.")
    ],
    registry: Root = PRETRAINED,
    version: Annotated[str | None, typer.Option(help="The version to adapt (default: the one in use).")] = None,
    jobs: Jobs = 2,
    cache: Cache = CACHE,
    *,
    promote: Annotated[bool, typer.Option(help="Put the adapted version in use.")] = False,
    as_json: Json = False,
) -> None:
    """Adapt a version to where the records were measured; everywhere else it answers as before, to the byte."""
    from peakcast.models.predictor import Predictor
    from peakcast.training.adapt import adapted_version, out_of_fold_errors
    from peakcast.training.dataset import load_datasets

    known = Registry(registry)
    with Stages() as stages:
        stages("simulating the records")
        local = load_datasets(records, cache=cache, jobs=jobs, note=stages.note)
        folder = known.folder(version) if version else known.current()
        parent = Predictor.load(folder)
        stages(f"adapting {parent.version} to {len(local)} records of {len(set(local.architectures))} architectures")
        errors = out_of_fold_errors(parent, local)
        manifest = adapted_version(parent, local, folder, registry)
    if promote:
        known.promote(manifest.version)
    if as_json:
        rows = {name: {"n": n, "before_percent": b, "after_percent": a} for name, (n, b, a) in errors.items()}
        typer.echo(orjson.dumps({**manifest.model_dump(), "errors": rows, "promoted": promote}))
        return
    shown = Table("quantity", title="mean error on local architectures held out")
    for header in ("peaks", "before", "after"):
        shown.add_column(header, justify="right")
    for name, (count, before, after) in errors.items():
        shown.add_row(name, str(count), f"{before:.2f} %", f"{after:.2f} %")
    people_console(TABLE_COLUMNS).print(shown)
    in_use = "in use" if promote else f"not in use: peakcast models promote {manifest.version}"
    typer.echo(f"{manifest.version} in {registry / manifest.version}, {in_use}")
