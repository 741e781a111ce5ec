"""The process that waits with torch imported, and captures what it is sent: `python -m ...capture_server MODULE...`.

The modules are those that the workload's classes are from: whatever is imported before the question takes no time then.

Frames on standard input and output: 8 bytes of length, then the bytes. A request is a JSON object, then a packed
workload; a reply is a JSON object, then a graph, empty where the capture failed. It ends with its input.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import struct
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from peakcast.featurizer.capture.worker import capture_here, prepare_host

LENGTH = struct.Struct("<Q")
_MOST_MESSAGE_CHARACTERS = 2000


def write_frame(stream: IO[bytes], data: bytes) -> None:
    """Write one frame."""
    stream.write(LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> bytes | None:
    """Return one frame, or None at the end of the stream."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    data = stream.read(length)
    return data if len(data) == length else None


def main(modules: Sequence[str]) -> int:
    """Get ready, say so, then capture until the input ends."""
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    # What the user's code prints goes to the log, not between the frames; and it has no input to wait for.
    os.dup2(2, 1)
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    traced_on = prepare_host(allow_cpu=True)
    _import_what_captures_need(modules)
    write_frame(replies, json.dumps({"traced_on": traced_on}).encode())
    while (header := read_frame(requests)) is not None:
        packed = read_frame(requests)
        if packed is None:
            break
        reply, graph = _answer(json.loads(header), packed, traced_on)
        write_frame(replies, json.dumps(reply).encode())
        write_frame(replies, graph)
    return 0


def _import_what_captures_need(modules: Sequence[str]) -> None:
    for module in (
        "torch._dynamo",
        "torch._inductor.compile_fx",
        "peakcast.client.guard.step_description",
        "peakcast.featurizer.capture.record",
    ):
        importlib.import_module(module)
    for module in modules:
        # What cannot be imported now is told when the workload needs it.
        with contextlib.suppress(Exception, SystemExit):
            importlib.import_module(module)
    gc.collect()
    gc.freeze()  # collections during a capture need not go through all that was imported


def _answer(request: dict[str, Any], packed: bytes, traced_on: str) -> tuple[dict[str, Any], bytes]:
    from peakcast.client.guard.step_description import assumed
    from peakcast.featurizer.capture.limits import one_message
    from peakcast.featurizer.capture.ship import unpack

    def shipped() -> Any:
        # Here the name means the parent's script.
        sys.modules["__main__"] = main = ModuleType("__main__")
        return unpack(packed, main)

    assumed.clear()
    try:
        graph = capture_here(shipped, request["plans"], traced_on).to_json()
    except BaseException as error:  # noqa: BLE001  (the parent must learn of everything, SystemExit of user code too)
        message = f"{type(error).__name__}: {one_message(error)}"[:_MOST_MESSAGE_CHARACTERS]
        return {"error": message, "traceback": traceback.format_exc()}, b""
    return {"assumed": list(assumed)}, graph


if __name__ == "__main__":
    exit_code = main(sys.argv[1:])
    # Past torch's teardown: with the fake device its autograd threads can abort a process that has done its work.
    os._exit(exit_code)
