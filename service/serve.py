"""`peakcast serve`: one uvicorn process on one socket, structured logs, graceful shutdown."""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path
from typing import Annotated, Any

import structlog
import typer
import uvicorn
from pydantic import ValidationError

from peakcast.service.app import create_app
from peakcast.service.logs import configure_logs
from peakcast.service.settings import Settings

log = structlog.get_logger("peakcast.service")


def serve_command(
    host: Annotated[str | None, typer.Option(help="Address to listen on. [PEAKCAST_HOST, 127.0.0.1]")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="TCP port; 0 takes a free one. [PEAKCAST_PORT, 8400]")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="Folder of a model artefact. [PEAKCAST_MODEL_PATH, the shipped one]")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            help="Where reported peaks are kept: sqlite:///FILE, postgresql://... or none. "
            "[PEAKCAST_STORE_URL, a file in PEAKCAST_STATE_DIR]"
        ),
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(help="json or console. [PEAKCAST_LOG_FORMAT; console on a terminal, else json]")
    ] = None,
) -> None:
    """Serve predictions over HTTP: POST /predict, POST /peaks, /health/live, /health/ready, /metrics, /docs.

    Every other setting is an environment variable PEAKCAST_...: see docs/SERVICE.md.
    """
    given: dict[str, Any] = {
        "host": host,
        "port": port,
        "model_path": model,
        "store_url": store,
        "log_format": log_format,
    }
    settings = read_settings({key: value for key, value in given.items() if value is not None})
    configure_logs(settings)
    raise typer.Exit(serve(settings))


def read_settings(given: dict[str, Any]) -> Settings:
    """Return the settings from options, then the environment.

    Raises:
        typer.BadParameter: naming the variable, what it holds and what it may be.
    """
    try:
        settings = Settings(**given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = "PEAKCAST_" + ".".join(str(part) for part in first["loc"]).upper()
        # Tokens, and the password that a store's URL may hold; what is checked together holds them all.
        is_secret = name.startswith(("PEAKCAST_TOKEN", "PEAKCAST_STORE_URL")) or not first["loc"]
        shown = "***" if is_secret else ascii(first["input"])[:80]
        problem = first["msg"].removeprefix("Value error, ")
        raise typer.BadParameter(f"{name}={shown}: {problem}; see docs/SERVICE.md") from None
    if "log_format" not in settings.model_fields_set and sys.stderr.isatty():
        settings = settings.model_copy(update={"log_format": "console"})
    return settings


def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit code: 1 where the model could not be loaded, else 0.

    Raises:
        OSError: if the address cannot be listened on.
    """
    failed = False

    def on_load_failure() -> None:
        nonlocal failed
        failed = True
        server.should_exit = True

    config = uvicorn.Config(
        create_app(settings, on_load_failure=on_load_failure),
        log_config=None,
        access_log=False,
        server_header=False,
        # A request line and headers together; nothing we are asked is longer.
        h11_max_incomplete_event_size=32 * 1024,
        http="h11",
        ws="none",
        timeout_graceful_shutdown=settings.shutdown_seconds,
        proxy_headers=False,
    )
    server = uvicorn.Server(config)
    listening = _listen(settings)
    host, port = listening.getsockname()[:2]
    log.info("listening", url=f"http://{f'[{host}]' if ':' in host else host}:{port}", workers=settings.workers)
    # uvicorn raises the signal again once it is down; a service that was asked to stop and did has not failed.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    server.run(sockets=[listening])
    log.info("stopped")
    return int(failed)


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # asyncio switches Nagle's delay off only where the protocol is named: without it each reply waits 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((settings.host, settings.port))
    except OSError as error:
        listening.close()
        reason = error.strerror or str(error)
        raise OSError(
            error.errno, f"cannot listen on {settings.host}:{settings.port} ({reason}): choose another --port or --host"
        ) from None
    listening.set_inheritable(True)
    return listening
