"""Graph files: JSON, plain or packed by gzip or xz, told apart by their first bytes."""

from __future__ import annotations

import gzip
import lzma
import os
import tempfile
import zlib
from pathlib import Path
from typing import Final, Protocol

from peakcast.featurizer.limits import DEFAULT_LIMITS, SpecError
from peakcast.featurizer.spec import GraphSpec

_GZIP_MAGIC: Final = b"\x1f\x8b"
_XZ_MAGIC: Final = b"\xfd7zXZ\x00"
# A graph at the reader's limit, and room for one byte more to tell that it is beyond.
_LIMIT_BYTES: Final = DEFAULT_LIMITS.max_json_bytes


class GraphFileError(ValueError):
    """A file that is no graph: unreadable, damaged, or too large."""


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def read_graph(path: Path) -> GraphSpec:
    """Read a graph file.

    Raises:
        GraphFileError: if the file cannot be read or unpacked, unpacks to more than a graph can have, or its content is
            no GraphSpec; the SpecError is then the cause.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise GraphFileError(f"cannot read {path}: {error.strerror}") from None
    try:
        if content.startswith(_GZIP_MAGIC):
            content = _unpack(zlib.decompressobj(wbits=zlib.MAX_WBITS | 16), content, path)
        elif content.startswith(_XZ_MAGIC):
            content = _unpack(lzma.LZMADecompressor(lzma.FORMAT_XZ), content, path)
    except (zlib.error, lzma.LZMAError) as error:
        raise GraphFileError(f"{path} is damaged: {error}") from None
    try:
        return GraphSpec.from_json(content)
    except SpecError as error:
        raise GraphFileError(f"{path} is no graph: {error}") from error


def write_graph(path: Path, spec: GraphSpec) -> int:
    """Write a graph file, packed as its name ends (.gz, .xz); it appears whole or not at all. Returns its bytes."""
    content = spec.to_json()
    if path.suffix == ".gz":
        content = gzip.compress(content, mtime=0)
    elif path.suffix == ".xz":
        content = lzma.compress(content)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return len(content)


def _unpack(decompressor: _Decompressor, content: bytes, path: Path) -> bytes:
    unpacked = decompressor.decompress(content, _LIMIT_BYTES + 1)
    if len(unpacked) > _LIMIT_BYTES:
        raise GraphFileError(f"{path} unpacks to more than {_LIMIT_BYTES:,} bytes, which no graph has")
    if not decompressor.eof:
        raise GraphFileError(f"{path} is damaged: it ends early")
    return unpacked
