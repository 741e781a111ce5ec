"""Every setting of the service, from the environment: `PEAKCAST_<NAME>`. docs/SERVICE.md lists them, by test."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal, Self

import orjson
from pydantic import AfterValidator, BeforeValidator, ByteSize, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from peakcast.featurizer.limits import Limits
from peakcast.service.auth import SCOPES, SINGLE, Token, Tokens
from peakcast.service.store.quota import Quota
from peakcast.service.store.url import NO_STORE, checked_url, default_url, state_dir

MIB = 1 << 20

PositiveSeconds = Annotated[float, Field(gt=0, le=3600)]


def _default_workers() -> int:
    # Featurizing holds the GIL most of the time: more threads than cores only lengthen every request.
    return max(1, min(4, os.cpu_count() or 1))


def _split(hosts: object) -> object:
    """Return the names of a comma-separated text, in lower case; what is no text passes."""
    return tuple(filter(None, (host.strip().lower() for host in hosts.split(",")))) if isinstance(hosts, str) else hosts


def _from_json(text: object) -> object:
    """Return what a JSON text holds; what is no text passes."""
    try:
        return orjson.loads(text) if isinstance(text, str) else text
    except orjson.JSONDecodeError:
        raise ValueError('give JSON: [{"name": "team-a", "token": "...", "scopes": ["predict", "peaks"]}]') from None


def _checked_store(url: SecretStr) -> SecretStr:
    return SecretStr(checked_url(url.get_secret_value()))


class Settings(BaseSettings):
    """Configure one service process. Byte sizes take units ("64MiB"), times are seconds."""

    model_config = SettingsConfigDict(env_prefix="PEAKCAST_", frozen=True, extra="forbid")

    host: str = Field(default="127.0.0.1", description="address to listen on; 0.0.0.0 for every interface")
    port: int = Field(default=8400, ge=0, le=65535, description="TCP port; 0 takes a free one and logs it")
    model_path: Path | None = Field(default=None, description="folder of the model artefact; unset: the shipped one")

    token: SecretStr | None = Field(
        default=None, min_length=8, description="bearer token that /predict, /peaks and /metrics ask for; unset: none"
    )
    tokens: Annotated[tuple[Token, ...], NoDecode, BeforeValidator(_from_json)] = Field(
        default=(), description="JSON list of named tokens with scopes, see [tokens](#tokens)"
    )
    allowed_hosts: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)] = Field(
        default=(), description="comma-separated Host names answered, others get 403; empty: all"
    )

    # A graph of 10,142 nodes is 1.3 MB of JSON and 123 KB gzipped; 200,000 nodes are about 40 MiB.
    max_body_bytes: ByteSize = Field(
        default=ByteSize(40 * MIB), ge=1024, description="largest body, after decompression"
    )
    max_compressed_bytes: ByteSize = Field(
        default=ByteSize(8 * MIB), ge=1024, description="largest gzip body, as it is sent"
    )
    # Captured graphs compress 10 to 20 times; columns that are all -1 reach 100 on their own.
    max_compression_ratio: int = Field(
        default=200, ge=2, description="most decompressed bytes for each gzip byte, once 1 MiB has come out"
    )
    max_json_depth: int = Field(default=32, ge=8, le=1000, description="deepest nesting of the JSON body")
    # An empty list takes 56 bytes in memory for 3 of JSON: without this, 32 MB of "[]," becomes 700 MB.
    max_json_containers: int = Field(default=1_000_000, ge=100, description="most lists and objects in one JSON body")
    max_nodes: int = Field(default=200_000, ge=1, description="most nodes in one graph, over all its traces")
    body_timeout_seconds: PositiveSeconds = Field(default=30.0, description="longest time a body may take to arrive")

    workers: int = Field(
        default_factory=_default_workers,
        ge=1,
        le=64,
        description="predictions computed at once (default: cores, at most 4)",
    )
    max_pending: int = Field(
        default=64, ge=1, description="requests to /predict held at once, waiting included; more get 429"
    )
    max_pending_bytes: ByteSize = Field(
        default=ByteSize(256 * MIB), ge=1024, description="bytes of all bodies held at once; more get 429"
    )
    retry_after_seconds: int = Field(default=1, ge=1, le=3600, description="Retry-After of 429 and 503 replies")

    graph_cache_bytes: ByteSize = Field(
        default=ByteSize(256 * MIB),
        ge=0,
        description="memory for graphs kept to be asked for by graph_id; 0 keeps none",
    )

    store_url: Annotated[SecretStr, AfterValidator(_checked_store)] | None = Field(
        default=None,
        description="keeps reported peaks: sqlite:///FILE, postgresql://... or none; unset: a file in the state dir",
    )
    state_dir: Path = Field(
        default_factory=state_dir,
        description="folder of the default store (default: $XDG_STATE_HOME/peakcast, ~/.local/state/peakcast)",
    )
    store_timeout_seconds: PositiveSeconds = Field(
        default=5.0, description="longest wait for the store before /peaks answers 503"
    )
    peaks_per_minute: int = Field(default=600, ge=1, description="most new peaks a minute from one reporter")
    # A peak takes about 2 KB, its graph, once, 20 to 130 KB.
    max_peaks: int = Field(default=1_000_000, ge=1, description="most peaks the store keeps")
    max_graph_store_bytes: ByteSize = Field(
        default=ByteSize(8192 * MIB), ge=1024, description="most bytes of packed graphs the store keeps"
    )
    reporter_share: float = Field(default=0.5, gt=0, le=1, description="share of both that one reporter may take")

    shutdown_seconds: int = Field(
        default=20, ge=1, le=600, description="time that requests under way get to finish after SIGTERM"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="least level logged")
    log_format: Literal["json", "console"] = Field(default="json", description="log lines for machines or for people")

    def graph_limits(self) -> Limits:
        """Return how large a graph may be."""
        return Limits(max_nodes=self.max_nodes, max_json_bytes=int(self.max_body_bytes))

    def quota(self) -> Quota:
        """Return how much one reporter may bring."""
        graph_bytes = int(self.max_graph_store_bytes)
        return Quota(self.peaks_per_minute, self.max_peaks, graph_bytes, self.reporter_share)

    @model_validator(mode="after")
    def _check_tokens(self) -> Self:
        owners: dict[str, str] = {}
        for token in self._all_tokens():
            value = token.token.get_secret_value()
            if owners.setdefault(value, token.name) != token.name:
                raise ValueError(f"PEAKCAST_TOKENS: {owners[value]!r} and {token.name!r} have the same token")
        return self

    def _all_tokens(self) -> tuple[Token, ...]:
        if self.token is None:
            return self.tokens
        return (Token(name=SINGLE, token=self.token, scopes=SCOPES), *self.tokens)

    def accepted_tokens(self) -> Tokens:
        """Return the tokens that are accepted; that of `token` has every scope."""
        return Tokens(self._all_tokens())

    def resolved_store_url(self) -> str | None:
        """Return SQLAlchemy's URL of the store, or None where no peaks are kept."""
        if self.store_url is None:
            return default_url(self.state_dir)
        text = self.store_url.get_secret_value()
        return None if text == NO_STORE else text

    def host_is_allowed(self, host_header: str) -> bool:
        """Tell whether a `Host` header names a host this service answers for; its port does not matter."""
        if not self.allowed_hosts:
            return True
        name = host_header.rsplit(":", 1)[0] if not host_header.endswith("]") else host_header
        return name.lower() in self.allowed_hosts
