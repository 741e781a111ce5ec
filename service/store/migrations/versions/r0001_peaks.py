"""Graphs, peaks and reporters."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from alembic import op

revision: Final = "0001"
down_revision: Final = None


def upgrade() -> None:
    """Create the first tables."""
    op.create_table(
        "graphs",
        sa.Column("graph_id", sa.String(64), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("reporter", sa.String(64), nullable=False),
        sa.Column("received_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("graph_id", name="pk_graphs"),
    )
    op.create_table(
        "reporters",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("peaks", sa.BigInteger(), nullable=False),
        sa.Column("graph_bytes", sa.BigInteger(), nullable=False),
        sa.Column("window_began_ms", sa.BigInteger(), nullable=False),
        sa.Column("window_peaks", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_reporters"),
    )
    op.create_table(
        "peaks",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("key", sa.String(128), nullable=False),
        sa.Column("content_sha256", sa.String(64), nullable=False),
        sa.Column("reporter", sa.String(64), nullable=False),
        sa.Column("received_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("graph_id", sa.String(64), nullable=False),
        sa.Column("configuration", sa.String(64), nullable=False),
        sa.Column("plan", sa.String(64), nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("measured", sa.Text(), nullable=False),
        sa.Column("prior", sa.Text(), nullable=False),
        sa.Column("versions", sa.Text(), nullable=False),
        sa.Column("out_of_memory", sa.Boolean(), nullable=False),
        sa.Column("cache", sa.String(8), nullable=False),
        sa.Column("source", sa.String(16), nullable=False),
        sa.Column("architecture", sa.String(128), nullable=True),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_peaks"),
        sa.UniqueConstraint("key", name="uq_peaks_key"),
        sa.ForeignKeyConstraint(["graph_id"], ["graphs.graph_id"], name="fk_peaks_graph_id"),
    )
    op.create_index("ix_peaks_configuration", "peaks", ["configuration"])
    op.create_index("ix_peaks_status", "peaks", ["status"])
