"""Brings a store to the tables of this version, by the migrations in `migrations/`. None is taken back."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.script.revision import ResolutionError
from alembic.util.exc import CommandError
from sqlalchemy import Engine

from peakcast.service.store.engine import lock_until_commit
from peakcast.service.store.errors import StoreError

_MIGRATIONS: Final = Path(__file__).parent / "migrations"
# Any number that nothing else in the database locks: the first bytes of "peakcast".
_LOCK: Final = int.from_bytes(b"peakcas", "big")


def upgrade(engine: Engine) -> None:
    """Create or upgrade the tables. Several processes that start at once do it one after the other.

    Raises:
        StoreError: if a newer version of peakcast made the store.
        SQLAlchemyError: if the database does not answer.
    """
    logging.getLogger("alembic").setLevel(logging.WARNING)
    with engine.begin() as connection:
        lock_until_commit(connection, _LOCK)
        config = _config()
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, "head")
        except (CommandError, ResolutionError) as error:
            raise StoreError(f"the store was made by a newer peakcast ({error}): upgrade this one") from error


def newest_revision() -> str:
    """Return the name of the last migration."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    assert head is not None
    return head


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
