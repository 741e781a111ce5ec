"""Run by alembic: migrates over the connection, and within the transaction, that `upgrade` hands it."""

from __future__ import annotations

from alembic import context

from peakcast.service.store.tables import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata)
context.run_migrations()
