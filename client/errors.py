"""What can go wrong between asking and being answered, as types a caller can catch."""

from __future__ import annotations


class AskError(RuntimeError):
    """A prediction could not be had. The training loop may go on without one."""


class ServerUnreachableError(AskError):
    """No answer came from the server within the time allowed."""


class ServerError(AskError):
    """The server answered with an error.

    Args:
        status: HTTP status.
        code: the reply's `error.code`, for instance `busy` or `invalid_graph`; `http_<status>` where it had none.
        message: the reply's `error.message`.
        path: where in the request, if the reply says.
    """

    def __init__(self, status: int, code: str, message: str, path: str | None = None) -> None:
        super().__init__(status, code, message, path)
        self.status = status
        self.code = code
        self.message = message
        self.path = path

    def __str__(self) -> str:
        return f"the server answered {self.status} {self.code}: {self.message}"
