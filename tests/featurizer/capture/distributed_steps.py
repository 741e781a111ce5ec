"""Run by test_distributed.py in a process of its own: capture one small model wrapped in every way, print its bytes."""

import json
import os
import sys
from typing import Any

from peakcast.featurizer.capture.worker import capture_here, prepare_host

WIDTH, DEPTH, BATCH = 256, 3, 8


def main() -> None:
    """Print, for each way, what lives at the start of a step by role, and the largest temporary gathered."""
    traced_on = prepare_host(allow_cpu=False, world_size=2)
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    from peakcast import Workload
    from peakcast.featurizer.prior import simulate
    from peakcast.featurizer.run import DeviceSpec
    from peakcast.models.asked import run_of

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

        def forward(self, x: Any) -> Any:
            return self.down(torch.relu(self.up(x)))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([Block() for _ in range(DEPTH)])

        def forward(self, x: Any) -> Any:
            for block in self.blocks:
                x = block(x)
            return x

    class Broken(Net):
        def forward(self, x: Any) -> Any:
            x = self.blocks[0](x)
            torch._dynamo.graph_break()
            return self.blocks[2](self.blocks[1](x))

    def sharded(model: Any, **options: Any) -> Any:
        for block in model.blocks:
            fully_shard(block, **options)
        return fully_shard(model, **options)

    def halved(model: Any) -> Any:
        mesh = init_device_mesh("cuda", (2,))
        for block in model.blocks:
            parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        return model

    ddp = nn.parallel.DistributedDataParallel
    ways = {
        "plain": lambda model: model,
        "ddp": lambda model: ddp(model, device_ids=[0]),
        "ddp_broken": lambda _: ddp(Broken().cuda(), device_ids=[0]),
        "ddp_view": lambda model: ddp(model, device_ids=[0], gradient_as_bucket_view=True),
        "fsdp2": sharded,
        "fsdp2_keep": lambda model: sharded(model, reshard_after_forward=False),
        "fsdp2_bf16": lambda model: sharded(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)),
        "fsdp2_offload": lambda model: sharded(model, offload_policy=CPUOffloadPolicy()),
        "tensor": halved,
    }
    for name in sys.argv[2:] or [way for way in ways if way != "ddp_broken"]:
        plan = sys.argv[1]

        def workload(wrap: Any = ways[name]) -> Workload:
            model = wrap(Net().cuda())
            optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
            return Workload(model, torch.randn(BATCH, WIDTH), loss=lambda out: out.sum(), optimizer=optimizer)

        spec = capture_here(workload, [plan], traced_on)
        prior = simulate(spec, plan, run_of(spec), DeviceSpec())
        trace = spec.traces[plan]
        on_card = trace.storages.device == 1
        at_start = on_card & (trace.storages.born < 0)
        print(
            json.dumps(
                {
                    "way": name,
                    "communicators": prior.communicators,
                    "groups": spec.attributes,
                    "regions": int(trace.region.max()) + 1,
                    "world_size": spec.captured_with.get("world_size"),
                    "bytes_at_start": int(trace.storages.bytes[at_start].sum()),
                    "parameters_bytes": int(trace.storages.bytes[at_start & (trace.storages.role == 0)].sum()),
                    "steady_allocated_bytes": prior.steady_allocated_bytes,
                    "collectives": sorted(op for op in spec.ops if op.split(".")[0] in ("c10d", "_c10d_functional")),
                    "gathered": sorted(
                        int(size) for size in trace.storages.bytes[on_card & (trace.storages.born >= 0)].tolist()
                    )[-8:],
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
    os._exit(0)
