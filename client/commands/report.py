"""`peakcast report`: send the reports that a training left behind."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import Annotated

import orjson
import typer

from peakcast.client.commands.options import JsonOption
from peakcast.client.http import endpoint_url
from peakcast.client.report.queue import ReportQueue
from peakcast.client.report.sender import Outcome, Sender


def report_command(
    flush: Annotated[Path, typer.Option(exists=True, dir_okay=False, help="Queue file of a training's reporter.")],
    server: Annotated[str, typer.Option(envvar="PEAKCAST_SERVER", help="URL of the service.")],
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for everything together.")] = 60.0,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Send the measured peaks that wait in a queue file. Exits with 1 where some are left.

    The token, where the service wants one, is read from PEAKCAST_TOKEN.
    """
    try:
        url = endpoint_url(server, "/peaks")
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--server") from None
    queue = ReportQueue(flush)
    counts, problem = _flush(Sender(queue, url, token=os.environ.get("PEAKCAST_TOKEN")), timeout)
    left = len(queue)
    if as_json:
        document = {"sent": counts[Outcome.SENT], "refused": counts[Outcome.REFUSED], "left": left, "problem": problem}
        typer.echo(orjson.dumps(document).decode())
    else:
        typer.echo(f"{counts[Outcome.SENT]} sent, {counts[Outcome.REFUSED]} refused, {left} left")
        if problem:
            typer.echo(problem, err=True)
    if left:
        raise typer.Exit(1)


def _flush(sender: Sender, timeout_s: float) -> tuple[Counter[Outcome], str]:
    """Send until nothing is left, the server does not answer, or the time is over. Returns the last problem too."""
    counts: Counter[Outcome] = Counter()
    last_problem = ""
    deadline_s = time.monotonic() + timeout_s
    while (left_s := deadline_s - time.monotonic()) > 0:
        outcome, problem = sender.send_one(left_s)
        counts[outcome] += 1
        last_problem = problem or last_problem
        if outcome in {Outcome.LATER, Outcome.NOTHING}:
            break
    return counts, last_problem
