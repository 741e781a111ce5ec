"""Let torchvision import beside a CPU build of torch that lacks its compiled operators.

Without them `import torchvision` fails ("operator torchvision::nms does not exist"), and with it every library that
looks for torchvision: timm, and the image models of transformers.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
from pathlib import Path

import torch

_SCHEMAS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
_libraries: list[torch.library.Library] = []  # a library's definitions go when it is collected


def define_missing_operators() -> None:
    """Define the operators torchvision registers fakes for, where its own extension cannot provide them."""
    if _libraries or _is_matching_build():
        return
    library = torch.library.Library("torchvision", "DEF")
    for schema in _SCHEMAS.values():
        library.define(schema)
    _libraries.append(library)


def _is_matching_build() -> bool:
    """Tell whether torchvision is absent, or its compiled operators load."""
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return True
    extensions = list(Path(found.origin).parent.glob("_C.*")) + list(Path(found.origin).parent.glob("_C_*"))
    for extension in extensions:
        try:
            torch.ops.load_library(str(extension))
        except OSError:
            return False
    return hasattr(torch.ops.torchvision, "nms")
