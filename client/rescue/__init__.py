"""A step that ran out of memory is freed, put back and run again, or said why that cannot be."""

from peakcast.client.rescue.rescue import MemoryNotReturnedError, NothingSmallerError, Rescue, StepNotRepeatableError

__all__ = ["MemoryNotReturnedError", "NothingSmallerError", "Rescue", "StepNotRepeatableError"]
