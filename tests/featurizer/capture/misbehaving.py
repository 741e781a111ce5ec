"""Workloads that do not let themselves be captured."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import NoReturn

from torch import nn


def crashes() -> NoReturn:
    """Die by a signal, as a library that aborts would."""
    print("about to crash", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def hangs() -> NoReturn:
    """Never return."""
    while True:
        time.sleep(60)


def leaves() -> NoReturn:
    """Exit, as a script would at its end."""
    sys.exit(3)


def mistaken() -> NoReturn:
    """Raise the user's own error."""
    raise KeyError("learning_rate")


def a_model() -> nn.Module:
    """Return the model alone."""
    return nn.Linear(2, 2)


def nothing() -> None:
    """Forget the return."""
