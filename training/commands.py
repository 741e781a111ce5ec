"""`peakcast train`, `evaluate` and `models`, as functions for the command line to mount."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.table import Table

from peakcast.client.render import people_console
from peakcast.models.registry import PRETRAINED, Registry
from peakcast.training.stages import Stages

Corpus = Annotated[Path, typer.Option(help="Folder of the corpus: records.jsonl.xz and graphs/.")]
Seed = Annotated[int, typer.Option(help="Same corpus and seed, same model to the bit.")]
Jobs = Annotated[int, typer.Option(min=1, help="Processes to use.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document for machines in place of tables.")]
Root = Annotated[Path, typer.Option("--registry", help="Directory that holds the versions.")]

# Into a pipe: eleven columns, none of them wrapped.
TABLE_COLUMNS = 160

# Of a checkout; a wheel has no corpus.
DEFAULT_CORPUS = Path("training/corpus")


def train_command(
    corpus: Corpus = DEFAULT_CORPUS,
    registry: Root = PRETRAINED,
    seed: Seed = 0,
    jobs: Jobs = 2,
    *,
    promote: Annotated[bool, typer.Option(help="Put the new version in use.")] = False,
    as_json: Json = False,
) -> None:
    """Fit the pair on a corpus and write it as a new version."""
    from peakcast.training.dataset import load_dataset
    from peakcast.training.fit import fit_pair, save_pair
    from peakcast.training.fit_settings import FitSettings

    settings = FitSettings(seed=seed)
    with Stages() as stages:
        stages("simulating the corpus")
        data = load_dataset(corpus, jobs=jobs, note=stages.note)
        what = f"fitting {len(data)} records of {len(set(data.architectures))} architectures"
        predictor = fit_pair(data, settings, stage=lambda part: stages(f"{what}: {part}"))
        manifest = save_pair(predictor, data, settings, registry)
    if promote:
        Registry(registry).promote(manifest.version)
    if as_json:
        typer.echo(orjson.dumps(manifest.model_dump()))
    else:
        in_use = "in use" if promote else f"not in use yet: peakcast models promote {manifest.version}"
        typer.echo(f"{manifest.version} in {registry / manifest.version}, {in_use}")


def evaluate_command(
    corpus: Corpus = DEFAULT_CORPUS,
    folds: Annotated[int, typer.Option(min=2, help="Folds over architectures.")] = 5,
    risk: Annotated[float, typer.Option(min=1e-6, max=0.5, help="Risk of the bound that is judged.")] = 0.05,
    seed: Seed = 0,
    jobs: Jobs = 2,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for ACCURACY.md, its JSON and plot.")
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """Judge the pair on held-out architectures, beside the simulation alone and the 4 x weights rule."""
    from peakcast.training.dataset import load_dataset
    from peakcast.training.evaluate import cross_validate, summary
    from peakcast.training.fit_settings import FitSettings
    from peakcast.training.report import print_table, write_report

    with Stages() as stages:
        stages("simulating the corpus")
        data = load_dataset(corpus, jobs=jobs, note=stages.note)
        stages(f"refitting the pair {folds} times on {len(data)} records")
        held = cross_validate(data, folds=folds, risk=risk, settings=FitSettings(seed=seed), jobs=jobs)
    found = write_report(held, output) if output is not None else summary(held)
    if as_json:
        typer.echo(orjson.dumps(found))
    else:
        print_table(people_console(TABLE_COLUMNS), found)


models_app = typer.Typer(help="The versions of the pair.", no_args_is_help=True)


@models_app.command("list")
def list_command(registry: Root = PRETRAINED, *, as_json: Json = False) -> None:
    """List the versions there are."""
    known = Registry(registry)
    in_use = next(iter(known.history()), "")
    manifests = known.versions()
    for fault in known.faults():
        typer.echo(f"left out: {fault}", err=True)
    if as_json:
        rows = [{"version": m.version, "created": m.created, "in_use": m.version == in_use} for m in manifests]
        typer.echo(orjson.dumps(rows))
        return
    shown = Table("version", "created", "code", "seed", "in use")
    for manifest in manifests:
        mark = "yes" if manifest.version == in_use else ""
        shown.add_row(manifest.version, manifest.created, manifest.code_version, str(manifest.seed), mark)
    people_console().print(shown)


@models_app.command("show")
def show_command(
    version: Annotated[str | None, typer.Argument(help="Default: the version in use.")] = None,
    registry: Root = PRETRAINED,
) -> None:
    """Show a version's manifest, what it covers and how it corrects, after checking its files. JSON."""
    from peakcast.models.artefact import read_artefact
    from peakcast.models.predictor import Predictor

    known = Registry(registry)
    folder = known.folder(version) if version else known.current()
    manifest, files = read_artefact(folder)
    predictor = Predictor.from_files(manifest.version, files)
    document = {
        "manifest": manifest.model_dump(),
        "coverage": predictor.coverage.to_dict(),
        "shrinkage": {name: asdict(shrink) for name, shrink in predictor.blend.shrinks.items()},
        "speeds": predictor.speeds,
    }
    typer.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2))


@models_app.command("promote")
def promote_command(version: str, registry: Root = PRETRAINED) -> None:
    """Put a version in use after checking its files."""
    typer.echo(f"{Registry(registry).promote(version).version} in use")


@models_app.command("rollback")
def rollback_command(registry: Root = PRETRAINED) -> None:
    """Put the version before the current one in use again."""
    typer.echo(f"{Registry(registry).rollback().version} in use")
