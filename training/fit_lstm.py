"""Fit the LSTM of the pair in torch: two tasks, what the simulation missed and the simulated watermark itself.

The watermark is known at every step of every graph, so it teaches the cell which nodes keep memory alive; the few
measured corrections then only have to read that off. Deterministic for a seed: one thread, no dropout, fixed order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from peakcast.models.example import CHANNELS, CONTEXT_NAMES, Example, Floats
from peakcast.models.lstm import SequenceModel
from peakcast.training.fit_settings import SequenceSettings

# Shapes: P examples, B batch, T steps, C channels, H hidden, D head, K context, Q quantities (2Q targets).


class _Net(nn.Module):
    def __init__(self, settings: SequenceSettings, targets: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(CHANNELS, settings.hidden, batch_first=True)
        self.watermark = nn.Linear(settings.hidden, 1)
        self.head = nn.Linear(3 * settings.hidden + len(CONTEXT_NAMES), settings.head)
        self.out = nn.Linear(settings.head, targets)
        # Start at "nothing to correct".
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(
        self, steps_BTC: torch.Tensor, lengths_B: torch.Tensor, peaks_B: torch.Tensor, context_BK: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return corrections [B, 2Q] and watermark [B, T]."""
        states, _ = self.lstm(steps_BTC)
        rows = torch.arange(len(states))
        inside = (torch.arange(states.shape[1]) < lengths_B[:, None])[:, :, None]
        mean = (states * inside).sum(1) / lengths_B[:, None]
        features = torch.cat([states[rows, peaks_B], states[rows, lengths_B - 1], mean, context_BK], dim=1)
        corrections = self.out(functional.relu(self.head(features)))
        return corrections, self.watermark(states).squeeze(-1)


def fit_sequence_model(
    examples: Sequence[Example],
    targets_PW: Floats,
    weight_P: Floats,
    *,
    seed: int,
    settings: SequenceSettings | None = None,
    is_replayed_P: NDArray[np.bool_] | None = None,
) -> SequenceModel:
    """Fit on examples and 2Q targets: relative corrections, then additive ones (asinh units); NaN: not measured.

    Where labels were replayed, the first half of the epochs goes over all records and the second over the others: what
    a card alone can show has the last word.
    """
    settings = settings or SequenceSettings()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            replayed = np.zeros(len(examples), bool) if is_replayed_P is None else is_replayed_P
            return _fit(examples, targets_PW, weight_P, replayed, seed, settings)
    finally:
        torch.set_num_threads(threads)


def _fit(
    examples: Sequence[Example],
    targets_PW: Floats,
    weight_P: Floats,
    replayed_P: NDArray[np.bool_],
    seed: int,
    settings: SequenceSettings,
) -> SequenceModel:
    flat = np.concatenate([example.steps_TC for example in examples]).astype(np.float64)
    mean, std = flat.mean(axis=0).astype(np.float32), np.maximum(flat.std(axis=0), 1e-3).astype(np.float32)
    tensors = _to_tensors(examples, mean, std)
    targets = torch.from_numpy(np.nan_to_num(targets_PW).astype(np.float32))
    measured = torch.from_numpy(np.isfinite(targets_PW).astype(np.float32) * weight_P[:, None].astype(np.float32))
    net = _Net(settings, targets_PW.shape[1])
    # Of like length side by side, so that little is padding.
    by_length = np.argsort([len(example.steps_TC) for example in examples], kind="stable")
    measured_rows = by_length[~replayed_P[by_length]]
    phases = [(by_length, settings.epochs)]
    if replayed_P.any() and len(measured_rows):
        phases = [(by_length, settings.epochs - settings.epochs // 2), (measured_rows, settings.epochs // 2)]
    order = np.random.default_rng(seed)
    for rows, epochs in phases:
        _descend(net, [*tensors, targets, measured], rows, epochs, order, settings)
    return _export(net, mean, std)


def _descend(
    net: _Net,
    columns: Sequence[torch.Tensor],
    rows: NDArray[np.int64],
    epochs: int,
    order: np.random.Generator,
    settings: SequenceSettings,
) -> None:
    """Go over the rows so many times; the order of the batches changes with each."""
    batches = [rows[start : start + settings.batch] for start in range(0, len(rows), settings.batch)]
    optimizer = torch.optim.AdamW(net.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=settings.learning_rate, total_steps=epochs * len(batches)
    )
    for _ in range(epochs):
        for batch in order.permutation(len(batches)):
            chosen = torch.from_numpy(batches[batch].copy())
            *inputs, targets, measured = (column[chosen] for column in columns)
            loss = _loss(net, inputs, targets, measured, settings)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            schedule.step()


def _loss(
    net: _Net,
    inputs: Sequence[torch.Tensor],
    targets: torch.Tensor,
    measured: torch.Tensor,
    settings: SequenceSettings,
) -> torch.Tensor:
    steps, lengths, peaks, context, watermark = inputs
    longest = int(lengths.max())
    corrections, live = net(steps[:, :longest], lengths, peaks, context)
    # Robust: quadratic up to 1 % (of the unit, for bytes), linear beyond, so that a few wild priors do not rule.
    error = functional.smooth_l1_loss(corrections, targets, beta=0.01, reduction="none")
    inside = (torch.arange(longest) < lengths[:, None]).float()
    live_error = functional.mse_loss(live, watermark[:, :longest], reduction="none")
    corrected = (error * measured).sum() / measured.sum().clamp(min=1e-6)
    return corrected + settings.watermark_weight * (live_error * inside).sum() / inside.sum()


def _to_tensors(examples: Sequence[Example], mean: np.ndarray, std: np.ndarray) -> list[torch.Tensor]:
    """Return steps [P, T, C] padded with zeros, lengths [P], peak steps [P], context [P, K], watermark [P, T]."""
    longest = max(len(example.steps_TC) for example in examples)
    steps = np.zeros((len(examples), longest, CHANNELS), np.float32)
    watermark = np.zeros((len(examples), longest), np.float32)
    for row, example in enumerate(examples):
        steps[row, : len(example.steps_TC)] = (example.steps_TC - mean) / std
        watermark[row, : len(example.watermark_T)] = example.watermark_T
    return [
        torch.from_numpy(steps),
        torch.tensor([len(example.steps_TC) for example in examples]),
        torch.tensor([example.peak_step for example in examples]),
        torch.from_numpy(np.stack([example.context_K for example in examples])),
        torch.from_numpy(watermark),
    ]


def _export(net: _Net, mean: np.ndarray, std: np.ndarray) -> SequenceModel:
    state = {name: value.detach().numpy().copy() for name, value in net.state_dict().items()}
    return SequenceModel(
        {
            "input_mean": mean,
            "input_std": std,
            "weight_ih": state["lstm.weight_ih_l0"],
            "weight_hh": state["lstm.weight_hh_l0"],
            "bias": state["lstm.bias_ih_l0"] + state["lstm.bias_hh_l0"],
            "head_weight": state["head.weight"],
            "head_bias": state["head.bias"],
            "out_weight": state["out.weight"],
            "out_bias": state["out.bias"],
        }
    )
