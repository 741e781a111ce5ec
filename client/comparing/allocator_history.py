"""The allocator's history of one step as plain JSON, and the timeline in it.

`torch.cuda.memory._snapshot()` gives the history as Python objects, which torch's own tools pickle. A file from
somebody else is never unpickled here: histories travel as the JSON that `history_document` makes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from peakcast.client.comparing.timeline import Alive, Timeline

FORMAT: Final = "peakcast-allocator-history-1"
MAX_FILE_BYTES: Final = 256 << 20
_PICKLE_MAGIC: Final = b"\x80"
_BYTES = Field(ge=0, le=1 << 50)
_MACHINERY: Final = ("/torch/", "<", "??", "/peakcast/")


class HistoryError(ValueError):
    """A file that is no allocator history."""


class Block(BaseModel):
    """Memory that was allocated before the history begins."""

    model_config = ConfigDict(strict=True, extra="forbid")

    address: int = Field(ge=0)
    bytes: int = _BYTES
    line: str = ""


class Event(BaseModel):
    """One call of the allocator. `grow` and `shrink` are segments taken from the driver and given back."""

    model_config = ConfigDict(strict=True, extra="forbid")

    action: Literal["alloc", "free", "grow", "shrink"]
    address: int = Field(ge=0)
    bytes: int = _BYTES
    line: str = ""


class History(BaseModel):
    """One step on one device."""

    model_config = ConfigDict(strict=True, extra="forbid")

    format: Literal["peakcast-allocator-history-1"]
    device: str
    torch: str
    plan: str
    reserved_at_start_bytes: int = _BYTES
    live_at_start: list[Block] = Field(max_length=2_000_000)
    events: list[Event] = Field(max_length=5_000_000)


_Action = Literal["alloc", "free", "grow", "shrink"]

_ACTIONS: Final[dict[str, _Action]] = {
    "alloc": "alloc",
    "free_completed": "free",
    "segment_alloc": "grow",
    "segment_map": "grow",
    "segment_free": "shrink",
    "segment_unmap": "shrink",
}


def history_document(snapshot: Mapping[str, Any], *, device_index: int, device: str, torch: str, plan: str) -> History:
    """Turn `torch.cuda.memory._snapshot()` into a history. What lived at its start is what is freed or left unmade."""
    events = []
    for entry in snapshot["device_traces"][device_index]:
        action = _ACTIONS.get(entry["action"])
        if action is not None:
            line = _line(entry.get("frames", ()))
            events.append(Event(action=action, address=entry["addr"], bytes=entry["size"], line=line))
    blocks: dict[int, Block] = {}
    made: set[int] = set()
    for event in events:
        if event.action == "alloc":
            made.add(event.address)
        elif event.action == "free" and event.address not in made:
            blocks[event.address] = Block(address=event.address, bytes=event.bytes)
        elif event.action == "free":
            made.discard(event.address)
    segments = [each for each in snapshot["segments"] if each.get("device", device_index) == device_index]
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            at = block.get("address", address)
            if block["state"].startswith("active") and at not in made:
                blocks.setdefault(at, Block(address=at, bytes=block["size"], line=_line(block.get("frames", ()))))
            address += block["size"]
    change = sum(event.bytes * {"grow": 1, "shrink": -1}.get(event.action, 0) for event in events)
    reserved = sum(segment["total_size"] for segment in segments) - change
    return History(
        format=FORMAT,
        device=device,
        torch=torch,
        plan=plan,
        reserved_at_start_bytes=max(reserved, 0),
        live_at_start=list(blocks.values()),
        events=events,
    )


def _line(frames: Any) -> str:
    """Return `file:line` of the innermost frame that is the user's, else of the innermost one."""
    for frame in frames:
        name = str(frame["filename"])
        if name.endswith(".py") and not any(part in name for part in _MACHINERY):
            return f"{name}:{frame['line']}"
    return f"{frames[0]['filename']}:{frames[0]['line']}" if frames else ""


def read_history(path: Path) -> History:
    """Read a history.

    Raises:
        HistoryError: if the file cannot be read, is a pickle, is too large, or holds something else.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise HistoryError(f"{path} has more than {MAX_FILE_BYTES:,} bytes, which no history of a step has")
        content = path.read_bytes()
    except OSError as error:
        raise HistoryError(f"cannot read {path}: {error.strerror}") from None
    if content.startswith(_PICKLE_MAGIC):
        raise HistoryError(
            f"{path} is a pickle, which may run code when read: on the machine that made it, turn the snapshot into "
            "JSON with peakcast.client.comparing.allocator_history.history_document, or run peakcast explain --measure"
        )
    try:
        return History.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise HistoryError(f"{path} is no allocator history: {where or 'the document'}: {first['msg']}") from None


def measured_timeline(history: History) -> Timeline:
    """Follow the events of a history.

    Raises:
        HistoryError: if it holds no event, or frees what does not live.
    """
    if not history.events:
        raise HistoryError("the history holds no event: it was recorded around no step")
    live_bytes = _live_bytes(history)
    at_start = sum(block.bytes for block in history.live_at_start)
    peak_at = max(range(len(live_bytes)), key=live_bytes.__getitem__)
    peak_bytes = max(live_bytes[peak_at], at_start)
    reserved = most_reserved = history.reserved_at_start_bytes
    for event in history.events:
        reserved += {"grow": event.bytes, "shrink": -event.bytes}.get(event.action, 0)
        most_reserved = max(most_reserved, reserved)
    events = history.events[: peak_at + 1] if peak_bytes > at_start else []
    return Timeline(
        source="measured",
        live_bytes=tuple(live_bytes),
        peak_at=peak_at if events else 0,
        peak_bytes=peak_bytes,
        reserved_bytes=most_reserved,
        workspace_bytes=0,
        alive=_alive_after(history.live_at_start, events),
    )


def _live_bytes(history: History) -> list[int]:
    """Return the live bytes after each event."""
    sizes = {block.address: block.bytes for block in history.live_at_start}
    live, line = sum(sizes.values()), []
    for index, event in enumerate(history.events):
        if event.action == "alloc":
            sizes[event.address] = event.bytes
            live += event.bytes
        elif event.action == "free":
            if event.address not in sizes:
                raise HistoryError(f"event {index} frees {event.address:#x}, where nothing lives")
            live -= sizes.pop(event.address)
        line.append(live)
    return line


def _alive_after(blocks: Sequence[Block], events: Sequence[Event]) -> tuple[Alive, ...]:
    living = {block.address: Alive(block.bytes, "", "", "", block.line) for block in blocks}
    for event in events:
        if event.action == "alloc":
            living[event.address] = Alive(event.bytes, "", "", "", event.line)
        elif event.action == "free":
            del living[event.address]
    return tuple(sorted(living.values(), key=lambda tensor: -tensor.bytes))
