from __future__ import annotations

import pytest
from pydantic import SecretStr, ValidationError

from peakcast.service.auth import Token, Tokens
from peakcast.service.errors import ErrorCode, ServiceError
from peakcast.service.settings import Settings

TEAM = Token(name="team-a", token=SecretStr("open-sesame-a"), scopes=("predict", "peaks"))
SCRAPER = Token(name="prometheus", token=SecretStr("open-sesame-p"), scopes=("metrics",))
REPORTER = Token(name="team-b", token=SecretStr("open-sesame-b"), scopes=("peaks",))


@pytest.mark.parametrize(
    ("tokens", "given", "scope", "outcome"),
    [
        ([], "", "peaks", "anonymous"),
        ([], "anything", "predict", "anonymous"),
        ([TEAM, SCRAPER], "open-sesame-a", "predict", "team-a"),
        ([TEAM, SCRAPER], "open-sesame-a", "peaks", "team-a"),
        ([TEAM, SCRAPER], "open-sesame-p", "metrics", "prometheus"),
        ([TEAM, SCRAPER], "open-sesame-p", "peaks", ErrorCode.FORBIDDEN),
        ([TEAM, SCRAPER], "open-sesame-x", "metrics", ErrorCode.UNAUTHORIZED),
        ([TEAM, SCRAPER], "", "predict", ErrorCode.UNAUTHORIZED),
        ([REPORTER], "", "predict", "anonymous"),
        ([SCRAPER], "", "peaks", ErrorCode.UNAUTHORIZED),
        ([TEAM], "open-sesame-é", "peaks", ErrorCode.UNAUTHORIZED),
    ],
)
def test_a_token_says_who_and_what(tokens: list[Token], given: str, scope: str, outcome: str | ErrorCode) -> None:
    """A scope that a token has needs one, peaks need one as soon as there are any, and the name is the token's."""
    checked = Tokens(tokens)
    if not isinstance(outcome, ErrorCode):
        assert checked.name_of(given, scope) == outcome  # type: ignore[arg-type]
        return
    with pytest.raises(ServiceError) as refused:
        checked.name_of(given, scope)  # type: ignore[arg-type]
    assert refused.value.code is outcome


def test_tokens_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The single token has every scope beside the named ones; two names for one token are refused, never shown."""
    monkeypatch.setenv("PEAKCAST_TOKEN", "single-token")
    monkeypatch.setenv("PEAKCAST_TOKENS", '[{"name": "team-a", "token": "open-sesame-a"}]')
    accepted = Settings().accepted_tokens()
    assert [accepted.name_of("single-token", scope) for scope in ("predict", "peaks", "metrics")] == ["default"] * 3  # type: ignore[arg-type]
    assert accepted.name_of("open-sesame-a", "peaks") == "team-a"
    assert "open-sesame" not in repr(Settings())
    monkeypatch.setenv("PEAKCAST_TOKENS", '[{"name": "team-a", "token": "single-token"}]')
    with pytest.raises(ValidationError, match="have the same token"):
        Settings()


@pytest.mark.parametrize(
    "text",
    ["open sesame", '{"name": "a"}', '[{"name": "A b", "token": "long-enough"}]', '[{"name": "a", "token": "short"}]'],
    ids=["no json", "no list", "name", "short"],
)
def test_wrong_tokens_are_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no list of tokens does not start a service that would then be open."""
    monkeypatch.setenv("PEAKCAST_TOKENS", text)
    with pytest.raises(ValidationError):
        Settings()


@pytest.mark.parametrize(
    ("url", "resolved"),
    [
        ("none", None),
        ("sqlite:////var/peaks.db", "sqlite:////var/peaks.db"),
        ("postgres://u:secret@db/x", "postgresql+psycopg://u:secret@db/x"),
        ("postgresql+psycopg://u@db/x", "postgresql+psycopg://u@db/x"),
    ],
)
def test_the_url_of_a_store_is_read(url: str, resolved: str | None) -> None:
    """Databases are named as anywhere else, with the driver that comes with the package."""
    assert Settings(store_url=SecretStr(url)).resolved_store_url() == resolved


@pytest.mark.parametrize("url", ["", "sqlite://", "sqlite:///:memory:", "mysql://u:secret@db/x", "peaks.db"])
def test_a_store_that_cannot_be_is_refused_without_its_password(url: str) -> None:
    """Databases that are not understood, or that forget, are refused at the start."""
    with pytest.raises(ValidationError, match="give sqlite:///FILE") as refused:
        Settings(store_url=SecretStr(url))
    assert "secret" not in str(refused.value)
