"""Where a version comes from: the code, the libraries and the data that made it."""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
from functools import cache
from importlib.metadata import version as installed
from pathlib import Path
from typing import Final

from peakcast._version import __version__

ROOT: Final = Path(__file__).resolve().parents[1]
# What turns records into a pair. A change elsewhere makes no other model.
_MAKERS: Final = ("featurizer", "models", "training")
_LIBRARIES: Final = ("lightgbm", "numpy", "scikit-learn", "torch")
_GIT_TIMEOUT_SEC: Final = 10


def libraries() -> dict[str, str]:
    """Return the versions of what the fit runs on."""
    return {"python": platform.python_version(), **{name: installed(name) for name in _LIBRARIES}}


def code_version() -> str:
    """Return the package's version, and in a checkout the commit: `0.1.0+g1e1a5cd`, `.changed` where files differ."""
    commit = _git("rev-parse", "--short=12", "HEAD")
    if not commit:
        return __version__
    changed = ".changed" if _git("status", "--porcelain", "--untracked-files=no", "--", *_MAKERS) else ""
    return f"{__version__}+g{commit}{changed}"


@cache
def fit_code_sha256() -> str:
    """Return the hash of the code that fits: a step finished under other code is none."""
    digest = hashlib.sha256()
    fitting = [*(ROOT / "training").glob("fit*.py"), ROOT / "training/ablation.py", ROOT / "training/influence.py"]
    for path in sorted([*(ROOT / "models").glob("*.py"), *fitting]):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _git(*arguments: str) -> str:
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        return ""
    try:
        ran = subprocess.run(
            [git, "-C", str(ROOT), *arguments], capture_output=True, text=True, timeout=_GIT_TIMEOUT_SEC, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ran.stdout.strip() if ran.returncode == 0 else ""
