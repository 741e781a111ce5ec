"""What can go wrong with the store, as types."""

from __future__ import annotations


class StoreError(RuntimeError):
    """The store cannot be used as it is; the message says what to do."""


class StoreUnavailableError(StoreError):
    """The store does not answer, or not in time. What was asked of it did not happen, and may be tried again."""


class KeyConflictError(ValueError):
    """A key was used before, for a peak of other content."""


class QuotaError(ValueError):
    """A reporter has taken its share; it may come again after `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
