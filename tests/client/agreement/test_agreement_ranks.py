"""Four real processes of one process group agree on a plan: alive, late, killed, and with the store's host gone."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("agreeing_rank.py")
ALL = (0, 1, 2, 3)
Answers = dict[tuple[str, int], dict[str, Any]]


def _by_case(output: str) -> Answers:
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return {(line["case"], line["rank"]): line for line in lines}


@pytest.fixture(scope="module")
def alive(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """Give what each of four ranks under torchrun came to, where all of them live."""
    logs = tmp_path_factory.mktemp("logs")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    ran = subprocess.run(
        [*launch, "--log-dir", str(logs), "--redirects", "1", str(SCRIPT), "all_alive"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return _by_case("".join(path.read_text() for path in logs.rglob("stdout.log")))


@pytest.fixture(scope="module")
def dying() -> Answers:
    """Give what the ranks came to while one was killed, and while the host of the store hung and died."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "4"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), "some_die"],
            env={**os.environ, **group, "RANK": str(rank)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )
        for rank in ALL
    ]  # fmt: skip
    said = dict.fromkeys(ALL, "")

    def hear(case: str, *of: int) -> None:
        for rank in of:
            stdout = ranks[rank].stdout
            assert stdout is not None
            while f'"case": "{case}"' not in said[rank]:
                line = stdout.readline()
                assert line, said
                said[rank] += line

    def tell_both() -> None:
        for rank in (1, 2):
            stdin = ranks[rank].stdin
            assert stdin is not None
            stdin.write("\n")
            stdin.flush()

    try:
        hear("killed", 0, 1, 2)
        ranks[0].send_signal(signal.SIGSTOP)
        tell_both()
        hear("store hangs", 1, 2)
        ranks[0].kill()
        ranks[0].wait()
        tell_both()
        for rank in ALL:
            said[rank] += ranks[rank].communicate(timeout=60)[0]
        assert [rank.returncode for rank in ranks] == [-signal.SIGKILL, 0, 0, -signal.SIGKILL]
    finally:
        for each in ranks:
            each.kill()
            each.wait()
    return _by_case("".join(said.values()))


def _all(answers: Answers, case: str, field: str, ranks: tuple[int, ...] = ALL) -> list[Any]:
    return [answers[case, rank][field] for rank in ranks]


@pytest.mark.parametrize("case", ["alike", "after the late one"])
def test_ranks_alike_run_the_fastest_plan(alive: Answers, case: str) -> None:
    """Where inductor fits on all, all run it, nobody waits for the time-out and nobody is warned."""
    assert _all(alive, case, "plan") == ["inductor"] * 4
    assert _all(alive, case, "how") == ["sealed"] * 4
    assert _all(alive, case, "warned") == [[]] * 4
    # The 20 s of time-out are not waited for. The slowest start, or rank 3's 4 s of sleep, is.
    assert max(_all(alive, case, "elapsed_s")) < 12


def test_a_rank_with_less_memory_decides_for_all(alive: Answers) -> None:
    """With 750 bytes on rank 2, where inductor needs 900 and hybrid 800, all ranks run eager, without a warning."""
    assert _all(alive, "less memory", "plan") == ["eager"] * 4
    assert _all(alive, "less memory", "fits_here") == [True] * 4
    assert _all(alive, "less memory", "warned") == [[]] * 4
    assert all("inductor does not fit on rank 2" in reason for reason in _all(alive, "less memory", "reason"))


def test_a_rank_with_another_graph_is_named_to_all(alive: Answers) -> None:
    """Every rank learns that rank 1 compiles graph-b, and runs the common plan."""
    assert _all(alive, "another graph", "plan") == ["inductor"] * 4
    assert _all(alive, "another graph", "strangers") == [[[1, "graph-b"]]] * 4
    assert all("rank 1 compiles another graph, graph-b" in told for (told,) in _all(alive, "another graph", "warned"))


def test_nothing_runs_where_one_rank_fits_nothing(alive: Answers) -> None:
    """A rank with 100 bytes free makes all ranks refuse, and is named."""
    assert _all(alive, "nothing fits", "plan") == [None] * 4
    assert _all(alive, "nothing fits", "fits_here") == [False] * 4
    assert _all(alive, "nothing fits", "least") == ["eager:checkpoint"] * 4
    assert all("does not fit on rank 3" in reason for reason in _all(alive, "nothing fits", "reason"))


def test_a_late_rank_adopts_what_was_sealed_without_it(alive: Answers) -> None:
    """The others give up after 2 s and take the leanest plan; rank 3, after 4 s, takes the same without waiting."""
    assert _all(alive, "late", "plan") == ["eager:checkpoint"] * 4
    assert _all(alive, "late", "how") == ["sealed"] * 3 + ["late"]
    assert _all(alive, "late", "missing") == [[3], [3], [3], []]
    assert 1.9 < max(_all(alive, "late", "elapsed_s", (0, 1, 2))) < 4.5
    assert alive["late", 3]["elapsed_s"] < 5
    assert ["rank 3 did not answer in time" in told for (told,) in _all(alive, "late", "warned", (0, 1, 2))] == [
        True
    ] * 3
    assert "rank 3 came late" in alive["late", 3]["warned"][0]


def test_a_killed_rank_costs_its_time_out_and_is_named(dying: Answers) -> None:
    """After SIGKILL of rank 3 the others agree on the leanest plan once their two seconds are over."""
    left = (0, 1, 2)
    assert _all(dying, "alike", "plan") == ["inductor"] * 4
    assert _all(dying, "killed", "plan", left) == ["eager:checkpoint"] * 3
    assert _all(dying, "killed", "missing", left) == [[3]] * 3
    assert all(elapsed_s < 4.5 for elapsed_s in _all(dying, "killed", "elapsed_s", left))
    assert all("rank 3 did not answer in time" in told for (told,) in _all(dying, "killed", "warned", left))


@pytest.mark.parametrize("case", ["store hangs", "store dead"])
def test_without_the_store_each_rank_takes_its_leanest_plan_in_bounded_time(dying: Answers, case: str) -> None:
    """A store whose host is stopped (answers nothing) or killed ends in the same careful plan, and in a warning."""
    left = (1, 2)
    assert _all(dying, case, "plan", left) == ["eager:checkpoint"] * 2
    assert _all(dying, case, "how", left) == ["alone"] * 2
    # 1 s of time-out, 2 s of grace, and what a busy machine adds.
    assert all(elapsed_s < 4.5 for elapsed_s in _all(dying, case, "elapsed_s", left))
    assert all("decides without the others" in told for (told,) in _all(dying, case, "warned", left))
