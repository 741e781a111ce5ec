"""Takes reports from the queue and posts them, one by one; says what became of each."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

import orjson

from peakcast.client.errors import AskError, ServerError
from peakcast.client.http import Poster
from peakcast.client.report.queue import ReportQueue, Waiting

# What will be refused again, however often it is sent. Others may pass: a token is put right, a service upgraded.
_FINAL: Final = frozenset({400, 409, 413, 415, 422})
# A report that a service fails over so often is given up, or those behind it would wait for ever.
_MOST_FAILURES: Final = 10


class Outcome(Enum):
    """What became of an attempt to send."""

    SENT = auto()
    REFUSED = auto()
    LATER = auto()
    NOTHING = auto()


class Sender:
    """Send the reports of a queue to one endpoint."""

    def __init__(self, queue: ReportQueue, url: str, *, token: str | None) -> None:
        self._queue = queue
        self._url = url
        self._token = token

    def send_one(self, timeout_s: float) -> tuple[Outcome, str]:
        """Send the next report, with the graph only where the server does not know it. Returns why not, in words.

        A report leaves the queue once the server has said that it is stored, or that it never will be.

        Raises:
            OSError, sqlite3.Error: if the queue cannot be used.
        """
        waiting = self._queue.take()
        if waiting is None:
            return Outcome.NOTHING, ""
        try:
            self._post(waiting, timeout_s)
        except KeyError:
            self._queue.remove(waiting.key)
            return Outcome.REFUSED, "the graph is gone from the queue"
        except AskError as error:
            if isinstance(error, ServerError) and _is_final(error, waiting.tries):
                self._queue.remove(waiting.key)
                return Outcome.REFUSED, str(error)
            self._queue.give_back(waiting.key)
            return Outcome.LATER, str(error)
        self._queue.remove(waiting.key)
        return Outcome.SENT, ""

    def _post(self, waiting: Waiting, timeout_s: float) -> None:
        poster = Poster(self._url, token=self._token, timeout_seconds=timeout_s)
        by_id = {"graph_id": waiting.graph_id}
        reply = poster.post(orjson.loads(waiting.fields), by_id, lambda: self._queue.graph(waiting.graph_id))
        try:
            stored = orjson.loads(reply)
            is_ours = stored["key"] == waiting.key and stored["stored"] is True
        except (orjson.JSONDecodeError, KeyError, TypeError):
            is_ours = False
        if not is_ours:
            raise AskError(f"{self._url} did not say that the peak is stored: no peakcast service")


def _is_final(error: ServerError, tries: int) -> bool:
    return error.status in _FINAL or (error.code == "internal" and tries >= _MOST_FAILURES)
