"""The command line: mounts commands that live in the folders, each imported only when it is called."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any, Final, NamedTuple

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup

from peakcast._version import __version__


class _Home(NamedTuple):
    module: str
    attribute: str
    help: str


# Imported on call, so that `peakcast --help` takes no torch, LightGBM or FastAPI, and none needs to be installed.
_COMMANDS: Final = {
    "capture": _Home("peakcast.client.commands.capture", "capture_command", "Capture a workload's graph. Runs no step."),
    "predict": _Home("peakcast.client.commands.predict", "predict_command", "Predict the peaks of a graph or workload."),
    "explain": _Home("peakcast.client.commands.explain", "explain_command", "Show which tensors make a step's peak."),
    "replay": _Home("peakcast.client.commands.replay", "replay_command", "Replay the compiler's plan, without a GPU."),
    "compare": _Home("peakcast.client.commands.compare", "compare_command", "Run eager beside compiled on a GPU."),
    "watch": _Home("peakcast.client.commands.watch", "watch_app", "Run a script and report what it recompiles."),
    "checkpoint": _Home("peakcast.client.checkpoint.command", "checkpoint_app", "Show and verify checkpoints."),
    "serve": _Home("peakcast.service.serve", "serve_command", "Serve predictions over HTTP."),
    "peaks": _Home("peakcast.service.peaks_command", "peaks_app", "Review and export the peaks that were reported."),
    "report": _Home("peakcast.client.commands.report", "report_command", "Send peaks that a training left behind."),
    "collect": _Home("peakcast.training.collect", "collect_command", "Measure peaks on a GPU."),
    "train": _Home("peakcast.training.commands", "train_command", "Fit the predictor on a corpus."),
    "evaluate": _Home("peakcast.training.commands", "evaluate_command", "Judge it on architectures it never saw."),
    "search": _Home("peakcast.training.search_command", "search_command", "Tune the hyper-parameters."),
    "adapt": _Home("peakcast.training.adapt_command", "adapt_command", "Adapt it with a few local records."),
    "models": _Home("peakcast.training.commands", "models_app", "List, show, promote and roll back versions."),
}

# Which extra brings a module that is not installed.
_EXTRAS: Final = {
    **dict.fromkeys(("alembic", "cachetools", "fastapi", "sqlalchemy", "starlette", "uvicorn"), "serve"),
    **dict.fromkeys(("joblib", "lightgbm", "matplotlib", "optuna", "scipy", "sklearn"), "train"),
    **dict.fromkeys(("dask", "distributed"), "dask"),
    **dict.fromkeys(("timm", "torchvision", "transformers"), "zoo"),
}


class _Lazy(TyperGroup):
    """Lists commands by their one line of help, and imports the one that is called."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, home in _COMMANDS.items():
            self.add_command(TyperCommand(name, help=home.help), name)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if name in _COMMANDS else command, rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            _fail(ctx, error, _what_to_install(error))
        except Exception as error:
            # Ours and the system's say what was wrong in words; anything else is a bug, whose traceback is wanted.
            if isinstance(error, OSError) or type(error).__module__.startswith("peakcast."):
                _fail(ctx, error, str(error))
            raise


def load_command(name: str) -> Any:
    """Import a command and return it with its options."""
    home = _COMMANDS[name]
    found = getattr(import_module(home.module), home.attribute)
    if not isinstance(found, typer.Typer):
        single = typer.Typer(add_completion=False)
        single.command(name)(found)
        found = single
    return typer.main.get_command(found)


def _what_to_install(error: ModuleNotFoundError) -> str:
    missing = (error.name or "").partition(".")[0]
    if missing == "torch":
        return "capturing a graph needs PyTorch 2.11 or newer: install torch beside peakcast"
    if missing in _EXTRAS:
        return f"this needs {missing}: pip install 'peakcast[{_EXTRAS[missing]}]'"
    if missing == "peakcast":
        raise error
    return f"no module named {error.name!r} is installed"


def _fail(ctx: Any, error: Exception, message: str) -> None:
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    if ctx.params.get("traceback"):
        console.print(escape(getattr(error, "details", "")) or "")
        raise error
    console.print(f"[bold red]error:[/] {escape(message)}")
    if getattr(error, "details", ""):
        console.print("[dim]the whole traceback: peakcast --traceback ...[/]")
    raise typer.Exit(1)


def _print_version(asked: bool) -> None:  # noqa: FBT001 - typer calls it so
    if asked:
        typer.echo(f"peakcast {__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=_Lazy,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show where an error came from.")] = False,
) -> None:
    """Predict the peak GPU memory of a PyTorch step from its graph, before anything is compiled.

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 nothing fits the card, 4 the gate let no version through.
    """
