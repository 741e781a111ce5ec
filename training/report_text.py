"""The text of docs/ACCURACY.md."""

from __future__ import annotations

from typing import Any

from peakcast.training.decision_accuracy import AIMS, HIGHEST, LOWEST
from peakcast.training.report_tables import bar_sheet, coverage_sheet, decision_sheet, error_sheet

_INTRODUCTION = (
    "Made by `peakcast evaluate`. {records} records measured on a GPU, of {architectures} architectures (implementing "
    "classes), in {folds} folds: no architecture is on both sides of a split; LSTM, trees, shrinkage and bounds are "
    "refitted for each fold."
)
_BARS = (
    "Median / mean / 95th percentile of the absolute error in percent of the measured bytes. A line is met if all "
    "three are no larger than aimed at."
)
_LEGEND = (
    "Errors are in percent of the measured bytes: median, mean and 95th percentile of the absolute error, the share "
    "predicted below the truth, the share of truths within the upper bound at risk {risk:g} (it should be at least "
    "{promised:g} %), and how far that bound lies above the truth on average. *Prior* is the simulation alone."
)
_COVERAGE = (
    "The share of truths within the upper bound: the mean over architectures of each one's share, which is what the "
    "bound promises (at least {promised:g} % at risk {risk:g}), and over records, there and at risk {decision_risk:g}, "
    "the default of a client. In brackets 95 % intervals, from 1,000 draws of architectures. *Slack* is how far the "
    "bound at risk {risk:g} lies above the truth."
)
_DECISIONS = (
    "Does it fit? Asked at limits spread evenly from {lowest:g} to {highest:g} times the truth. *Truth* `required`: "
    "the smallest limit that the step ran in, found by bisection on the card, and so the records that have it alone. "
    "*Truth* `steady_allocated`: all records, an easier question, which leaves out fragmentation and the first step. "
    "*Wrong*: of all limits, those at which the expected value says other than the truth. By the upper bound at risk "
    '{decision_risk:g}: *misfits*, of the limits called "fits", those that did not fit; *false refusals*, of the '
    "limits that fit, those refused. We aim at no more than {aims}. In brackets 95 % intervals, from 1,000 draws of "
    "architectures."
)
_FROZEN = (
    "{records} records of {architectures} architectures (`training/frozen_split.json`) that are in none of the folds "
    "above, predicted by a pair fitted on all of those records. No choice in fitting ever sees them; the gate of "
    "`peakcast train` does. The simulation was written while their records were there: it is the learned part whose "
    "blindness this table shows."
)
_CONFIDENCE = (
    "Confidence of the answers: {counts}. For {tail} of the records the bound of `required` rests on the assumption "
    "about tails in docs/MODELS.md (too few architectures measured for that risk), for the others on the data alone."
)
_IMPORTANCE = (
    "Means over the folds, on records held out. For the LSTM: how far its outputs move when that part of every node is "
    "replaced by its mean. For the trees: shares of the mean absolute TreeSHAP value (`pred_contrib`) of the ratio "
    "trees, summed over what the features tell (sizes count as shape) and below the largest fifteen by themselves. The "
    "article's LSTM had no simulation to correct: what a correction hangs on is another question than what a peak does."
)
_TOP_FEATURES = 15
# What the article that this design goes back to reports, for an LSTM without a simulation.
ARTICLE_SHARES = {"shape": 0.42, "op": 0.31, "placement": 0.27}


def markdown(found: dict[str, Any]) -> str:
    """Return the text of ACCURACY.md."""
    risks = {"risk": found["risk"], "decision_risk": found["decision_risk"]}
    promised = 100 * (1 - found["risk"])
    frozen = found["frozen"]
    sides = {"folds": found["bars"], **({"frozen split": frozen["bars"]} if frozen else {})}
    lines = [
        "# Accuracy on architectures the pair never saw",
        "",
        _INTRODUCTION.format(**found),
        "",
        "## What we aim at",
        "",
        _BARS,
        "",
        *bar_sheet(sides).markdown(),
        "",
        "## Errors in folds",
        "",
        _LEGEND.format(promised=promised, **risks),
        "",
        *error_sheet(found["rows"]).markdown(),
        "",
        _CONFIDENCE.format(
            counts=", ".join(f"{name} {count}" for name, count in found["confidence"].items()),
            tail=found["tail_bounds"],
        ),
        "",
        "![Error distribution](accuracy.png)",
        "",
        "### Bounds",
        "",
        _COVERAGE.format(promised=promised, **risks),
        "",
        *coverage_sheet(found["coverage"], **risks).markdown(),
        "",
        "### Decisions",
        "",
        _DECISIONS.format(lowest=LOWEST, highest=HIGHEST, aims=AIMS, **risks),
        "",
        *decision_sheet(found["decisions"]).markdown(),
        "",
        *_frozen(frozen, risks),
        "## The twenty worst",
        "",
        "In folds. Steady allocated bytes, in MiB.",
        "",
        "| record | architecture | plan | task | measured | expected | prior | error | confidence |",
        "|---|---|---|---|---:|---:|---:|---:|---|",
        *(_worst_line(record) for record in found["worst"]),
        "",
        "## What the pair looks at",
        "",
        _IMPORTANCE,
        "",
        "| part | LSTM | trees | the article's SHAP table |",
        "|---|---:|---:|---:|",
        *(_part_line(name, found) for name in found["tree_parts"]),
        "",
        "![Who looks at what](importance.png)",
        "",
        "| feature of the trees | share |",
        "|---|---:|",
        *(f"| {name} | {share:.3f} |" for name, share in list(found["tree_shares"].items())[:_TOP_FEATURES]),
        "",
        f"Corpus sha256 `{found['data_sha256']}`.",
        "",
    ]
    return "\n".join(lines)


def _frozen(frozen: dict[str, Any] | None, risks: dict[str, float]) -> list[str]:
    if not frozen:
        return []
    return [
        "## The frozen test split",
        "",
        _FROZEN.format(**frozen),
        "",
        *error_sheet(frozen["rows"]).markdown(),
        "",
        "### Bounds on the frozen split",
        "",
        *coverage_sheet(frozen["coverage"], **risks).markdown(),
        "",
        "### Decisions on the frozen split",
        "",
        *decision_sheet(frozen["decisions"]).markdown(),
        "",
    ]


def _part_line(name: str, found: dict[str, Any]) -> str:
    shares = (found["node_shares"].get(name), found["tree_parts"][name], ARTICLE_SHARES.get(name))
    return f"| {name} | " + " | ".join("" if share is None else f"{share:.2f}" for share in shares) + " |"


def _worst_line(record: dict[str, Any]) -> str:
    sizes = " | ".join(f"{record[f'{name}_bytes'] / 2**20:,.0f}" for name in ("measured", "expected", "prior"))
    return (
        f"| {_escaped(record['key'])} | {record['architecture']} | {record['plan']} | {record['task']} | {sizes} | "
        f"{record['error_percent']:+.1f} % | {record['confidence']} |"
    )


def _escaped(text: str) -> str:
    """Return the text with the bars that would end a cell escaped."""
    return text.replace("|", "\\|")
