"""What a call of the model finds, to be put back where the call is ended on its way and made again."""

from __future__ import annotations

from torch import nn

from peakcast.client.rescue.buffers import BufferCopies
from peakcast.client.rescue.rng import RngState


class CallStart:
    """Keep random generators and buffers: what runs before the first compiled part of a model may change them."""

    def __init__(self, model: nn.Module) -> None:
        self._rng = RngState()
        self._buffers = BufferCopies(model).record()

    def put_back(self) -> None:
        """Make them what they were."""
        self._rng.put_back()
        for buffer in self._buffers:
            buffer.put_back()
