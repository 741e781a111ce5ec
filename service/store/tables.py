"""The tables. Times are milliseconds since 1970, JSON is canonical text: both mean the same in every database."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import orjson
from sqlalchemy import BigInteger, ForeignKey, Integer, LargeBinary, MetaData, String, Text
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator, TypeEngine

ACCEPTED: Final = "accepted"
QUARANTINED: Final = "quarantined"
REJECTED: Final = "rejected"
STATUSES: Final = (ACCEPTED, QUARANTINED, REJECTED)


class Json(TypeDecorator[dict[str, Any]]):
    """An object as JSON with sorted keys. Text, since PostgreSQL's own type refuses the character U+0000."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: dict[str, Any] | None, dialect: Dialect) -> str | None:
        """Return the text of an object."""
        del dialect
        return None if value is None else orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()

    def process_result_value(self, value: Any | None, dialect: Dialect) -> dict[str, Any] | None:
        """Return the object of a text."""
        del dialect
        return None if value is None else orjson.loads(value)


class Base(DeclarativeBase):
    """The tables' common base. Constraints have names, so that migrations can find them."""

    metadata = MetaData(
        naming_convention={
            "pk": "pk_%(table_name)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "ix": "ix_%(table_name)s_%(column_0_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, TypeEngine[Any] | type[TypeEngine[Any]]]] = {dict[str, Any]: Json}


class Graph(Base):
    """A graph that some peak is of, without source lines, as zlib-packed JSON."""

    __tablename__ = "graphs"

    graph_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    content: Mapped[bytes] = mapped_column(LargeBinary)
    reporter: Mapped[str] = mapped_column(String(64))
    received_at_ms: Mapped[int] = mapped_column(BigInteger)


class Peak(Base):
    """One reported run of one graph under one plan. `configuration` is the same where the peaks should be."""

    __tablename__ = "peaks"

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    key: Mapped[str] = mapped_column(String(128), unique=True)
    content_sha256: Mapped[str] = mapped_column(String(64))
    reporter: Mapped[str] = mapped_column(String(64))
    received_at_ms: Mapped[int] = mapped_column(BigInteger)
    graph_id: Mapped[str] = mapped_column(ForeignKey("graphs.graph_id", name="fk_peaks_graph_id"))
    configuration: Mapped[str] = mapped_column(String(64), index=True)
    plan: Mapped[str] = mapped_column(String(64))
    run: Mapped[dict[str, Any]]
    device: Mapped[dict[str, Any]]
    measured: Mapped[dict[str, Any]]
    prior: Mapped[dict[str, Any]]
    versions: Mapped[dict[str, Any]]
    out_of_memory: Mapped[bool]
    cache: Mapped[str] = mapped_column(String(8))
    source: Mapped[str] = mapped_column(String(16))
    architecture: Mapped[str | None] = mapped_column(String(128))
    status: Mapped[str] = mapped_column(String(16), index=True)
    reason: Mapped[str] = mapped_column(Text)


class Reporter(Base):
    """What one reporter has taken of the store, and of the minute that began at `window_began_ms`."""

    __tablename__ = "reporters"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    peaks: Mapped[int] = mapped_column(BigInteger)
    graph_bytes: Mapped[int] = mapped_column(BigInteger)
    window_began_ms: Mapped[int] = mapped_column(BigInteger)
    window_peaks: Mapped[int] = mapped_column(BigInteger)
