"""A file of JSON lines that several processes append to, and that loses nothing finished when one is killed."""

from __future__ import annotations

import fcntl
import json
import lzma
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Append one record and wait until it is on the disk. A line torn by an earlier kill is closed first."""
    line = json.dumps(record, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
            if file.read(1) != b"\n":
                line = b"\n" + line
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Give the records of a file, or of every one of a folder; lines that a kill tore apart are left out.

    A corpus keeps its records compressed: `*.jsonl.xz`.
    """
    files = sorted(path.glob("*.jsonl*")) if path.is_dir() else [path] if path.exists() else []
    for file in files:
        with lzma.open(file) if file.suffix == ".xz" else file.open("rb") as lines:
            for line in lines:
                try:
                    record = json.loads(line)
                except ValueError:
                    continue
                if isinstance(record, dict):
                    yield record
