"""The calls that convolution nodes make to cuDNN, and the scratch of each: one forward, two in turn backward."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from peakcast.featurizer.convolution import backward_scratch_bytes, contiguous_bytes, forward_scratch_bytes
from peakcast.featurizer.convolution_geometry import parse_geometry
from peakcast.featurizer.trace import Trace
from peakcast.featurizer.vocabulary import DTYPE_BYTES, GPU
from peakcast.featurizer.workspace import MOST_SCRATCH_BYTES, Generation, op_name

if TYPE_CHECKING:
    from peakcast.featurizer.spec import GraphSpec


@dataclass(slots=True)
class ConvolutionScratch:
    """Scratch by node.

    `first` and `second` are the places of what a node takes in the first and the second of two calls, `later` the
    storages that second calls make, `spare` the places of what cuDNN does without where memory is short: torch then
    tries its next kernel (`try_configs` in aten/src/ATen/native/cudnn/Conv_v8.cpp), and some take nothing.
    """

    nodes: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    second: list[int] = field(default_factory=list)
    later: list[int] = field(default_factory=list)
    spare: list[int] = field(default_factory=list)

    def add(self, node: int, size_bytes: int, *, is_spare: bool) -> int:
        """Note what a call of a node takes and return its place."""
        place = len(self.nodes)
        self.nodes.append(node)
        self.sizes.append(min(size_bytes, MOST_SCRATCH_BYTES))
        if is_spare:
            self.spare.append(place)
        return place


def convolution_scratch(trace: Trace, spec: GraphSpec, generation: Generation) -> ConvolutionScratch:
    """Return what the convolutions of a trace take to convert layouts and to sum in parts."""
    scratch = ConvolutionScratch()
    found = np.flatnonzero((trace.attribute >= 0) & (trace.device == GPU))
    born = trace.storages.born
    for node in found.tolist():
        geometry = parse_geometry(spec.attributes[trace.attribute[node]])
        if geometry is None:
            continue
        inputs, outputs = trace.inputs.row(node), trace.outputs.row(node)
        if geometry.is_copied and trace.region[node] >= 0 and len(inputs) and born[inputs[0]] >= 0:
            geometry = replace(geometry, is_copied=False)  # the compiler makes it as it must lie (`insertions.py`)
        read = trace.storages.bytes[inputs].tolist()
        is_laid_out = bool(trace.region[node] >= 0 or trace.replayed) and geometry.is_channels_last
        element_bytes = DTYPE_BYTES.get(spec.dtypes[trace.dtype[node]], 0)
        if op_name(spec.ops[trace.op[node]]) == "convolution_backward":
            of_image, of_weight = backward_scratch_bytes(
                geometry, read, element_bytes, generation.multiprocessors, is_laid_out=is_laid_out
            )
            if of_image:
                scratch.first.append(scratch.add(node, of_image, is_spare=True))
                scratch.later += outputs[1:].tolist()
            if of_weight:
                scratch.second.append(scratch.add(node, of_weight, is_spare=True))
            continue
        written = trace.storages.bytes[outputs].tolist()
        of_kernel = forward_scratch_bytes(geometry, read, written, element_bytes, is_laid_out=is_laid_out)
        copied = contiguous_bytes(geometry, read, written, element_bytes)
        if copied:
            scratch.add(node, copied, is_spare=False)
        if of_kernel:
            scratch.add(node, of_kernel, is_spare=True)
    return scratch
