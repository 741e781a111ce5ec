"""The report on spread models: a table for the terminal, docs/RANKS_ACCURACY.md and ranks.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import orjson
from rich.table import Table

_METHODS: Final = {
    "pair": "pair, architecture unseen",
    "prior": "simulation alone",
    "shipped": "pair in use",
    "tracker": "torch's tracker",
}
_HEADERS: Final = ("records", "method", "n", "architectures", "median", "mean", "95th", "under")

_INTRODUCTION = (
    "Made by `peakcast evaluate --ranks`. {records} records of models spread over {sizes} GPUs, {architectures} "
    "architectures, steady allocated bytes of rank 0. Errors are in percent of the measured bytes: median, mean and "
    "95th percentile of the absolute error, and the share predicted below the truth."
)
_UNSEEN = (
    "*Pair, architecture unseen*: refitted for each of {folds} folds, and once more for the frozen split, on records "
    "of one card alone, none of them of the architectures it is asked about. *Simulation alone*: nothing fitted. "
    "Records of ranks are in no fit: nothing that was learned of them can be in these figures."
)
_ALONE = "*Simulation alone*: nothing fitted. Records of ranks are in no fit."
_SHIPPED = (
    " *Pair in use*: {version}, which knows records of {sizes} ranks, and may know these architectures on one card."
)
_TRACKER = (
    "*Torch's tracker*: `FSDPMemTracker` for FSDP2, `MemTracker` for DDP, run for two steps in the measured ranks on "
    "the card itself, eager alone, since neither knows compiled steps. It has fewer records where it failed."
)
_BEYOND = (
    "A pair answers `in_distribution` only for numbers of ranks that it was fitted on: one. For all others its "
    "confidence is `extrapolating` where the graph is of a rank among so many (`peakcast capture --world-size N`), "
    "else `unknown`. Nothing is scaled from two ranks: the graph of rank 0 of N holds the shards, buckets and gathered "
    "weights of N ranks as torch allocates them, the simulation runs that graph, and what was learned of single cards "
    "is added as it is. No record of other numbers than those above checks it. DDP's buckets do not depend on N; "
    "FSDP2's shards are an N-th, padded to whole rows. The more ranks, the surer one of them holds both sets."
)

_LUCK = (
    "DDP builds its buckets anew as the second step begins. The first ones go at once, or live until that step's first "
    "reduction, one more copy of the gradients: a matter of milliseconds, decided on each rank by itself "
    "([SIMULATION.md](SIMULATION.md#ranks)). Of {ranks} ranks under eager DDP {one_set} lie within 0.2 % of the "
    "simulation, {both_sets} within 0.2 % of the simulation with both sets, {neither} near neither. The figures above "
    "are against the first; `required` has room for the second, on any rank."
)
_CAUSES = (
    "What these are. DDP, one whole copy of the gradients short, often on one rank alone: both sets of buckets. "
    "Compiled, with ranks that differ by the logits (distilbert: 928 MiB, gpt2_small: 1,178): the size of a product's "
    "result copied into an aligned shape (`pad_mm`), which each rank's own benchmark of a moment decides; vocabularies "
    "of 30,522 and 50,257 are not aligned. dlrm under FSDP2: 37 MiB more than simulated at the backward of an "
    "embedding, where the scratch depends on how often each row is drawn; not found in detail."
)
_COMMUNICATORS = (
    "NCCL's communicators are no part of what the allocator holds: the first took 880,803,840 bytes of each card, "
    "three further ones 509,607,936, 507,510,784 and 509,607,936 (two H200s, driver 580.159.04, torch 2.11.0, CUDA "
    "13.0). They count in the device's bytes, one for each process group that a step uses."
)


def spread_table(found: dict[str, Any]) -> Table:
    """Return the table for people."""
    shown = Table(title=f"spread over ranks, {found['records']} records, steady allocated of rank 0")
    for header in _HEADERS:
        shown.add_column(header, justify="left" if header in {"records", "method"} else "right")
    for cells in _cells(found["rows"]):
        shown.add_row(*cells)
    return shown


def write_spread_report(found: dict[str, Any], folder: Path) -> None:
    """Write RANKS_ACCURACY.md and ranks.json into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    options = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS
    (folder / "ranks.json").write_bytes(orjson.dumps(found, option=options) + b"\n")
    (folder / "RANKS_ACCURACY.md").write_text(spread_markdown(found), encoding="utf-8")


def spread_markdown(found: dict[str, Any]) -> str:
    """Return the text of RANKS_ACCURACY.md."""
    shipped = ""
    if found["shipped"]:
        shipped = _SHIPPED.format(version=found["shipped"], sizes=_listed(found["shipped_world_sizes"]))
    lines = [
        "# Accuracy for models spread over GPUs",
        "",
        _INTRODUCTION.format(**found, sizes=_listed(found["world_sizes"])),
        "",
        "| " + " | ".join(_HEADERS) + " |",
        "|" + "|".join("---" if header in {"records", "method"} else "---:" for header in _HEADERS) + "|",
        *("| " + " | ".join(cells) + " |" for cells in _cells(found["rows"])),
        "",
        (_UNSEEN.format(folds=found["folds"]) if any(row["pair"] for row in found["rows"]) else _ALONE) + shipped,
        "",
        _TRACKER,
        "",
        "## Ranks that differ",
        "",
        _LUCK.format(**found["luck"]),
        "",
        "## Worst of the simulation alone",
        "",
        "| record | measured, MiB | simulated, MiB | error by rank |",
        "|---|---:|---:|---|",
        *(_worst(one) for one in found["worst"]),
        "",
        _CAUSES,
        "",
        "## Communicators",
        "",
        _COMMUNICATORS,
        "",
        "## Other numbers of ranks",
        "",
        _BEYOND,
        "",
        f"Corpus sha256 `{found['data_sha256']}`.",
        "",
    ]
    return "\n".join(lines)


def _worst(one: dict[str, Any]) -> str:
    errors = ", ".join(f"{error:+.2f} %" for error in one["rank_errors_percent"])
    sizes = (f"{one[name] / 2**20:,.0f}" for name in ("measured_bytes", "prior_bytes"))
    key = one["key"].replace("|", " ")
    return f"| {key} | {' | '.join(sizes)} | {errors} |"


def _listed(sizes: list[int]) -> str:
    return ", ".join(map(str, sizes))


def _cells(rows: list[dict[str, Any]]) -> list[list[str]]:
    return [
        [
            row["label"],
            title,
            str(row[method]["n"]),
            str(row["architectures"]),
            *(f"{row[method][name]:.2f} %" for name in ("median_percent", "mean_percent")),
            f"{row[method]['p95_percent']:.1f} %",
            f"{row[method]['under_predicted_percent']:.0f} %",
        ]
        for row in rows
        for method, title in _METHODS.items()
        if row[method]
    ]
