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
        """Return a graph, or None where it is neither held nor stored, or was captured otherwise. May ask the store.

        A store that does not answer holds nothing.
        """
        held = self.cache.get(graph_id, captured_with)
        if held is not None or self._link.is_off:
            return held
        try:
            content = self._link.use(lambda store: store.graph(graph_id))
            spec = None if content is None else GraphSpec.from_json(content, self._limits)
        except (StoreError, SpecError):  # away, or kept when larger graphs were allowed
            return None
        if spec is None or (captured_with is not None and dict(captured_with) != dict(spec.captured_with)):
            return None
        return self.cache.put(spec)
