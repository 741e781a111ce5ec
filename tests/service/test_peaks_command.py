from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import Result
from reported import ROOM, new_peak
from typer.testing import CliRunner

from peakcast.cli import app
from peakcast.service.store.peak_store import PeakStore
from peakcast.training import corpus


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Give the URL of a store with two peaks accepted and one in quarantine."""
    name = f"sqlite:///{tmp_path / 'peaks.db'}"
    store = PeakStore.open(name)
    store.add(new_peak(key="accepted-a"), ROOM)
    store.add(new_peak(key="accepted-b", reporter="team-b", plan="inductor"), ROOM)
    odd = {"name": "[red]odd\x1b[31m", "total_bytes": 1 << 40}
    store.add(new_peak(key="doubtful-b", reporter="team-b", reason="twice what is simulated", device=odd), ROOM)
    store.close()
    return name


def run(*arguments: str) -> Result:
    """Run `peakcast peaks`."""
    return CliRunner().invoke(app, ["peaks", *arguments], env={"COLUMNS": "200"})


def answer(*arguments: str) -> Any:
    """Run it with --json, and return the document."""
    ran = run(*arguments, "--json")
    assert ran.exit_code == 0, ran.output
    return orjson.loads(ran.stdout)


def test_quarantine_is_listed_released_and_rejected(url: str) -> None:
    """What is in quarantine is shown with its reason; release and reject change what there is of each status."""
    listed = answer("list", "--store", url)
    assert listed["counts"] == {"accepted": 2, "quarantined": 1}
    assert [(peak["key"], peak["reason"]) for peak in listed["peaks"]] == [("doubtful-b", "twice what is simulated")]
    assert answer("release", "doubtful-b", "--store", url) == {"released": 1}
    assert answer("reject", "--reporter", "team-b", "--store", url) == {"rejected": 2}
    shown = answer("list", "--status", "all", "--reporter", "team-b", "--store", url)
    assert {peak["key"]: peak["status"] for peak in shown["peaks"]} == {
        "accepted-b": "rejected",
        "doubtful-b": "rejected",
    }
    assert shown["counts"] == {"accepted": 1, "rejected": 2}


def test_people_see_names_and_no_control_characters(url: str) -> None:
    """Tables show a stranger's text as text: no colours, no markup of theirs."""
    listed = run("list", "--store", url)
    assert listed.exit_code == 0
    assert "doubtful-b" in listed.stdout
    assert "[red]odd\\x1b[31m" in listed.stdout
    shown = run("show", "doubtful-b", "--store", url)
    assert "reason: twice what is simulated" in shown.stdout
    assert 'prior: {"steady_allocated":68354560}' in shown.stdout
    assert "\x1b[31m" not in listed.stdout + shown.stdout


def test_an_export_has_the_accepted_ones(url: str, tmp_path: Path) -> None:
    """The corpus has a record of each, under its reporter's name."""
    told = answer("export", "-o", str(tmp_path / "reported"), "--store", url)
    assert (told["records"], told["peaks"], told["graphs"]) == (2, 2, 1)
    records = corpus.read(tmp_path / "reported")
    assert [(record["key"], record["reporter"]) for record in records] == [
        ("reported|accepted-a", "team-a"),
        ("reported|accepted-b", "team-b"),
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["show", "no-such-key"], 1, "no peak has the key"),
        (["reject"], 2, "either keys or --reporter"),
        (["reject", "a-key", "--reporter", "team-a"], 2, "either keys or --reporter"),
        (["list", "--store", "mysql://user:secret@host/db"], 2, "PEAKCAST_STORE_URL"),
        (["list", "--store", "none"], 2, "there is no store"),
    ],
    ids=["unknown key", "nothing to reject", "both", "kind", "none"],
)
def test_wrong_use_is_said(url: str, arguments: list[str], code: int, says: str) -> None:
    """The exit code tells usage from failure, and no password is repeated."""
    given = arguments if "--store" in arguments else [*arguments, "--store", url]
    ran = run(*given)
    assert ran.exit_code == code
    assert says in ran.output
    assert "secret" not in ran.output
