"""An optimizer's state by the names of its parameters, out of the optimizer and back into one of the same kind."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from peakcast.client.checkpoint.faults import Faults
from peakcast.client.checkpoint.manifest import GroupSpec, OptimizerSpec, TensorSpec
from peakcast.client.checkpoint.tensors import dtype_of, spec_of

# `params` are written as names; `param_names` are the caller's own words for them, wrappers and all.
_NOT_OPTIONS = frozenset({"params", "param_names"})


def innermost(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer inside wrappers, such as accelerate's and Lightning's, which keep it as `optimizer`.

    Raises:
        ValueError: for one that shows no state of its own, since what it keeps lies on other ranks.
    """
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    if isinstance(optimizer, ZeroRedundancyOptimizer):
        raise ValueError("ZeroRedundancyOptimizer keeps its state out of reach; use fully_shard to spread it")  # noqa: TRY004
    return optimizer


def collect(optimizer: Optimizer, names: Mapping[int, str]) -> tuple[OptimizerSpec, dict[str, Tensor]]:
    """Return the optimizer's description, and its tensors by key. `names`: of parameters, by their `id()`.

    Raises:
        ValueError: for a parameter that is not the model's, or state that is neither a tensor nor a JSON value.
    """
    optimizer = innermost(optimizer)
    tensors: dict[str, Tensor] = {}
    groups = []
    for at, group in enumerate(optimizer.param_groups):
        options, specs = _split(group, f"group/{at}", tensors, skip=_NOT_OPTIONS)
        groups.append(GroupSpec(params=[_name(p, names) for p in group["params"]], options=options, tensors=specs))
    states, values = {}, {}
    for parameter, state in optimizer.state.items():
        name = _name(parameter, names)
        values[name], states[name] = _split(state, f"optimizer/{name}", tensors)
    kind = type(optimizer).__name__
    return OptimizerSpec(kind=kind, groups=groups, states=states, values=values), tensors


@dataclass(slots=True)
class Pending:
    """An optimizer about to take over what a checkpoint holds: `tensors` to be filled first, then `apply`."""

    optimizer: Optimizer
    tensors: dict[str, Tensor] = field(default_factory=dict)
    states: dict[Tensor, dict[str, Any]] = field(default_factory=dict)
    options: list[dict[str, Any]] = field(default_factory=list)

    def apply(self) -> None:
        """Put states and options in place."""
        for group, options in zip(self.optimizer.param_groups, self.options, strict=True):
            group.update(options)
        self.optimizer.state.clear()
        self.optimizer.state.update(self.states)


def prepare(optimizer: Optimizer, spec: OptimizerSpec, names: Mapping[int, str]) -> tuple[Pending, Faults]:
    """Check that the optimizer has the checkpoint's parameters in the same groups, and lay out what is to be read.

    Tensors that the optimizer has already are filled in place, so that restoring needs no second copy of its state.
    """
    optimizer = innermost(optimizer)
    pending = Pending(optimizer)
    faults = _group_faults(optimizer, spec, names)
    if faults:
        return pending, faults
    for at, (group, stored) in enumerate(zip(optimizer.param_groups, spec.groups, strict=True)):
        options = {key: _like(group.get(key), value) for key, value in stored.options.items()}
        for key, tensor_spec in stored.tensors.items():
            options[key] = pending.tensors[f"group/{at}/{key}"] = _option_target(group, key, tensor_spec)
        pending.options.append(options)
        for parameter in group["params"]:
            name = names[id(parameter)]
            if name not in spec.states:
                continue
            state: dict[str, Any] = dict(spec.values.get(name, {}))
            for key, tensor_spec in spec.states[name].items():
                target = _target(optimizer.state.get(parameter, {}).get(key), parameter, key, tensor_spec, options)
                if target is None:
                    fault = f"optimizer/{name}/{key}: {tensor_spec.shape} is not its parameter's shape: cannot shard it"
                    faults += Faults(mismatched=(fault,))
                    continue
                state[key] = pending.tensors[f"optimizer/{name}/{key}"] = target
            pending.states[parameter] = state
    return pending, faults


def _group_faults(optimizer: Optimizer, spec: OptimizerSpec, names: Mapping[int, str]) -> Faults:
    kind = type(optimizer).__name__
    if kind != spec.kind:
        return Faults(mismatched=(f"optimizer: {spec.kind} in the checkpoint, {kind} here",))
    mine = [[_name(p, names) for p in group["params"]] for group in optimizer.param_groups]
    theirs = [group.params for group in spec.groups]
    if [set(group) for group in mine] == [set(group) for group in theirs]:
        return Faults()
    have, want = {name for group in theirs for name in group}, {name for group in mine for name in group}
    missing = tuple(f"optimizer/{name}" for name in sorted(want - have))
    unexpected = tuple(f"optimizer/{name}" for name in sorted(have - want))
    other = () if missing or unexpected else ("optimizer: its parameters are grouped in another way",)
    return Faults(missing, unexpected, other)


def _split(
    state: Mapping[str, Any], prefix: str, tensors: dict[str, Tensor], skip: frozenset[str] = frozenset()
) -> tuple[dict[str, Any], dict[str, TensorSpec]]:
    """Part a dict into JSON values and tensors, and add the tensors under the prefix."""
    values, specs = {}, {}
    for key, value in state.items():
        if key in skip:
            continue
        if isinstance(value, Tensor):
            tensors[f"{prefix}/{key}"] = value
            specs[key] = spec_of(value)
        else:
            values[key] = _plain(value, f"{prefix}/{key}")
    return values, specs


def _plain(value: Any, where: str) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(part, where) for part in value]
    finite = not isinstance(value, float) or math.isfinite(value)
    if (value is None or isinstance(value, bool | int | float | str)) and finite:
        return value
    raise ValueError(f"{where} is {str(value)[:60]} ({type(value).__name__}), which a checkpoint cannot hold")


def _name(parameter: Any, names: Mapping[int, str]) -> str:
    if id(parameter) not in names:
        shape = list(getattr(parameter, "shape", []))
        raise ValueError(f"the optimizer has state for a {type(parameter).__name__} {shape} that is not the model's")
    return names[id(parameter)]


def _like(old: Any, value: Any) -> Any:
    """Make a list a tuple where the optimizer has one, as `betas`."""
    return tuple(value) if isinstance(old, tuple) and isinstance(value, list) else value


def _option_target(group: Mapping[str, Any], key: str, spec: TensorSpec) -> Tensor:
    old = group.get(key)
    device = old.device if isinstance(old, Tensor) else "cpu"
    return torch.empty(spec.shape, dtype=dtype_of(spec), device=device)


def _target(old: Any, parameter: Tensor, key: str, spec: TensorSpec, options: Mapping[str, Any]) -> Tensor | None:
    """Return the tensor to fill: the one there is, or a new one where torch's own `load_state_dict` would put it."""
    shape, dtype = torch.Size(spec.shape), dtype_of(spec)
    if isinstance(old, Tensor) and old.shape == shape and old.dtype == dtype:
        return old
    if key == "step" and not shape:
        on_device = options.get("capturable") or options.get("fused")
        return torch.empty(shape, dtype=dtype, device=parameter.device if on_device else "cpu")
    if parameter.shape == shape:
        return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
    if isinstance(parameter, DTensor) and shape.numel() > 1:
        return None
    return torch.empty(shape, dtype=dtype, device=parameter.device)
