"""`peakcast watch`: run a training script and report what it recompiled, why, and what that left behind."""

from __future__ import annotations

import contextlib
import runpy
import sys
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.markup import escape

watch_app = typer.Typer(add_completion=False)


@watch_app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def watch_command(
    script: Annotated[Path, typer.Argument(help="Python script, run as python would.", dir_okay=False)],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGS...", help="Its own arguments.")] = None,
    *,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the report there too, as JSON.")] = None,
    recompile_limit: Annotated[
        int | None, typer.Option(min=1, help="Graphs of one function after which it goes on eager. Default: torch's.")
    ] = None,
    capture_limit: Annotated[
        int | None, typer.Option(min=0, help="Sizes of which CUDA graphs are captured. Default: all.")
    ] = None,
) -> None:
    """Run a script under the recompile watch; the report goes to stderr. A step ends with each step of an optimizer.

    Bytes alive are told where there is a GPU. Options of the watch stand before the script.
    """
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from peakcast.client.recompiles.watch import RecompileWatch

    if not script.is_file():
        raise typer.BadParameter(f"no such file: {script}", param_hint="SCRIPT")
    if output is not None and not output.parent.is_dir():
        raise typer.BadParameter(f"no folder {output.parent}: make it first", param_hint="--output")
    watch = RecompileWatch(recompile_limit=recompile_limit, capture_limit=capture_limit)
    hook = register_optimizer_step_post_hook(lambda *_: watch.step())
    before = sys.argv, list(sys.path)
    sys.argv = [str(script), *(arguments or ())]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        with watch, contextlib.ExitStack() as ending:
            # Whether the script ends well, by sys.exit or by an error: the report is told, and then that.
            ending.callback(_tell, watch, output)
            runpy.run_path(str(script), run_name="__main__")
    finally:
        hook.remove()
        sys.argv, sys.path[:] = before


def _tell(watch: object, output: Path | None) -> None:
    from peakcast.client.recompiles.watch import RecompileWatch

    assert isinstance(watch, RecompileWatch)
    report = watch.report()
    Console(stderr=True, soft_wrap=True, highlight=False).print(escape(str(report)))
    if output is not None:
        output.write_bytes(orjson.dumps(report.to_dict(), option=orjson.OPT_INDENT_2))
