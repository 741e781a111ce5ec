"""Where the store is: the URLs that are understood, and the file that is taken where none is given."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

NO_STORE: Final = "none"
# psycopg 3 is the one driver that the `postgres` extra installs.
_POSTGRES: Final = "postgresql+psycopg"
_DRIVERS: Final = {"sqlite": "sqlite", "postgres": _POSTGRES, "postgresql": _POSTGRES, _POSTGRES: _POSTGRES}


def checked_url(text: str) -> str:
    """Return the URL as SQLAlchemy takes it.

    Raises:
        ValueError: if it is none that a store can have. The message does not repeat it: it may hold a password.
    """
    if text == NO_STORE:
        return text
    try:
        url = make_url(text)
    except ArgumentError:
        raise ValueError("is no URL: give sqlite:///FILE, postgresql://USER@HOST/DATABASE or none") from None
    if url.drivername not in _DRIVERS:
        raise ValueError(f"is of kind {url.drivername!r}: give sqlite:///FILE, postgresql://... or none")
    if url.drivername == "sqlite" and (not url.database or url.database == ":memory:"):
        raise ValueError("names no file: give sqlite:///FILE, as in sqlite:////var/lib/peakcast/peaks.db")
    return url.set(drivername=_DRIVERS[url.drivername]).render_as_string(hide_password=False)


def default_url(folder: Path) -> str:
    """Return the URL of the file that is taken where no store is named."""
    return URL.create("sqlite", database=str(folder / "peakcast.db")).render_as_string()


def state_dir() -> Path:
    """Return the folder for what programs of this user keep between runs, by the XDG base directory specification."""
    named = os.environ.get("XDG_STATE_HOME")
    if named:
        return Path(named) / "peakcast"
    try:
        return Path.home() / ".local" / "state" / "peakcast"
    except RuntimeError:  # a user without a home, as in some containers
        return Path("/var/lib/peakcast")
