"""A collection measures each job once, keeps what is finished whatever is killed, and can go on where it stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from peakcast.training import journal
from peakcast.training.collection import collect, finished_keys
from peakcast.training.corpus import REPLAYED_RECORDS, write
from peakcast.training.jobs import Job, plan_jobs
from peakcast.training.measure_job import measure_job
from peakcast.training.schedule import Schedule
from peakcast.training.zoo import Case

HERE = Path(__file__).parent
MODELS = ("mlp4096", "gcn", "dlrm", "siren")
JOBS = [Job(Case(model, batch), "eager") for batch in (2, 3) for model in MODELS]


@pytest.fixture(autouse=True)
def _measuring_functions_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spawned workers take over this process's import path."""
    monkeypatch.syspath_prepend(str(HERE))


def records(out: Path) -> list[dict[str, object]]:
    """Read what a collection wrote."""
    return list(journal.read(out / "records.jsonl"))


def test_every_job_is_measured_once_by_several_workers(tmp_path: Path) -> None:
    """Eight jobs on two workers give eight records with the right content."""
    progress = collect(tmp_path, jobs=JOBS, workers=2, measuring="cpu_measuring:product_of_matrices")
    found = records(tmp_path)
    assert sorted(str(r["key"]) for r in found) == sorted(job.key for job in JOBS)
    assert {(r["case"]["batch"], r["measured"]["steady_allocated_bytes"]) for r in found} == {(2, 32), (3, 72)}  # type: ignore[index]
    assert (progress.measured, progress.failed, progress.left) == (8, 0, 0)
    assert os.getpid() not in {r["pid"] for r in found}


def test_a_second_collection_measures_only_what_is_missing(tmp_path: Path) -> None:
    """Keys that exist, in the folder or in another file, are skipped."""
    collect(tmp_path / "a", jobs=JOBS[:3], workers=1, measuring="cpu_measuring:product_of_matrices")
    progress = collect(
        tmp_path / "b",
        jobs=JOBS[:5],
        workers=1,
        measuring="cpu_measuring:product_of_matrices",
        done=[tmp_path / "a" / "records.jsonl"],
    )
    assert (progress.planned, progress.skipped, progress.measured) == (5, 3, 2)
    assert [r["key"] for r in records(tmp_path / "b")] == [job.key for job in JOBS[3:5]]


def test_a_failure_is_kept_as_what_it_is(tmp_path: Path) -> None:
    """An exception becomes a record with its type and place; the others are measured; retrying is asked for."""
    progress = collect(tmp_path, jobs=JOBS[:4], workers=1, measuring="cpu_measuring:fails_for_mlp4096")
    (failure,) = [r for r in records(tmp_path) if "error" in r]
    assert failure["error"] == "ZeroDivisionError: this model divides by zero"
    assert str(failure["where"]).startswith("cpu_measuring.py:")
    assert "measured" not in failure
    assert (progress.measured, progress.failed) == (3, 1)
    assert JOBS[0].key in finished_keys([tmp_path])
    assert JOBS[0].key not in finished_keys([tmp_path], retry_failed=True)


def test_a_worker_that_is_killed_is_replaced_and_its_job_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL in the middle of a job costs nothing but time."""
    monkeypatch.setenv("PEAKCAST_TEST_CRASHED_ONCE", str(tmp_path / "crashed"))
    progress = collect(tmp_path / "out", jobs=JOBS[:4], workers=1, measuring="cpu_measuring:kills_itself_once")
    assert sorted(str(r["key"]) for r in records(tmp_path / "out")) == sorted(job.key for job in JOBS[:4])
    assert (progress.measured, progress.failed, progress.crashed_workers) == (4, 0, 1)


def test_a_job_that_kills_two_workers_is_given_up(tmp_path: Path) -> None:
    """It is recorded as failed with the signal, and the jobs behind it run."""
    progress = collect(tmp_path, jobs=JOBS[:3], workers=1, measuring="cpu_measuring:always_kills_itself_for_mlp4096")
    (failure,) = [r for r in records(tmp_path) if "error" in r]
    assert failure["error"] == "worker died: signal 9"
    assert (progress.measured, progress.failed, progress.crashed_workers) == (2, 1, 2)


def test_a_job_that_hangs_is_killed_at_its_time_limit(tmp_path: Path) -> None:
    """It is tried once, recorded as failed, and the rest runs."""
    progress = collect(
        tmp_path, jobs=JOBS[:3], workers=1, measuring="cpu_measuring:hangs_for_mlp4096", record_timeout_seconds=3.0
    )
    (failure,) = [r for r in records(tmp_path) if "error" in r]
    assert failure["error"] == "no result within 3 s"
    assert (progress.measured, progress.crashed_workers) == (2, 1)


def test_running_out_beside_others_is_settled_alone(tmp_path: Path) -> None:
    """Out of memory on a shared card is no label: the job runs again with the card to itself, and that counts."""
    progress = collect(tmp_path, jobs=JOBS[:4], workers=2, measuring="cpu_measuring:runs_out_beside_others")
    found = records(tmp_path)
    assert len(found) == 4
    assert {(r["alone"], r["out_of_memory"]) for r in found} == {(True, False)}
    assert progress.out_of_memory == 0


def test_nothing_is_started_that_the_budget_cannot_hold(tmp_path: Path) -> None:
    """An eager job is expected to take longer than a budget of two seconds has left."""
    progress = collect(
        tmp_path, jobs=JOBS, workers=1, budget_seconds=2.0, measuring="cpu_measuring:product_of_matrices"
    )
    assert (progress.measured, progress.left) == (0, 8)


def test_killing_the_collection_itself_loses_no_finished_record(tmp_path: Path) -> None:
    """After SIGKILL of the parent its workers go too, every line in the file is whole, and a second run finishes."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "if __name__ == '__main__':\n"
        "    from pathlib import Path\n"
        "    from test_collect import JOBS\n"
        "    from peakcast.training.collection import collect\n"
        "    collect(Path(sys.argv[2]), jobs=JOBS, workers=2, measuring='cpu_measuring:takes_half_a_second')\n"
    )
    script = tmp_path / "run.py"
    script.write_text(code)
    out = tmp_path / "out"
    parent = subprocess.Popen([sys.executable, str(script), str(HERE), str(out)])
    while len(list(journal.read(out / "records.jsonl"))) < 3:
        assert parent.poll() is None, "the collection ended before it could be killed"
        time.sleep(0.05)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    kept = (out / "records.jsonl").read_text().splitlines()
    pids = {json.loads(line)["pid"] for line in kept}
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        time.sleep(0.05)
    assert len(kept) >= 3
    progress = collect(out, jobs=JOBS, workers=1, measuring="cpu_measuring:product_of_matrices")
    assert progress.skipped == len(list(journal.read(out))) - progress.measured
    assert sorted({str(r["key"]) for r in records(out)}) == sorted(job.key for job in JOBS)
    assert len(records(out)) == len(JOBS)


def test_a_torn_line_is_left_out_and_closed(tmp_path: Path) -> None:
    """What a kill tore apart is no record, and does not swallow the next one."""
    path = tmp_path / "records.jsonl"
    journal.append(path, {"key": "a"})
    with path.open("a") as file:
        file.write('{"key": "b", "meas')
    journal.append(path, {"key": "c"})
    assert [r["key"] for r in journal.read(path)] == ["a", "c"]


def test_jobs_come_in_a_sensible_order() -> None:
    """Each key once; known configurations first; every model eager before any new one is compiled."""
    jobs = plan_jobs()
    assert len({job.key for job in jobs}) == len(jobs)
    assert (jobs[0].case.model, jobs[0].plan) == ("resnet18", "eager")
    first_new_compile = next(i for i, job in enumerate(jobs) if job.plan == "inductor" and job.case.model == "siren")
    before = {job.case.model for job in jobs[:first_new_compile] if job.plan == "eager"}
    assert {"siren", "bart_small", "phi_small", "pvt_v2_b0"} <= before


def test_jobs_can_be_narrowed_to_models_and_plans() -> None:
    """Only what was asked for is planned; a model that does not exist is refused."""
    jobs = plan_jobs(["siren", "bart_small"], ["inductor"])
    assert {job.plan for job in jobs} == {"inductor"}
    assert {job.case.model for job in jobs} == {"siren", "bart_small"}
    with pytest.raises(KeyError, match="no model 'bert_large'"):
        plan_jobs(["bert_large"])


def test_workers_are_dealt_out_to_the_cards(tmp_path: Path) -> None:
    """Each worker sees one card, in turn, and jobs go to both; the parent's own view stays as it was."""
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    collect(tmp_path, jobs=JOBS, workers=2, measuring="cpu_measuring:visible_cards", cards=("4", "7"))
    assert {record["card"] for record in records(tmp_path)} == {"4", "7"}
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == before


def test_each_card_has_its_own_memory() -> None:
    """Two jobs that take a card each run side by side on two cards, and one after the other on one."""
    jobs = JOBS[:2]
    schedule = Schedule.of(jobs, memory_bytes=1)
    assert schedule.take(seconds_left=100, card="a") == jobs[0]
    assert schedule.take(seconds_left=100, card="a") is None
    assert schedule.take(seconds_left=100, card="b") == jobs[1]
    schedule.done(jobs[0])
    schedule.again(jobs[1].on_its_own())
    assert schedule.take(seconds_left=100, card="a") == jobs[1].on_its_own()


def test_records_of_a_corpus_count_as_measured(tmp_path: Path) -> None:
    """A corpus keeps its records compressed; what was replayed there is not measured."""
    (measured, replayed) = JOBS[:2]
    write(tmp_path, [{"key": measured.key, "source": "measured"}])
    write(tmp_path, [{"key": replayed.key, "source": "replayed"}], REPLAYED_RECORDS)
    assert finished_keys([tmp_path]) == {measured.key}


def test_the_allocator_is_part_of_a_record() -> None:
    """A job under other settings has another key, says so in its run, and is refused in a process without them."""
    job = JOBS[0].under("expandable_segments:True")
    assert job.key == JOBS[0].key.replace("|eager", "|expandable_segments:True|eager")
    assert Job.from_dict(job.to_dict()) == job
    assert job.case.run()["allocator"] == "expandable_segments:True"
    with pytest.raises(ValueError, match="'expandable_segments:True', here are ''"):
        measure_job(job.to_dict())
