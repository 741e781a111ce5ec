"""Capture of one rank of a distributed step: DDP, FSDP2 and tensor parallel, with nobody else in the process group."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from peakcast.featurizer.capture.isolated import CaptureError, capture_workload

HERE = Path(__file__).parent
# Six weights of 256 x 256 in fp32; AdamW holds two more of each; a batch of 8 x 256.
WEIGHTS_BYTES, INPUT_BYTES = 6 * 256 * 256 * 4, 8 * 256 * 4
WORKSPACES_BYTES = 64 << 20  # cuBLAS: one of the forward's thread, one of the backward's


def run(script: str, *arguments: str) -> list[dict[str, Any]]:
    """Run a script beside this file; return the JSON lines it prints."""
    command = [sys.executable, "-W", "ignore", str(HERE / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert found, done.stderr[-2000:]
    return found


@pytest.fixture(scope="module")
def eager() -> dict[str, dict[str, Any]]:
    """Capture the small model once in every way, under the eager plan."""
    return {found["way"]: found for found in run("distributed_steps.py", "eager")}


def test_ddp_keeps_a_copy_of_the_gradients_in_its_buckets(eager: dict[str, Any]) -> None:
    """Field report: one more copy of all gradients, alive from the start of the step."""
    assert eager["plain"]["bytes_at_start"] == 3 * WEIGHTS_BYTES + INPUT_BYTES
    assert eager["ddp"]["bytes_at_start"] == 4 * WEIGHTS_BYTES + INPUT_BYTES
    assert eager["ddp"]["steady_allocated_bytes"] == eager["plain"]["steady_allocated_bytes"] + WEIGHTS_BYTES


def test_gradients_that_are_views_of_the_buckets_cost_nothing_more(eager: dict[str, Any]) -> None:
    """With `gradient_as_bucket_view` the buckets are the gradients."""
    assert eager["ddp_view"]["bytes_at_start"] == 4 * WEIGHTS_BYTES + INPUT_BYTES
    assert eager["ddp_view"]["steady_allocated_bytes"] == eager["plain"]["steady_allocated_bytes"]


@pytest.mark.parametrize("way", ["fsdp2", "fsdp2_keep", "fsdp2_bf16", "tensor"])
def test_two_ranks_hold_half_of_the_weights_and_of_the_optimizer_state(eager: dict[str, Any], way: str) -> None:
    """Each rank of two holds half of what a single process does."""
    assert eager[way]["bytes_at_start"] == 3 * WEIGHTS_BYTES // 2 + INPUT_BYTES
    assert eager[way]["parameters_bytes"] == WEIGHTS_BYTES // 2


def test_gathered_weights_live_only_around_their_block(eager: dict[str, Any]) -> None:
    """FSDP2 frees a block's weights after its forward; told to keep them, it holds all three blocks'."""
    kept = eager["fsdp2_keep"]["steady_allocated_bytes"] - eager["fsdp2"]["steady_allocated_bytes"]
    assert 0 < kept <= WEIGHTS_BYTES // 3
    # Cast to half before they are gathered, a block's two weights take half as much: 2 x 256 x 256 x 2 bytes.
    assert max(eager["fsdp2_bf16"]["gathered"]) == WEIGHTS_BYTES // 3 // 2
    assert max(eager["fsdp2"]["gathered"]) == WEIGHTS_BYTES // 3


def test_offloaded_shards_are_not_on_the_card(eager: dict[str, Any]) -> None:
    """With CPU offload the step begins with its input alone."""
    assert eager["fsdp2_offload"]["bytes_at_start"] == INPUT_BYTES
    assert eager["fsdp2_offload"]["parameters_bytes"] == 0
    gathered = eager["fsdp2_offload"]["steady_allocated_bytes"] - WORKSPACES_BYTES
    assert WEIGHTS_BYTES // 3 < gathered < 2 * WEIGHTS_BYTES


def test_the_number_of_ranks_is_a_fact_of_graphs_with_collectives(eager: dict[str, Any]) -> None:
    """A graph says how many ranks it is of where it talks to others, and which collectives it uses."""
    assert eager["plain"]["world_size"] is None
    assert {found["world_size"] for way, found in eager.items() if way != "plain"} == {"2"}
    assert eager["fsdp2"]["collectives"] == ["c10d._allgather_base_.default", "c10d._reduce_scatter_base_.default"]
    assert eager["ddp"]["collectives"] == ["c10d.allreduce_.default"]


def test_each_collective_names_its_group(eager: dict[str, Any]) -> None:
    """One group, one communicator; none where nobody talks."""
    assert (eager["plain"]["groups"], eager["plain"]["communicators"]) == ([], 0)
    for way in ("ddp", "fsdp2", "tensor"):
        assert len(eager[way]["groups"]) == 1
        assert eager[way]["groups"][0].startswith("group=")
        assert eager[way]["communicators"] == 1


@pytest.mark.slow
def test_a_graph_break_inside_of_ddp() -> None:
    """What the second graph reads was made by the first one; both are split by buckets, here into one part each."""
    (found,) = run("distributed_steps.py", "inductor", "ddp_broken")
    assert found["regions"] >= 2
    assert found["bytes_at_start"] == 4 * WEIGHTS_BYTES + INPUT_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["inductor", "hybrid"])
def test_compiled_ranks_hold_the_same_shards(plan: str) -> None:
    """Compiling whole or block by block changes no shard and no bucket."""
    found = {one["way"]: one for one in run("distributed_steps.py", plan, "ddp", "fsdp2")}
    assert found["ddp"]["bytes_at_start"] == 4 * WEIGHTS_BYTES + INPUT_BYTES
    assert found["fsdp2"]["bytes_at_start"] == 3 * WEIGHTS_BYTES // 2 + INPUT_BYTES


@pytest.mark.parametrize(
    ("way", "ranks", "expected"),
    [
        # Four weights, their two moments, a bucket of their gradients; the process group says one rank.
        pytest.param(
            "ddp",
            "0",
            {"world_size": "1", "bytes_at_start": 4 * 4 * 256 * 256 * 4 + INPUT_BYTES, "casts": False},
            marks=pytest.mark.slow,
        ),
        # A quarter of the weights and moments, from a job of one rank.
        ("fsdp", "4", {"world_size": "4", "bytes_at_start": 3 * 256 * 256 * 4 + INPUT_BYTES, "casts": True}),
    ],
)
def test_a_wrapped_model_of_a_running_job(way: str, ranks: str, expected: dict[str, Any]) -> None:
    """A live DDP or FSDP2 model is captured as it was wrapped, for any number of ranks, and trains on untouched."""
    (found,) = run("live_ranks.py", way, ranks)
    assert found["goes_on"]
    assert {key: found[key] for key in expected} == expected


def test_a_workload_with_a_process_group_needs_its_size() -> None:
    """Without a number of ranks, a workload that would wait for peers is refused with what to say."""
    with pytest.raises(CaptureError, match="--world-size"):
        capture_workload(f"{HERE / 'workloads.py'}:among_ranks", plans=["eager"])
