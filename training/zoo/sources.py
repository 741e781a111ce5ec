"""Builders for models that live in torchvision, timm and transformers: random weights, nothing downloaded."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._guards import detect_fake_mode
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.nn import init

from peakcast.featurizer.capture.torchvision_ops import define_missing_operators

Make = Callable[[], nn.Module]


def torchvision_model(name: str, **options: Any) -> Make:
    """Build `torchvision.models.<name>`; a dot leads into a subpackage ("segmentation.fcn_resnet50")."""

    def make() -> nn.Module:
        define_missing_operators()
        from torchvision import models

        owner: Any = models
        for part in name.split("."):
            owner = getattr(owner, part)
        with buildable_under_fake_tensors():
            model: nn.Module = owner(weights=None, **options)
        return model

    return make


def timm_model(name: str, **options: Any) -> Make:
    """Build a timm model by name."""

    def make() -> nn.Module:
        define_missing_operators()
        import timm

        with buildable_under_fake_tensors():
            model: nn.Module = timm.create_model(name, pretrained=False, **options)
        return model

    return make


def transformers_model(class_name: str, config_name: str, **options: Any) -> Make:
    """Build a transformers model from a configuration; the key-value cache is off, as in training."""

    def make() -> nn.Module:
        define_missing_operators()  # transformers imports torchvision where it is installed
        import transformers

        config = getattr(transformers, config_name)(**options)
        if hasattr(config, "use_cache"):
            config.use_cache = False
        with buildable_under_fake_tensors():
            model: nn.Module = getattr(transformers, class_name)(config)
        return model

    return make


@contextlib.contextmanager
def buildable_under_fake_tensors() -> Iterator[None]:
    """Let constructors that read their own tensors run under fake tensors, which hold no values.

    Three habits do. Stochastic depth is spread by `torch.linspace(0, rate, depth).tolist()`: that fake tensor gets to
    remember the constant it stands for, parts of it too. `trunc_normal_` redraws until nothing lies outside: it is left
    out. RegNet computes its widths with tensors: it does so on real ones.
    """
    if detect_fake_mode() is None:
        yield
        return
    original = torch.linspace

    def linspace(*args: Any, **options: Any) -> torch.Tensor:
        fake = original(*args, **options)
        with _real_tensors():
            fake.constant = original(*args, **{**options, "device": "cpu"})  # type: ignore[attr-defined]
        return fake

    def no_draw(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return tensor

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch, "linspace", linspace))
        stack.enter_context(mock.patch.object(init, "_no_grad_trunc_normal_", no_draw))
        # From two elements on, fake tensors forget constants: a model has more blocks than that.
        stack.enter_context(mock.patch.object(fake_tensor, "CONSTANT_NUMEL_LIMIT", 1024))
        regnet = sys.modules.get("torchvision.models.regnet")
        if regnet is not None:
            stack.enter_context(_widths_of_real_tensors(regnet.BlockParams))
        yield


@contextlib.contextmanager
def _real_tensors() -> Iterator[None]:
    with unset_fake_temporarily(), torch.device("cpu"):
        yield


def _widths_of_real_tensors(block_params: Any) -> contextlib.AbstractContextManager[Any]:
    original = block_params.from_init_params

    def from_init_params(*args: Any, **options: Any) -> Any:
        with _real_tensors():
            return original(*args, **options)

    return mock.patch.object(block_params, "from_init_params", from_init_params)
