"""Make new tensors on the traced card by default, under fake tensors on any host."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._device import DeviceContext

# These copy data into a device tensor inside C++, below the dispatcher, where a CPU build has no kernel.
_FROM_DATA = (torch.tensor, torch.as_tensor, torch.asarray)


class OnCard(DeviceContext):  # type: ignore[misc,no-untyped-call]
    """The context of `torch.device("cuda:0")`, where tensors made from data are fake too."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Give factory functions the default device; make tensors from data by their shape alone."""
        kwargs = dict(kwargs or {})
        if func in _FROM_DATA and not isinstance(args[0] if args else kwargs.get("data"), torch.Tensor):
            device = torch.device(kwargs.pop("device", None) or self.device)
            if device.type == "cuda":
                requires_grad = kwargs.pop("requires_grad", False)
                with unset_fake_temporarily():
                    data = func(*args, **kwargs, device="cpu")
                # Empty: a fake tensor that remembers its data would be computed with for real, on the card.
                made = torch.empty_strided(data.size(), data.stride(), dtype=data.dtype, device=device)
                return made.requires_grad_() if requires_grad else made
            kwargs["device"] = device
        return super().__torch_function__(func, types, args, kwargs)
