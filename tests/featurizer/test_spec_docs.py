"""docs/WIRE_FORMAT.md names every limit with its default, every error code, every column and every code table."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from peakcast.featurizer.limits import Limits, SpecErrorCode
from peakcast.featurizer.plans import ALLOWED_PLANS
from peakcast.featurizer.trace import Storages, Trace
from peakcast.featurizer.vocabulary import PHASES, ROLES


@pytest.fixture(scope="module")
def page(root: Path) -> str:
    """Give the text of the page."""
    return (root / "docs" / "WIRE_FORMAT.md").read_text()


def test_every_limit_stands_there_with_its_default(page: str) -> None:
    """The value in the table is the one in the code."""
    shown: dict[str, int] = {}
    for row in re.findall(r"^\| (`max_.*) \| ([0-9,^ ]+) \|$", page, re.MULTILINE):
        values = [int(value) if value.isdigit() else 2 ** int(value[2:]) for value in
                  (part.replace(",", "") for part in row[1].split(", "))]  # fmt: skip
        names = re.findall(r"`(max_\w+)`", row[0])
        shown |= dict(zip(names, values * len(names) if len(values) == 1 else values, strict=True))
    assert shown == {field.name: field.default for field in fields(Limits)}


def test_every_code_and_column_stands_there(page: str) -> None:
    """Error codes, columns, phases and roles are all named, with their numbers."""
    for name in (*get_args(SpecErrorCode), *Trace.__slots__, *Storages.__slots__):
        assert f"`{name}`" in page
    for table in (PHASES, ROLES):
        assert ", ".join(f"{number} {name}" for number, name in enumerate(table)) in page
    for plan in ALLOWED_PLANS:
        assert f"`{plan.replace('<0..1>', '0.5')}`" in page
