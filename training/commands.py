"""`peakcast train`, `evaluate` and `models`, as functions for the command line to mount."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.table import Table

from peakcast.client.commands.render import people_console
from peakcast.models.registry import PRETRAINED, Registry
from peakcast.training.finished import CACHE
from peakcast.training.stages import Stages

Corpora = Annotated[
    list[Path],
    typer.Option(
        "--corpus", help="Folder with records.jsonl.xz and graphs/: a corpus, or an export of the store. Repeat."
    ),
]
Cache = Annotated[Path, typer.Option(help="Folder for what is simulated and finished; a killed command goes on there.")]
SettingsFile = Annotated[
    Path | None, typer.Option("--settings", help="Hyper-parameters, as `peakcast search` writes them.")
]
Seed = Annotated[int, typer.Option(help="Same corpus and seed, same model to the bit.")]
Jobs = Annotated[int, typer.Option(min=1, help="Processes to use.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document for machines in place of tables.")]
Root = Annotated[Path, typer.Option("--registry", help="Directory that holds the versions.")]

# Into a pipe: eleven columns, none of them wrapped.
TABLE_COLUMNS = 160

# Of a checkout; a wheel has no corpus.
DEFAULT_CORPORA = [Path("training/corpus")]

EXIT_NOT_PROMOTED = 4


def train_command(
    corpus: Corpora = DEFAULT_CORPORA,
    registry: Root = PRETRAINED,
    seed: Seed = 0,
    jobs: Jobs = 2,
    cache: Cache = CACHE,
    settings: SettingsFile = None,
    *,
    embedding: Annotated[
        bool, typer.Option(help="First learn the operators' vectors anew, into featurizer/op_embedding.json.")
    ] = False,
    promote: Annotated[bool, typer.Option(help="Put the new version in use, if the gate lets it.")] = False,
    force: Annotated[bool, typer.Option(help="Promote it whatever the gate says.")] = False,
    as_json: Json = False,
) -> None:
    """Fit the pair and write it as a new version. The same data and seed give the same version; a kill loses a step.

    Exit code 4: the gate found it worse than the version in use on the frozen test split, and it was not promoted.
    """
    from peakcast.training.retrain import Retraining

    work = Retraining(corpora=tuple(corpus), registry=registry, seed=seed, jobs=jobs, cache=cache, settings=settings)
    with Stages() as stages:
        done = work.run(stages, embedding=embedding)
    use = promote and (force or done.verdict.passes)
    if use:
        Registry(registry).promote(done.manifest.version)
    if as_json:
        gate = {**asdict(done.verdict), "passes": done.verdict.passes, "reason": done.verdict.reason}
        typer.echo(orjson.dumps({**done.manifest.model_dump(), "gate": gate, "promoted": use}))
    else:
        people_console(TABLE_COLUMNS).print(done.verdict.table())
        typer.echo(f"gate {done.verdict.reason}{done.verdict.note}")
        in_use = "in use" if use else f"not in use: peakcast models promote {done.manifest.version}"
        typer.echo(f"{done.manifest.version} in {registry / done.manifest.version}, {in_use}")
    if promote and not use:
        raise typer.Exit(EXIT_NOT_PROMOTED)


def evaluate_command(  # noqa: PLR0917 - typer passes options by name
    corpus: Corpora = DEFAULT_CORPORA,
    folds: Annotated[int, typer.Option(min=2, help="Folds over architectures.")] = 5,
    risk: Annotated[float, typer.Option(min=1e-6, max=0.5, help="Risk of the bound that is judged.")] = 0.05,
    seed: Seed = 0,
    jobs: Jobs = 2,
    cache: Cache = CACHE,
    settings: SettingsFile = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for ACCURACY.md, its JSON and plot.")
    ] = None,
    *,
    ablation: Annotated[bool, typer.Option(help="What each part of the pair is worth, on the same folds.")] = False,
    curve: Annotated[bool, typer.Option(help="Error against the number of architectures fitted on.")] = False,
    ranks: Annotated[bool, typer.Option(help="Models spread over GPUs, beside torch's own tracker.")] = False,
    as_json: Json = False,
) -> None:
    """Judge the pair on held-out architectures, beside the simulation alone and the 4 x weights rule.

    Grouped folds over all architectures but the frozen ones, and the frozen test split by itself.
    """
    from peakcast.training.judgement import Judgement

    work = Judgement(tuple(corpus), folds=folds, risk=risk, seed=seed, jobs=jobs, cache=cache, settings=settings)
    with Stages() as stages:
        if ablation:
            found, table = work.ablation(stages, output)
        elif curve:
            found, table = work.curve(stages, output)
        elif ranks:
            found, table = work.ranks(stages, output)
        else:
            found, table = work.accuracy(stages, output)
    if as_json:
        typer.echo(orjson.dumps(found))
    else:
        people_console(TABLE_COLUMNS).print(table)


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
