"""Prometheus metrics of a training process."""

from peakcast.client.metrics.metrics import CLIENT, ClientMetrics

__all__ = ["CLIENT", "ClientMetrics"]
