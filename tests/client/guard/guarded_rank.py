"""One rank of a training under the guard, run by test_guard_ranks.py: `guarded_rank.py CARD_BYTES [ddp|fsdp2]`."""

from __future__ import annotations

import json
import sys

import torch
from guarded import Training, card
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import peakcast

if __name__ == "__main__":
    torch.distributed.init_process_group("gloo")
    training = Training(width=64)
    if sys.argv[2:] == ["fsdp2"]:
        fully_shard(training.model, mesh=init_device_mesh("cpu", (torch.distributed.get_world_size(),)))
        training.optimizer = type(training.optimizer)(training.model.parameters(), lr=1e-3)
    else:
        training.model = DistributedDataParallel(training.model)
    policy = peakcast.Policy(plans=("eager", "eager:checkpoint"), report=False)
    with peakcast.guard(training.model, training.optimizer, device=card(int(sys.argv[1])), policy=policy) as guard:
        losses = training.losses(guard.step, batch=4096)
        decision = guard.decision
        assert decision is not None
        told = {"plan": guard.plan, "reason": decision.reason, "required": dict(decision.required), "losses": losses}
        told["room_bytes"] = decision.room_bytes
        told["action"] = decision.action
    print("told " + json.dumps(told))
    torch.distributed.destroy_process_group()
