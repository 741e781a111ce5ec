"""Who may ask for what: bearer tokens, each with a name and scopes. A peak's reporter is the name of its token."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from peakcast.service.errors import ErrorCode, ServiceError

Scope = Literal["predict", "peaks", "metrics"]
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
# Who reports where no tokens are set, and the name of the single token of PEAKCAST_TOKEN.
ANONYMOUS: Final = "anonymous"
SINGLE: Final = "default"


class Token(BaseModel):
    """One bearer token. Two of one name are the same reporter: the old and the new one while it is replaced."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern="^[a-z0-9][a-z0-9._-]{0,63}$")
    token: SecretStr = Field(min_length=8)
    scopes: tuple[Scope, ...] = Field(default=("predict", "peaks"), min_length=1)


class Tokens:
    """All tokens of one service. Peaks need one as soon as there are any; what no token has the scope of is open."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tuple(tokens)
        self._guarded = frozenset(scope for token in tokens for scope in token.scopes)
        if tokens:
            self._guarded |= {"peaks"}

    def name_of(self, given: str, scope: Scope) -> str:
        """Return the name of the token that was given, or `anonymous` where the scope is open.

        Every token is compared, whatever was sent, so that the time taken says nothing.

        Raises:
            ServiceError: UNAUTHORIZED for a token that is none of ours, FORBIDDEN for one without the scope.
        """
        if scope not in self._guarded:
            return ANONYMOUS
        sent = given.encode()
        found = None
        for token in self._tokens:
            if hmac.compare_digest(sent, token.token.get_secret_value().encode()):
                found = token
        if found is None:
            raise ServiceError(ErrorCode.UNAUTHORIZED, "send the token: `Authorization: Bearer <token>`")
        if scope not in found.scopes:
            raise ServiceError(
                ErrorCode.FORBIDDEN,
                f"the token of {found.name!r} is for {', '.join(found.scopes)}, not for {scope}: ask for that scope",
            )
        return found.name
