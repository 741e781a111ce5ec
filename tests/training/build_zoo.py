"""Build the models of the zoo that are named on fake tensors of a GPU that is not there, and print them as JSON.

A script of its own: the shim that fakes the GPU has to be loaded before torch, and changes torch for good.
"""

from __future__ import annotations

import json
import sys

from peakcast.featurizer.capture import shim

shim.load()
from peakcast.featurizer.capture import cuda_host  # noqa: E402

cuda_host.pretend()
import torch  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from peakcast.training.zoo import entries  # noqa: E402

found = {}
for name in sys.argv[1:]:
    one = entries()[name]
    with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cuda:0"):
        model = one.make()
        tensors = [*model.parameters(), *model.buffers()]
        inputs, _ = one.feed(1)
        tensors += inputs.values() if isinstance(inputs, dict) else inputs
        found[name] = {
            "class": type(model).__name__,
            "parameters": sum(p.numel() for p in model.parameters()),
            "devices": sorted({t.device.type for t in tensors}),
        }
print(json.dumps(found))
