"""A compiler that makes each graph anew, without its C++ compiler doing the same work again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch._functorch.config
import torch._inductor.config


@contextlib.contextmanager
def compiled_anew() -> Iterator[None]:
    """Have inductor schedule each graph itself; a kernel whose source it has compiled before is not compiled again."""
    with (
        torch._inductor.config.patch(fx_graph_cache=False, fx_graph_remote_cache=False),
        torch._functorch.config.patch(enable_autograd_cache=False, enable_remote_autograd_cache=False),
    ):
        yield
