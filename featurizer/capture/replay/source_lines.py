"""From a line of the generated wrapper to the line of the model that it stands for."""

from __future__ import annotations

import sys
from types import FrameType

from torch._inductor.codecache import PyCodeCache  # private: it keeps the map of each module it wrote

from peakcast.featurizer.capture.tape import MACHINERY


def generated_line() -> str:
    """Return `file:line` of the model for what the innermost generated code on the stack is doing; "" where unknown."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename not in PyCodeCache.linemaps:
        frame = frame.f_back
    if frame is None:
        return ""
    found = PyCodeCache.stack_frames_for_code(frame.f_code.co_filename, frame.f_lineno) or ()
    for one in found:  # innermost first
        if not one["filename"].startswith(MACHINERY):
            return f"{one['filename']}:{one['line']}"
    return ""


def forget() -> None:
    """Drop the generated modules and their maps: a process that replays thousands of cases would keep them all."""
    PyCodeCache.cache_clear(purge=True)
