"""Builders for models that live in torchvision, timm and transformers: random weights, nothing downloaded."""

from __future__ import annotations

import contextlib
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

    Three habits do. Stochastic depth is spread by `torch.linspace(0, rate, depth).tolist()` and widths are made from
    `torch.arange`: these fake tensors get to remember the constants they stand for, parts of them too. And
    `trunc_normal_` redraws until nothing lies outside: it is left out.
    """
    if detect_fake_mode() is None:
        yield
        return

    def remembering(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def made(*args: Any, **options: Any) -> torch.Tensor:
            fake = original(*args, **options)
            with unset_fake_temporarily(), torch.device("cpu"):
                fake.constant = original(*args, **{**options, "device": "cpu"})  # type: ignore[attr-defined]
            return fake

        return made

    def no_draw(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return tensor

    with (
        mock.patch.object(torch, "linspace", remembering(torch.linspace)),
        mock.patch.object(torch, "arange", remembering(torch.arange)),
        mock.patch.object(init, "_no_grad_trunc_normal_", no_draw),
        # From two elements on, fake tensors forget constants: a model has more blocks than that.
        mock.patch.object(fake_tensor, "CONSTANT_NUMEL_LIMIT", 1024),
    ):
        yield
