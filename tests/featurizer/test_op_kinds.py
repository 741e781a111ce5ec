"""The table of operator kinds covers what compilers were seen to lower, and is what torch's own tables say."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import orjson
import pytest

from peakcast.featurizer.op_kinds import OpKind, is_known, op_kind, stem


@pytest.mark.parametrize(
    ("op", "name"),
    [
        ("aten.mm.default", "mm"),
        ("aten.add_.Tensor", "add"),
        ("aten.__and__.Tensor", "__and__"),
        ("aten._softmax.default", "_softmax"),
        ("prims.convert_element_type.default", "convert_element_type"),
        ("higher_order.cond", "cond"),
        ("mylib::scan", "mylib::scan"),
        ("", ""),
    ],
)
def test_a_stem_is_the_bare_name(op: str, name: str) -> None:
    """Namespace, overload and the mark of writing in place go."""
    assert stem(op) == name


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        ("aten.mm.default", OpKind.EXTERN),
        ("aten.convolution_backward.default", OpKind.EXTERN),
        ("aten._scaled_dot_product_efficient_attention.default", OpKind.EXTERN),
        ("aten.sort.default", OpKind.EXTERN),
        ("aten.gelu.default", OpKind.POINTWISE),
        ("aten.add_.Tensor", OpKind.POINTWISE),
        ("prims.convert_element_type.default", OpKind.POINTWISE),
        ("aten.embedding.default", OpKind.POINTWISE),
        ("aten.var_mean.correction", OpKind.REDUCTION),
        ("aten.index_put_.default", OpKind.SCATTER),
        ("prims._low_memory_max_pool_with_offsets.default", OpKind.WINDOW),
        ("aten.cat.default", OpKind.CONCAT),
        ("mylib.scan.default", OpKind.EXTERN),
        ("aten.no_such_operator.default", OpKind.EXTERN),
    ],
)
def test_kinds(op: str, kind: OpKind) -> None:
    """One of each kind; an operator that is not known has everything in memory."""
    assert op_kind(op) is kind


def test_only_names_in_the_table_are_known() -> None:
    """A library's own operator is extern, yet not known."""
    assert is_known("aten.mm.default")
    assert not is_known("mylib.scan.default")


def test_no_operator_has_two_kinds(root: Path) -> None:
    """Each name stands in the file once, under a kind that exists."""
    table = json.loads((root / "featurizer" / "op_kinds.json").read_text())
    assert set(table) == {kind.name.lower() for kind in OpKind}
    names = [name for kind in table.values() for name in kind]
    assert len(names) == len(set(names))


def test_every_operator_compiled_in_the_corpus_is_known(root: Path) -> None:
    """An operator that a region of the shipped graphs holds is in the table, so that its kind was decided."""
    compiled: set[str] = set()
    for path in sorted((root / "training" / "corpus" / "graphs").glob("*.json.xz")):
        document = orjson.loads(lzma.decompress(path.read_bytes()))
        for trace in document["traces"].values():
            regions = trace.get("region", ())
            codes = {op for op, region in zip(trace["op"], regions, strict=False) if region >= 0}
            compiled |= {document["ops"][code] for code in codes}
    unknown = {op for op in compiled if not is_known(op)}
    assert len(compiled) > 50
    assert unknown == set()


@pytest.mark.slow
def test_the_file_is_what_the_installed_torch_says(root: Path, tmp_path: Path) -> None:
    """Made anew from torch's tags and inductor's tables, the file is the same byte for byte."""
    torch = pytest.importorskip("torch")
    if not torch.__version__.startswith("2.13."):
        pytest.skip(f"the shipped table is torch 2.13's, installed is {torch.__version__}")
    from peakcast.training.op_kinds import main

    main(tmp_path / "op_kinds.json")
    assert (tmp_path / "op_kinds.json").read_bytes() == (root / "featurizer" / "op_kinds.json").read_bytes()
