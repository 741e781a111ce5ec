"""The architectures that the final acceptance measures on. Nothing here may enter a corpus, a rule or a test."""

from __future__ import annotations

import re
from typing import Final

# Compared with names and class names in lower case, "_" and "-" removed.
_RESERVED: Final = re.compile(
    "debertav2|albert|segformer|wav2vec2|falcon|dinov2|convnextv2|clip|mamba|gemma"
    "|maxvit|maxxvit|xcit|hrnet|highresolutionnet|edgenext|inceptionv3|wideresnet|resnext|mnasnet|electra|mistral"
)


def is_reserved(name: str) -> bool:
    """Tell whether a model name or the name of its class belongs to a reserved architecture."""
    return _RESERVED.search(re.sub(r"[_\-]", "", name.lower())) is not None
