"""Which reported graphs count as one architecture: accuracy is judged with whole architectures held out.

Graphs are of one architecture where they are made of the same operators, or where their reporters give the same class.
Joining too much only holds out too much; keeping apart what belongs together would let a model be judged on what it
was fitted on. So nobody can split an architecture by giving its graphs different names.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from peakcast.featurizer.spec import GraphSpec, walk


def operator_set(spec: GraphSpec) -> str:
    """Return a name that graphs of the same operators share, whatever their sizes, depth, plans and order."""
    used = {spec.ops[op] for trace in spec.traces.values() for part in walk(trace) for op in set(part.op.tolist())}
    return "ops:" + hashlib.sha256("\n".join(sorted(used)).encode()).hexdigest()[:16]


def architectures(operators: Mapping[str, str], declared: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the architecture of each graph.

    Args:
        operators: each graph's id and its operator set.
        declared: a graph's id and the class that a peak of it was reported with, once for each such peak.

    Returns:
        For each graph the class given most often among all graphs joined with it (the first by name where two are as
        frequent); where none is given, the first by name of their operator sets.
    """
    joined: dict[str, str] = {}

    def root(name: str) -> str:
        while joined.setdefault(name, name) != name:
            joined[name] = joined[joined[name]]
            name = joined[name]
        return name

    given = Counter((operators[graph_id], name) for graph_id, name in declared)
    for group, name in sorted(given):
        joined[root(group)] = root(f"class:{name}")
    votes: dict[str, Counter[str]] = defaultdict(Counter)
    groups: dict[str, list[str]] = defaultdict(list)
    for (group, name), count in given.items():
        votes[root(group)][name] += count
    for group in set(operators.values()):
        groups[root(group)].append(group)
    names = {
        top: min(votes[top], key=lambda name: (-votes[top][name], name)) if votes[top] else min(members)
        for top, members in groups.items()
    }
    return {graph_id: names[root(group)] for graph_id, group in operators.items()}
