"""Graph files: written, packed, damaged."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import pytest

from peakcast.client.graph_file import GraphFileError, read_graph, write_graph
from peakcast.featurizer.limits import SpecError
from peakcast.featurizer.spec import GraphSpec
from peakcast.service.examples import example_request


@pytest.fixture
def spec() -> GraphSpec:
    """Give a small captured graph."""
    return GraphSpec.from_json(example_request()["graph"])


@pytest.mark.parametrize("name", ["g.json", "g.json.gz", "g.json.xz"])
def test_what_is_written_is_read_back(tmp_path: Path, spec: GraphSpec, name: str) -> None:
    """However packed, the same graph comes back, and equal graphs give equal files."""
    path = tmp_path / name
    assert write_graph(path, spec) == path.stat().st_size
    assert read_graph(path) == spec
    first = path.read_bytes()
    write_graph(path, spec)
    assert path.read_bytes() == first
    assert list(tmp_path.iterdir()) == [path]


def test_the_packing_is_told_by_content_not_by_name(tmp_path: Path, spec: GraphSpec) -> None:
    """A renamed file is still read."""
    (tmp_path / "g.json").write_bytes(lzma.compress(spec.to_json()))
    assert read_graph(tmp_path / "g.json") == spec


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (gzip.compress(b"{}" * 1000)[:-9], "ends early"),
        (lzma.compress(b"{}")[:-9], "ends early"),
        (b"\x1f\x8b" + b"x" * 50, "is damaged"),
        (b"\xfd7zXZ\x00" + b"x" * 50, "is damaged"),
        (gzip.compress(b" " * ((64 << 20) + 1), 1), "unpacks to more than"),
    ],
    ids=["gzip cut", "xz cut", "gzip rubbish", "xz rubbish", "bomb"],
)
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    """Truncated, garbled and bomb files end in one error that names the file."""
    (tmp_path / "g.json").write_bytes(content)
    with pytest.raises(GraphFileError, match=said) as raised:
        read_graph(tmp_path / "g.json")
    assert str(tmp_path / "g.json") in str(raised.value)


def test_a_file_that_is_no_graph_or_not_there(tmp_path: Path) -> None:
    """A folder, nothing, and JSON of another kind."""
    with pytest.raises(GraphFileError, match="cannot read"):
        read_graph(tmp_path)
    with pytest.raises(GraphFileError, match="No such file"):
        read_graph(tmp_path / "missing.json")
    (tmp_path / "g.json").write_bytes(b"[]")
    with pytest.raises(GraphFileError, match=r"g\.json is no graph: \$") as raised:
        read_graph(tmp_path / "g.json")
    assert isinstance(raised.value.__cause__, SpecError)
