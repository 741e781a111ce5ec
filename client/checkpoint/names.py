"""The symbolic names of a model's tensors, whatever it is wrapped in, and which modules are compiled.

A name is the path of attributes from the model to the tensor, without wrappers: `torch.compile(DDP(m))` calls a weight
`_orig_mod.module.fc.weight`, `DDP(torch.compile(m))` calls it `module._orig_mod.fc.weight`, and here it is `fc.weight`.
Wrappers are known by their type, so that a module of the user's own called `module` keeps its place in the name.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from torch import Tensor, fx, nn
from torch._dynamo.eval_frame import OptimizedModule
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import ActivationWrapper
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DataParallel, DistributedDataParallel

_WRAPPERS: Final[tuple[tuple[type[nn.Module], str], ...]] = (
    (OptimizedModule, "_orig_mod"),
    (DistributedDataParallel, "module"),
    (DataParallel, "module"),
    (ActivationWrapper, "_checkpoint_wrapped_module"),
)
_PREFIXES: Final = frozenset(attribute for _, attribute in _WRAPPERS)
# What tracing and export put on a graph module as buffers: constants of the graph, no state of the model.
_OWN: Final = re.compile(r"_tensor_constant\d+|_lifted_tensor_constant\d+")


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside any number of wrappers."""
    return _layers(model)[-1]


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and persistent buffers by name, a tied one under each of its names.

    Raises:
        ValueError: where a module keeps state that is no tensor (`get_extra_state`), which would be lost, or is wrapped
            by `FullyShardedDataParallel`, which has no tensors of the model's own shapes.
    """
    found: dict[str, Tensor] = {}
    for path, layers in _walk(model):
        module = layers[-1]
        if isinstance(module, FullyShardedDataParallel):
            raise ValueError(f"{path or 'the model'} is wrapped by FullyShardedDataParallel; use fully_shard")  # noqa: TRY004
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            raise ValueError(f"{path or type(module).__name__} has extra state, which a checkpoint does not hold")
        for name, parameter in module._parameters.items():
            if parameter is not None:
                found[_joined(path, name)] = parameter
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                found[_joined(path, name)] = buffer
    return found


def tensor_ids(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Return a number for each name, the order of the names; tied names have one number."""
    numbers: dict[int, int] = {}
    return {name: numbers.setdefault(id(tensor), len(numbers)) for name, tensor in tensors.items()}


def named_once(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return each tensor under one name: of tied names the first in the alphabet, the same for all models."""
    first: dict[int, str] = {}
    for name in sorted(tensors):
        first.setdefault(id(tensors[name]), name)
    return {name: tensors[name] for name in first.values()}


def graph_owned(model: nn.Module) -> frozenset[str]:
    """Return the names that belong to a compiled graph and not to the model: constants that tracing made buffers of."""
    return frozenset(
        _joined(path, name)
        for path, layers in _walk(model)
        if isinstance(layers[-1], fx.GraphModule)
        for name in layers[-1]._buffers
        if _OWN.fullmatch(name)
    )


def fallback_map(model: nn.Module) -> dict[str, str]:
    """Return how each part of the model runs, `compiled` or `eager`; a module not named runs as its parent does.

    The empty name is the model. Read off the modules themselves, so it holds for any plan and however it was installed.
    """
    found = {"": "eager"}
    for path, layers in _walk(model):
        if any(isinstance(layer, OptimizedModule) or layer._compiled_call_impl is not None for layer in layers):
            found[path] = "compiled"
    return dict(sorted(found.items()))


def plain_state(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename a state dict of a wrapped or compiled model to the model's own names, for a strict load.

    Components of wrappers (`_orig_mod`, `module`) do not count at any depth, so this finds all names or raises, where
    `strict=False` across a prefix loads nothing and says nothing. Load what it returns into `unwrapped(model)`.

    Raises:
        KeyError: with the names that are missing, unexpected, or given twice.
    """
    wanted = tensors_of(model)
    by_bare: defaultdict[str, list[str]] = defaultdict(list)
    for name in wanted:
        by_bare[_bare(name)].append(name)
    renamed: dict[str, Tensor] = {}
    twice: list[str] = []
    for key, tensor in state.items():
        alike = by_bare.get(_bare(key), [])
        name = alike[0] if len(alike) == 1 and key not in wanted else key
        if name in renamed:
            twice.append(name)
        renamed[name] = tensor
    faults = {
        "missing": [name for name in wanted if name not in renamed],
        "unexpected": [name for name in renamed if name not in wanted],
        "given twice": twice,
    }
    if any(faults.values()):
        raise KeyError("; ".join(f"{what}: {', '.join(names)}" for what, names in faults.items() if names))
    return renamed


def _bare(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _PREFIXES)


def _layers(module: nn.Module) -> list[nn.Module]:
    """Return a module with what it wraps, outermost first."""
    layers = [module]
    while (attribute := next((name for kind, name in _WRAPPERS if isinstance(layers[-1], kind)), None)) is not None:
        layers.append(getattr(layers[-1], attribute))
    return layers


def _walk(model: nn.Module, path: str = "") -> Iterator[tuple[str, list[nn.Module]]]:
    """Yield each module in its wrappers, under each of its names."""
    layers = _layers(model)
    yield path, layers
    for name, child in layers[-1]._modules.items():
        if child is not None:
            yield from _walk(child, _joined(path, name))


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
