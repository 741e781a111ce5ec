"""Measured peaks on their way to the service: queued on disk, sent once, off the training's thread."""

from peakcast.client.report.report import PeakReport, Reporter

__all__ = ["PeakReport", "Reporter"]
