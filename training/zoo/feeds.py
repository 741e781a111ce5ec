"""Batches and losses of the zoo's models. Tensors land on the default device. B batch, T tokens, V vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from peakcast.training.zoo.entry import Criterion, Feed

CLASSES = 10  # labels are drawn below this, whatever the head's width: the number changes no allocation


def tensor_of(output: Any) -> torch.Tensor:
    """Find the tensor a loss applies to: the output, its first element, or its logits."""
    if isinstance(output, torch.Tensor):
        return output
    if isinstance(output, tuple | list):
        return tensor_of(output[0])
    if hasattr(output, "logits"):
        return tensor_of(output.logits)
    if isinstance(output, dict) and "out" in output:
        return tensor_of(output["out"])
    raise TypeError(f"no tensor to compute a loss on in {type(output).__name__}")


def cross_entropy(target: torch.Tensor) -> Criterion:
    """Flatten all but the last dimension, classes last: the seed's loss."""

    def loss(output: Any) -> torch.Tensor:
        out = tensor_of(output)
        return functional.cross_entropy(out.flatten(0, -2), target.flatten())

    return loss


def dense_cross_entropy(target: torch.Tensor) -> Criterion:
    """Score a map of classes [B, C, ...] against labels [B, ...]."""

    def loss(output: Any) -> torch.Tensor:
        return functional.cross_entropy(tensor_of(output), target)

    return loss


def mean_square(target: torch.Tensor) -> Criterion:
    """Mean squared error against a target of the output's shape."""

    def loss(output: Any) -> torch.Tensor:
        return functional.mse_loss(tensor_of(output), target)

    return loss


def binary(target: torch.Tensor) -> Criterion:
    """Binary cross entropy on logits of the target's shape."""

    def loss(output: Any) -> torch.Tensor:
        return functional.binary_cross_entropy_with_logits(tensor_of(output).flatten(), target.flatten())

    return loss


def mean_of_squares(output: Any) -> torch.Tensor:
    """Mean over every tensor put out of its squares: for models whose own loss needs matching or sampling."""
    tensors = [output] if isinstance(output, torch.Tensor) else list(_tensors(output))
    return torch.stack([t.float().square().mean() for t in tensors]).sum()


def _tensors(output: Any) -> Sequence[torch.Tensor]:
    values = output.values() if isinstance(output, dict) else output
    return [t for value in values for t in ([value] if isinstance(value, torch.Tensor) else _tensors(value))]


def image(pixels: int, channels: int = 3) -> Feed:
    """Images [B, channels, pixels, pixels] with one label each."""
    return lambda b: (
        (torch.randn(b, channels, pixels, pixels),),
        cross_entropy(torch.randint(CLASSES, (b,))),
    )


def image_to_labels(pixels: int, classes: int = CLASSES, shrink: int = 1) -> Feed:
    """Images with a map of labels of `pixels / shrink` on a side."""
    side = pixels // shrink
    return lambda b: (
        (torch.randn(b, 3, pixels, pixels),),
        dense_cross_entropy(torch.randint(classes, (b, side, side))),
    )


def image_to_image(pixels: int, channels: int = 3, scale: int = 1) -> Feed:
    """Images with a target image `scale` times as large."""
    side = pixels * scale
    return lambda b: (
        (torch.randn(b, channels, pixels, pixels),),
        mean_square(torch.randn(b, channels, side, side)),
    )


def vectors(*shape: int) -> Feed:
    """Floats [B, *shape] with one label each."""
    return lambda b: ((torch.randn(b, *shape),), cross_entropy(torch.randint(CLASSES, (b,))))


def vectors_to_vectors(shape: Sequence[int], target: Sequence[int]) -> Feed:
    """Floats [B, *shape] with a float target [B, *target]."""
    return lambda b: ((torch.randn(b, *shape),), mean_square(torch.randn(b, *target)))


def unlabelled(*shape: int) -> Feed:
    """Floats [B, *shape]; the loss is the mean of the squares of what comes out."""
    return lambda b: ((torch.randn(b, *shape),), mean_of_squares)


def tokens(length: int, vocabulary: int) -> Feed:
    """Token ids [B, T] with a target id each: for plain modules that return logits [B, T, V]."""
    return lambda b: (
        (torch.randint(vocabulary, (b, length)),),
        cross_entropy(torch.randint(vocabulary, (b, length))),
    )


def token_labels(length: int, vocabulary: int) -> Feed:
    """Token ids [B, T] with one class per sequence."""
    return lambda b: ((torch.randint(vocabulary, (b, length)),), cross_entropy(torch.randint(CLASSES, (b,))))


def ids(columns: int, rows: int) -> Feed:
    """Categorical ids [B, columns] with one label each."""
    return lambda b: ((torch.randint(rows, (b, columns)),), cross_entropy(torch.randint(CLASSES, (b,))))


def clicks(columns: int, rows: int) -> Feed:
    """Categorical ids [B, columns] with one click (0 or 1) each."""
    return lambda b: ((torch.randint(rows, (b, columns)),), binary(torch.rand(b)))


def nodes(count: int, width: int) -> Feed:
    """Features [count, width] of one graph; its size is fixed, so the batch is always 1."""
    return lambda _: ((torch.randn(count, width),), cross_entropy(torch.randint(CLASSES, (count,))))


def language(length: int, vocabulary: int) -> Feed:
    """Keyword inputs of a transformers language model, which computes its own loss."""

    def feed(b: int) -> tuple[Any, None]:
        input_ids = torch.randint(vocabulary, (b, length))
        return {"input_ids": input_ids, "labels": input_ids.clone()}, None

    return feed


def masked_language(length: int, vocabulary: int) -> Feed:
    """As `language`, with the attention mask that tokenisers give (all ones: nothing is padded)."""

    def feed(b: int) -> tuple[Any, None]:
        input_ids = torch.randint(5, vocabulary, (b, length))
        return {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids), "labels": input_ids.clone()}, None

    return feed


def features(name: str, *shape: int, classes: int = CLASSES) -> Feed:
    """One float input by name with a class label, for transformers models that compute their own loss."""
    return lambda b: ({name: torch.randn(b, *shape), "labels": torch.randint(classes, (b,))}, None)


def speech_to_text(bins: int, frames: int, length: int, vocabulary: int) -> Feed:
    """Log-mel frames [B, bins, frames] with token labels [B, T]."""
    return lambda b: (
        {"input_features": torch.randn(b, bins, frames), "labels": torch.randint(vocabulary, (b, length))},
        None,
    )


def pixels_by_name(side: int, wrap: Callable[[torch.Tensor], Criterion] | None = None) -> Feed:
    """`pixel_values` [B, 3, side, side] with a class label, computed by the model or by `wrap`."""
    if wrap is None:
        return features("pixel_values", 3, side, side)
    return lambda b: ({"pixel_values": torch.randn(b, 3, side, side)}, wrap(torch.randint(CLASSES, (b,))))
