"""Graphs by id: those in memory first, then those of the store, which outlive a restart."""

from __future__ import annotations

from collections.abc import Mapping

from peakcast.featurizer.limits import Limits, SpecError
from peakcast.featurizer.spec import GraphSpec
from peakcast.service.graphs import GraphCache, HeldGraph
from peakcast.service.store.errors import StoreError
from peakcast.service.store.link import StoreLink


class Graphs:
    """Find graphs; what the store has is put into the cache."""

    def __init__(self, cache: GraphCache, link: StoreLink, limits: Limits) -> None:
        self.cache = cache
        self._link = link
        self._limits = limits

    def find(self, graph_id: str, captured_with: Mapping[str, str] | None = None) -> HeldGraph | None:
        """Return a graph, or None where it is neither held nor stored, or was captured otherwise.

        A store that does not answer at once holds nothing: who asks can send the graph.
        """
        try:
            return self.fetch(graph_id, captured_with, in_passing=True)
        except StoreError:
            return None

    def fetch(
        self, graph_id: str, captured_with: Mapping[str, str] | None = None, *, in_passing: bool = False
    ) -> HeldGraph | None:
        """Return the same, waiting for the store.

        Raises:
            StoreError: if the store does not answer.
        """
        held = self.cache.get(graph_id, captured_with)
        if held is not None or self._link.is_off:
            return held
        content = self._link.use(lambda store: store.graph(graph_id), in_passing=in_passing)
        try:
            spec = None if content is None else GraphSpec.from_json(content, self._limits)
        except SpecError:  # kept when larger graphs were allowed
            return None
        if spec is None or (captured_with is not None and dict(captured_with) != dict(spec.captured_with)):
            return None
        return self.cache.put(spec)
