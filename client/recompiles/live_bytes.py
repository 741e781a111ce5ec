"""How many bytes of tensors are alive."""

from __future__ import annotations

import gc

import torch


def allocated_bytes() -> int:
    """Return what the caching allocator holds for tensors, over all CUDA devices; 0 where CUDA has not started."""
    if not torch.cuda.is_initialized():
        return 0
    return sum(torch.cuda.memory_allocated(index) for index in range(torch.cuda.device_count()))


def tensor_bytes() -> int:
    """Return the bytes of all storages that Python objects hold, each once, on any device.

    Walks every object there is, in a tenth of a second and more: for hosts without a GPU, where no allocator counts.
    What only autograd's graph holds is not seen.
    """
    sizes_bytes: dict[int, int] = {}
    for each in gc.get_objects():
        # Not isinstance: it would ask lazy proxies for their class.
        if not issubclass(type(each), torch.Tensor):
            continue
        try:
            storage = each.untyped_storage()
        except (NotImplementedError, RuntimeError):  # fake, sparse and other tensors without bytes of their own
            continue
        if storage.device.type != "meta":
            sizes_bytes[storage._cdata] = storage.nbytes()  # noqa: SLF001 - tells storages apart
    return sum(sizes_bytes.values())
