"""How this package has numba compile: without the interpreter's lock, entries kept in numba's cache.

numba looks at the file of an entry alone to tell whether what it kept is still good. So what an entry calls stands in
its own file, and numbers of other files are handed in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numba

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
# numba's annotations lose those of the function.
_njit: Any = numba.njit


def inner(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Compile a function that only compiled ones call."""
    compiled: Callable[_Parameters, _Result] = _njit(nogil=True)(function)
    return compiled


def leaf(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Compile a function that only compiled ones call, and that neither makes nor copies an array.

    References to the arrays it is given are not counted: in one that runs for each event, that takes longer than the
    rest.
    """
    # numba shows this option under `register_jitable`.
    compiled: Callable[_Parameters, _Result] = _njit(nogil=True, _nrt=False)(function)
    return compiled


def entry(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Compile a function that Python calls, or read it from numba's cache: what it calls is compiled into it."""
    try:
        compiled: Callable[_Parameters, _Result] = _njit(nogil=True, cache=True)(function)
    except RuntimeError:  # neither this folder nor the user's cache can be written to
        return inner(function)
    return compiled
