"""WORKLOAD names on the command line: `package.module:name` or `path/to/file.py:name`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def load_target(target: str) -> Callable[[], Any]:
    """Import the function a WORKLOAD names.

    Raises:
        ValueError: if the text is not of one of the two forms, the file or module is not there, or has no such
            function.
    """
    where, colon, name = target.rpartition(":")
    if not colon or not where or not name.isidentifier():
        raise ValueError(f"WORKLOAD is package.module:name or path/to/file.py:name, not {target!r}")
    module = _load_file(Path(where)) if where.endswith(".py") else _load_module(where)
    function = getattr(module, name, None)
    if not callable(function):
        own = {key: value for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__}
        offered = sorted(key for key, value in own.items() if callable(value) and not key.startswith("_"))
        raise ValueError(f"{where} has no function {name!r}; it has: {', '.join(offered) or 'none'}")  # noqa: TRY004
    return function  # type: ignore[no-any-return]


def _load_file(path: Path) -> Any:
    if not path.is_file():
        raise ValueError(f"no such file: {path}")
    # As a script is run: its folder first on the path, so that it finds its neighbours.
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"not a Python file: {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses and pickle look modules up by name
    spec.loader.exec_module(module)
    return module


def _load_module(name: str) -> Any:
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and name.startswith(error.name):
            raise ValueError(
                f"no module named {name!r} (looked in the current folder and the installed packages)"
            ) from error
        raise
