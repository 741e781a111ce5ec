"""`peakcast search`: tune the hyper-parameters, on this machine or on a Dask cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import orjson
import typer

from peakcast.training.commands import DEFAULT_CORPORA, Cache, Corpora, Jobs, Json, Seed
from peakcast.training.engines import Engine
from peakcast.training.finished import CACHE
from peakcast.training.stages import Stages


def search_command(  # noqa: PLR0917 - typer passes options by name
    corpus: Corpora = DEFAULT_CORPORA,
    trials: Annotated[
        int, typer.Option(min=1, help="Trials in all, those of earlier runs of the study among them.")
    ] = 20,
    width: Annotated[
        int, typer.Option(min=1, help="Trials side by side. The outcome depends on it, not on --jobs.")
    ] = 2,
    study: Annotated[Path, typer.Option(help="File of the study; a killed search goes on from it.")] = CACHE
    / "search.log",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the best settings, for `peakcast train --settings`.")
    ] = None,
    seed: Seed = 0,
    jobs: Jobs = 2,
    engine: Annotated[Engine, typer.Option(help="Where folds and trials run.")] = "processes",
    scheduler: Annotated[str | None, typer.Option(help="Address of the Dask scheduler: tcp://HOST:8786.")] = None,
    cache: Cache = CACHE,
    *,
    as_json: Json = False,
) -> None:
    """Tune the hyper-parameters on grouped folds; the frozen test split takes no part."""
    from peakcast.training.dataset import load_datasets
    from peakcast.training.engines import running_on
    from peakcast.training.fit_settings import FitSettings
    from peakcast.training.retrain import split_frozen
    from peakcast.training.search import SearchPlan, search, settings_document

    with Stages() as stages, running_on(engine, scheduler, jobs) as workers:
        stages("simulating the corpus")
        # Here: the corpus lies on this machine.
        data, _ = split_frozen(load_datasets(corpus, cache=cache, jobs=jobs, note=stages.note))
        plan = SearchPlan(study, trials, width, seed)
        found = search(data, plan, FitSettings(seed=seed), jobs=workers, told=stages)
    document = settings_document(found.settings)
    if output is not None:
        output.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
    if as_json:
        errors = {"error": found.error, "usual_error": found.usual_error, "trials": found.trials}
        typer.echo(orjson.dumps({**errors, "settings": document}))
    else:
        typer.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2))
        better = f"{100 * found.error:.3f} % against {100 * found.usual_error:.3f} % of the usual settings"
        typer.echo(f"best of {found.trials} trials: {better}, out of fold by architecture", err=True)
