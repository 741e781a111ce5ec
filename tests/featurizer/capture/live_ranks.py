"""Run by test_distributed.py in a process of its own: a rank that trains for real, and asks what its step takes."""

import json
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import peakcast

WIDTH, BATCH = 256, 8


def main() -> None:
    """Wrap a model, train a step, capture it as it is and as one of `argv[2]` ranks, train another step."""
    way, ranks = sys.argv[1], int(sys.argv[2])
    with tempfile.NamedTemporaryFile() as store:
        dist.init_process_group("gloo", init_method=f"file://{store.name}.group", rank=0, world_size=1)
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)))
        if way == "ddp":
            model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        else:
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
            for layer in model:
                fully_shard(layer, mesh=init_device_mesh("cpu", (1,)), mp_policy=policy)
            fully_shard(model, mesh=init_device_mesh("cpu", (1,)), mp_policy=policy)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        inputs = torch.randn(BATCH, WIDTH)

        def train() -> float:
            loss = model(inputs).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return float(loss.detach())

        first = train()
        spec = peakcast.capture(
            model, inputs, loss=lambda out: out.sum(), optimizer=optimizer, plans=["eager"], world_size=ranks or None
        )
        second = train()
        trace = spec.traces["eager"]
        at_start = (trace.storages.born < 0) & (trace.storages.device == 1)
        print(
            json.dumps(
                {
                    "world_size": spec.captured_with.get("world_size"),
                    "parameters_bytes": int(trace.storages.bytes[at_start & (trace.storages.role == 0)].sum()),
                    "bytes_at_start": int(trace.storages.bytes[at_start].sum()),
                    "goes_on": second < first,
                    "casts": "bfloat16" in spec.dtypes,
                }
            )
        )
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
