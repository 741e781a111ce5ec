"""The models that peaks are measured on: cases, and workloads built from them. Nothing is downloaded."""

from peakcast.training.zoo.build import build
from peakcast.training.zoo.case import Case
from peakcast.training.zoo.catalogue import architectures, entries, entry
from peakcast.training.zoo.entry import Entry
from peakcast.training.zoo.reserved import is_reserved

__all__ = ["Case", "Entry", "architectures", "build", "entries", "entry", "is_reserved"]
