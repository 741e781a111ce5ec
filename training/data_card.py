"""The corpus's data card: what was measured, on what, when, and how much of it, counted from the records."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from peakcast.training import corpus as store
from peakcast.training.zoo import entries

Record = Mapping[str, Any]

_INTRODUCTION: Final = """\
# Data card: measured peaks of GPU memory

Each line of `records.jsonl.xz` is one measurement: a workload of `training/zoo` run for four steps under one plan, from
a clean allocator. Peaks are what PyTorch's caching allocator counted for that process: the CUDA context and what
libraries allocate beside it are not in them. `first_*` is the first step, compilation included; `steady_*` the maximum
over the three steps after it, with the peak counters reset in between; `required_bytes`, where present, the smallest
limit under which the steps ran, by bisection to 0.5 %. TF32 was on (`set_float32_matmul_precision("high")`), weights
are random, inputs are random numbers, and cuBLAS workspaces were cleared before each record, so that they count.

`graphs/` holds the graph of each case, captured on fake tensors: on the machine with the GPU (`traced_on: cuda`; no
step was run for it), or without one (`cuda-shim`), which gives the same priors within 2 %, by a test of the capture.
`python -m peakcast.training.corpus_commands capture` makes them again from the names in `case`, and `peakcast collect`
measures again.
"""

_LIMITS: Final = """\
## What it is not

- One kind of card. Workspaces and kernels chosen differ on others, and so do peaks.
- Processes measured side by side on the card. Peaks are counted per process and were equal to the byte alone; step and
  compile times are not comparable with a machine of one's own. Inductor's benchmark of padding (`pad_mm`) is disturbed
  by what runs beside it, so that near a tie a product may be padded otherwise than on a card of one's own. The 156
  records with such products were measured again on 2026-11-30, trials and steps in turns; for 21 of them, whose
  products could matter, inductor was told the times of 265 products that its benchmark had taken alone on the card.
- No reserved architecture (`training/zoo/reserved.py`): those are for the final judgement.
- Out-of-memory records keep what was reached until then, and are no labels of peaks.
"""


def data_card(records: Iterable[Record], corpus: Path) -> str:
    """Write the card in Markdown, from the records and the files beside them."""
    rows = list(records)
    parts = [
        _INTRODUCTION,
        f"## How much\n\n{_totals(rows, corpus)}",
        _table("Machines and versions", ("device", "driver", "torch", "CUDA", "source", "records"), _machines(rows)),
        _table("Graphs", ("traced on", "torch", "graphs"), _by_capture(rows, corpus)),
        _table("By plan and task", ("plan", "task", "records", "bisected"), _by_plan(rows)),
        _table("By optimizer", ("optimizer", "implementation", "records"), _by_optimizer(rows)),
        _table("By architecture", ("architecture", "kind", "models", "records"), _by_architecture(rows)),
        _replayed(store.read(corpus, store.REPLAYED_RECORDS)),
        _LIMITS,
    ]
    return "\n".join(part for part in parts if part)


def _totals(rows: list[Record], corpus: Path) -> str:
    graphs = list((corpus / store.GRAPHS).glob("*.json.xz"))
    dates = sorted(str(row["measured_at"])[:10] for row in rows if "measured_at" in row)
    peaks = sorted(int(row["measured"].get("steady_allocated_bytes", 0)) for row in rows if not row["out_of_memory"])
    architectures, models = {row["architecture"] for row in rows}, {row["case"]["model"] for row in rows}
    size_mib = sum(file.stat().st_size for file in graphs) / 2**20
    named = sum(1 for row in rows if row.get("graph_id"))
    lines = [
        f"- {len(rows)} records of {len(architectures)} architectures, {len(models)} models",
        f"- {len(graphs)} graphs, {size_mib:.1f} MiB compressed; {named} records name one",
        f"- {sum(1 for row in rows if row['out_of_memory'])} out of memory",
    ]
    if peaks:
        lines.append(f"- steady allocated peaks from {peaks[0] / 2**20:.0f} MiB to {peaks[-1] / 2**30:.1f} GiB")
    if dates:
        lines.append(f"- measured from {dates[0]} to {dates[-1]}; seed records carry no date")
    return "\n".join(lines) + "\n"


def _replayed(labels: Iterable[Record]) -> str:
    """Count the labels that were computed; nothing where there are none."""
    rows = list(labels)
    if not rows:
        return ""
    named, architectures = sum(bool(row.get("graph_id")) for row in rows), {row["architecture"] for row in rows}
    counts = _count(rows, lambda row: (row["plan"].split("=")[0], row["case"]["task"], row["versions"]["torch"]))
    told = (
        f"`replayed.jsonl.xz` holds {len(rows)} labels of {len(architectures)} architectures that were not measured: "
        f"inductor's own plan, replayed.\n{named} name a graph, without which a fit leaves them out. They count in no "
        "accuracy.\n"
    )
    table = _table("Replayed labels", ("plan", "task", "torch", "labels"), counts)
    return f"{table}\n{told}"


def _count(rows: list[Record], name: Callable[[Record], tuple[str, ...]]) -> list[tuple[str, ...]]:
    counts = Counter(name(row) for row in rows)
    return [(*key, str(count)) for key, count in sorted(counts.items())]


def _machines(rows: list[Record]) -> list[tuple[str, ...]]:
    def name(row: Record) -> tuple[str, ...]:
        versions = row["versions"]
        driver, cuda = versions.get("driver", "not recorded"), versions.get("cuda", "13.0")
        return row["device"]["name"], driver, versions["torch"], cuda, row["source"]

    return _count(rows, name)


def _by_capture(rows: list[Record], corpus: Path) -> list[tuple[str, ...]]:
    named = sorted({str(row["graph_id"]) for row in rows if row.get("graph_id")})
    with_graph = [graph_id for graph_id in named if store.graph_path(corpus, graph_id).exists()]
    captured = [store.read_graph(corpus, graph_id).captured_with for graph_id in with_graph]
    counts = Counter((made["traced_on"], made["torch"]) for made in captured)
    return [(*key, str(count)) for key, count in sorted(counts.items())]


def _by_plan(rows: list[Record]) -> list[tuple[str, ...]]:
    bisected = Counter((row["plan"], row["run"]["task"]) for row in rows if "required_bytes" in row["measured"])
    counted = _count(rows, lambda row: (row["plan"], row["run"]["task"]))
    return [(*line, str(bisected[line[0], line[1]])) for line in counted]


def _by_optimizer(rows: list[Record]) -> list[tuple[str, ...]]:
    return _count(rows, lambda row: (str(row["run"]["optimizer"] or "-"), str(row["run"]["implementation"] or "-")))


def _by_architecture(rows: list[Record]) -> list[tuple[str, ...]]:
    kinds = {one.architecture: one.kind for one in entries().values()}
    models: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        models[row["architecture"]].add(row["case"]["model"])
    counts = Counter(str(row["architecture"]) for row in rows)
    return [(name, kinds.get(name, "?"), ", ".join(sorted(models[name])), str(counts[name])) for name in sorted(counts)]


def _table(title: str, header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [f"## {title}", "", f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows), ""])
