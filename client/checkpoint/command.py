"""`peakcast checkpoint show|verify`: what a checkpoint holds, and whether it is whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.table import Table

from peakcast.client.checkpoint.faults import CheckpointError
from peakcast.client.checkpoint.manifest import Manifest, read_manifest
from peakcast.client.checkpoint.verification import verify
from peakcast.client.commands.options import JsonOption
from peakcast.client.commands.render import bytes_text, people_console

checkpoint_app = typer.Typer(help="Show and verify checkpoints.", no_args_is_help=True)
PathArgument = Annotated[Path, typer.Argument(metavar="PATH", help="Folder of the checkpoint.")]


@checkpoint_app.command("show")
def show_command(path: PathArgument, *, as_json: JsonOption = False) -> None:
    """Show what a checkpoint holds: plan, parts that run compiled, tensors. Reads the manifest alone."""
    manifest = read_manifest(path)
    if as_json:
        typer.echo(orjson.dumps(manifest.model_dump(by_alias=True), option=orjson.OPT_INDENT_2))
        return
    console = people_console()
    facts = Table(show_header=False, box=None)
    for fact, value in _facts(manifest).items():
        facts.add_row(fact, value)
    console.print(facts)
    tensors = Table("id", "name", "dtype", "shape", title="Tensors")
    for number, names in manifest.graph_signature.names.items():
        spec = manifest.graph_signature.tensors[names[0]]
        tensors.add_row(str(number), "\n= ".join(names), spec.dtype, str(spec.shape), end_section=False)
    console.print(tensors, markup=False)


@checkpoint_app.command("verify")
def verify_command(path: PathArgument, *, as_json: JsonOption = False) -> None:
    """Check that every file is there with the hash stated. Exits 1 where one is not."""
    faults = verify(path)
    if as_json:
        typer.echo(orjson.dumps({"whole": not faults, "faults": faults}))
        if faults:
            raise typer.Exit(1)
        return
    if faults:
        raise CheckpointError("; ".join(faults))
    manifest = read_manifest(path)
    typer.echo(f"{path} is whole: {len(manifest.files)} files, {bytes_text(_size_bytes(manifest))}")


def _facts(manifest: Manifest) -> dict[str, Any]:
    compiled = [name or "the model" for name, how in manifest.eager_fallback_map.items() if how == "compiled"]
    graph_id = manifest.graph_signature.graph_id
    optimizer = manifest.optimizer.kind if manifest.optimizer else "none"
    return {
        "plan": manifest.plan,
        "compiled": ", ".join(compiled) or "nothing",
        "optimizer": optimizer,
        "ranks": f"{manifest.world_size}, {'sharded' if manifest.sharded else 'whole tensors'}",
        "size": bytes_text(_size_bytes(manifest)),
        "graph id": graph_id[:12] if graph_id else "not given",
        "graph signature": manifest.graph_signature_sha256[:12],
        "fallback map": manifest.eager_fallback_map_sha256[:12],
        "written by": f"peakcast {manifest.peakcast}, torch {manifest.torch}",
    }


def _size_bytes(manifest: Manifest) -> int:
    return sum(file.size_bytes for file in manifest.files.values())
