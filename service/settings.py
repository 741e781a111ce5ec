"""Every setting of the service, from the environment: `PEAKCAST_<NAME>`. docs/SERVICE.md lists them, by test."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, ByteSize, Field, SecretStr
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

MIB = 1 << 20

PositiveSeconds = Annotated[float, Field(gt=0, le=3600)]


def _default_workers() -> int:
    # Featurizing holds the GIL most of the time: more threads than cores only lengthen every request.
    return max(1, min(4, os.cpu_count() or 1))


def _split(hosts: object) -> object:
    """Return the names of a comma-separated text, in lower case; what is no text passes."""
    return tuple(filter(None, (host.strip().lower() for host in hosts.split(",")))) if isinstance(hosts, str) else hosts


class Settings(BaseSettings):
    """Configure one service process. Byte sizes take units ("64MiB"), times are seconds."""

    model_config = SettingsConfigDict(env_prefix="PEAKCAST_", frozen=True, extra="forbid")

    host: str = Field(default="127.0.0.1", description="address to listen on; 0.0.0.0 for every interface")
    port: int = Field(default=8400, ge=0, le=65535, description="TCP port; 0 takes a free one and logs it")
    model_path: Path | None = Field(default=None, description="folder of the model artefact; unset: the shipped one")

    token: SecretStr | None = Field(
        default=None, min_length=8, description="bearer token that /predict and /metrics ask for; unset: none"
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
    shutdown_seconds: int = Field(
        default=20, ge=1, le=600, description="time that requests under way get to finish after SIGTERM"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="least level logged")
    log_format: Literal["json", "console"] = Field(default="json", description="log lines for machines or for people")

    def host_is_allowed(self, host_header: str) -> bool:
        """Tell whether a `Host` header names a host this service answers for; its port does not matter."""
        if not self.allowed_hosts:
            return True
        name = host_header.rsplit(":", 1)[0] if not host_header.endswith("]") else host_header
        return name.lower() in self.allowed_hosts
