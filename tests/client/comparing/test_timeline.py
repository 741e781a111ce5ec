"""A measured step is followed call by call, and set against the simulated one tensor by tensor."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from handmade import MIB, Sketch

from peakcast.client.commands.timeline_tables import difference_text
from peakcast.client.comparing.allocator_history import (
    HistoryError,
    history_document,
    measured_timeline,
    read_history,
)
from peakcast.client.comparing.timeline import Alive, Timeline, difference, simulated_timeline, thinned
from peakcast.featurizer.run import DeviceSpec, RunSpec
from peakcast.featurizer.vocabulary import INPUT, PARAMETER

SEGMENT = 0x1000


def frames(*lines: str) -> list[dict[str, Any]]:
    """Return frames as torch writes them, innermost first."""
    return [{"filename": line.rpartition(":")[0], "line": int(line.rpartition(":")[2]), "name": "f"} for line in lines]


def event(action: str, address: int, size: int, *lines: str) -> dict[str, Any]:
    """Return one entry of a device's trace, as torch writes it."""
    return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": 1, "frames": frames(*lines)}


def snapshot() -> dict[str, Any]:
    """Return what torch would tell of a step: 4 MiB before it, then 6, then 2 of them freed for 8, then 4 freed."""
    trace = [
        event("segment_alloc", SEGMENT * 9, 20 * MIB),
        event("alloc", 200, 6 * MIB, "/usr/lib/python3/site-packages/torch/nn/modules.py:5", "/home/me/model.py:12"),
        event("free_requested", 100, 1 * MIB),
        event("free_completed", 100, 1 * MIB),
        event("alloc", 300, 8 * MIB, "/home/me/model.py:20"),
        event("free_completed", 200, 6 * MIB),
    ]
    blocks = [
        {"address": 64, "size": 3 * MIB, "state": "active_allocated", "frames": []},
        {"address": 300, "size": 8 * MIB, "state": "active_allocated", "frames": []},
        {"address": 900, "size": 9 * MIB, "state": "inactive", "frames": []},
    ]
    segments = [{"device": 0, "address": SEGMENT, "total_size": 32 * MIB, "blocks": blocks}]
    return {"device_traces": [trace], "segments": segments}


def recorded() -> Timeline:
    """Return the timeline of that step."""
    document = history_document(snapshot(), device_index=0, device="NVIDIA H200", torch="2.11.0", plan="eager")
    return measured_timeline(document)


def test_a_history_is_followed_call_by_call() -> None:
    """4 MiB live before: 10, 9, 17, 11; the peak is the third call, where 3, 6 and 8 MiB live."""
    timeline = recorded()
    # The first event is a segment, which is nothing live yet.
    assert timeline.live_bytes == tuple(size * MIB for size in (4, 10, 9, 17, 11))
    assert (timeline.peak_bytes, timeline.peak_at) == (17 * MIB, 3)
    assert [tensor.bytes for tensor in timeline.alive] == [8 * MIB, 6 * MIB, 3 * MIB]
    # 32 MiB in all at the end, of which the step took 20.
    assert timeline.reserved_bytes == 32 * MIB


def test_the_line_is_the_users_own() -> None:
    """The innermost frame outside torch; none where torch tells none."""
    assert [tensor.line for tensor in recorded().alive] == ["/home/me/model.py:20", "/home/me/model.py:12", ""]


def test_histories_travel_as_json(tmp_path: Path) -> None:
    """What is written is what is read."""
    document = history_document(snapshot(), device_index=0, device="NVIDIA H200", torch="2.11.0", plan="eager")
    path = tmp_path / "history.json"
    path.write_text(document.model_dump_json())
    assert read_history(path) == document


class Bomb:
    """Something that acts when it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        """Create a file beside the pickle."""
        return (Path.touch, (Path("exploded"),))


def test_a_pickle_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot files of torch itself are pickles: they are named, and not opened."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(HistoryError, match="is a pickle"):
        read_history(path)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("content", ["[]", "{}", '{"format": "other"}', "not json"])
def test_other_files_are_no_histories(content: str, tmp_path: Path) -> None:
    """The message names the file."""
    path = tmp_path / "history.json"
    path.write_text(content)
    with pytest.raises(HistoryError, match="no allocator history"):
        read_history(path)


def test_a_free_of_nothing_is_an_error() -> None:
    """A history that cannot have happened is not drawn."""
    document = history_document(snapshot(), device_index=0, device="NVIDIA H200", torch="2.11.0", plan="eager")
    broken = document.model_copy(update={"live_at_start": []})
    with pytest.raises(HistoryError, match="where nothing lives"):
        measured_timeline(broken)


def two_products() -> Timeline:
    """Return the simulated timeline of two products of 8 and 6 MiB, the first of which dies in the second."""
    sketch = Sketch()
    weight = sketch.start(3 * MIB, PARAMETER)
    x = sketch.start(4 * MIB, INPUT)
    (a,) = sketch.node("aten.mm.default", 8 * MIB, reads=[x, weight])
    (b,) = sketch.node("aten.mm.default", 6 * MIB, reads=[a, weight], dies=[a])
    sketch.node("aten.exp.default", 512, reads=[b], dies=[b])
    return simulated_timeline(sketch.spec(), "eager", RunSpec(task="inference"), DeviceSpec(name="NVIDIA H200"))


def test_a_simulated_step_has_its_tensors_and_workspaces() -> None:
    """At the second product live weight, input, both products and cuBLAS's 32 MiB."""
    timeline = two_products()
    assert timeline.peak_at == 1
    assert timeline.peak_bytes == (3 + 4 + 8 + 6 + 32) * MIB
    assert timeline.workspace_bytes == 32 * MIB
    told = [(tensor.bytes // MIB, tensor.op, tensor.role) for tensor in timeline.alive]
    assert told == [
        (32, "cuBLAS workspace", "workspace"),
        (8, "aten.mm.default", "temporary"),
        (6, "aten.mm.default", "temporary"),
        (4, "", "input"),
        (3, "", "parameter"),
    ]


def test_what_is_missing_is_named_by_size() -> None:
    """Of 8, 6 and 3 MiB measured all are simulated; of those simulated 32 and 4 MiB were not measured."""
    found = difference(recorded(), two_products())
    assert found.missing == ()
    assert [tensor.bytes // MIB for tensor in found.surplus] == [32, 4]
    more = Alive(5 * MIB + 100, "", "", "", "model.py:3")
    measured = recorded()
    longer = Timeline("measured", (0,), 0, 22 * MIB, 0, 0, (*measured.alive, more))
    assert difference(longer, two_products()).missing == (more,)


def test_the_sentence_says_how_far_off() -> None:
    """53 MiB simulated against 17 measured."""
    measured, simulated = recorded(), two_products()
    text = difference_text(difference(measured, simulated), measured, simulated)
    assert text.startswith("The simulated peak lies 36.0 MiB above the measured one: 0 measured tensors of 0 B")


def test_a_plot_keeps_the_highest_points() -> None:
    """Of 10 points in 2 stretches the highest of each."""
    assert thinned([0, 1, 9, 1, 0, 2, 3, 7, 3, 2], 2) == ([2, 7], [9, 7])
    assert thinned([3, 4], 5) == ([0, 1], [3, 4])
