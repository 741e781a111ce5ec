"""The LSTM of the pair: the node sequence in, a first guess of what the simulation missed out. Inference in numpy.

Shapes: P sequences, T steps, C channels, H hidden, K context, Q quantities. Fitted by `training.fit_lstm` in torch;
run here without it: one loop over at most MAX_STEPS steps, all plans of a request at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import numpy as np
import orjson
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from peakcast.featurizer.op_embedding import shipped_embedding
from peakcast.featurizer.vocabulary import QUANTITIES
from peakcast.models.artefact import ArtefactError
from peakcast.models.example import CHANNELS, CONTEXT_NAMES, Example, Floats, Singles

# Names and shapes of the tensors, in terms of hidden (H), head (D). PyTorch's gate order: input, forget, cell, output.
TENSORS = (
    "input_mean",
    "input_std",
    "weight_ih",
    "weight_hh",
    "bias",
    "head_weight",
    "head_bias",
    "out_weight",
    "out_bias",
)


@dataclass(frozen=True, slots=True, eq=False)
class SequenceModel:
    """A one-layer LSTM, read at the step of the peak, at the end and on average, and a two-layer head.

    Attributes:
        tensors: float32; input_mean, input_std [C], weight_ih [4H, C], weight_hh [4H, H], bias [4H],
            head_weight [D, 3H + K], head_bias [D], out_weight [2Q, D], out_bias [2Q].
    """

    tensors: Mapping[str, Singles]

    @property
    def hidden(self) -> int:
        """Return H."""
        return int(self.tensors["weight_hh"].shape[1])

    def predict(self, examples: Sequence[Example]) -> Floats:
        """Return [P, 2Q]: for each quantity the relative correction, then for each the additive one (asinh units)."""
        t = self.tensors
        states, hidden = self._states(examples), self.hidden
        rows = np.arange(len(examples))
        lengths = np.array([len(example.steps_TC) for example in examples])
        peaks = np.array([example.peak_step for example in examples])
        inside = (np.arange(states.shape[0])[:, None] < lengths)[:, :, None]
        mean = (states * inside).sum(axis=0) / lengths[:, None]
        context = np.stack([example.context_K for example in examples])
        features = np.concatenate([states[peaks, rows], states[lengths - 1, rows], mean, context], axis=1)
        assert features.shape[1] == 3 * hidden + len(CONTEXT_NAMES)
        head = np.maximum(features @ t["head_weight"].T + t["head_bias"], 0.0)
        return np.asarray(head @ t["out_weight"].T + t["out_bias"], dtype=np.float64)

    def _states(self, examples: Sequence[Example]) -> Singles:
        """Run the recurrence. Returns the hidden states [T, P, H]; past a sequence's end they mean nothing.

        Every result is written into an array made before the loop: at 128 steps of ten small operations each, making
        new ones would take as long as the arithmetic.
        """
        t, hidden = self.tensors, self.hidden
        longest, count = max(len(example.steps_TC) for example in examples), len(examples)
        inputs = np.zeros((longest, count, CHANNELS), np.float32)
        for row, example in enumerate(examples):
            inputs[: len(example.steps_TC), row] = (example.steps_TC - t["input_mean"]) / t["input_std"]
        # sigmoid(x) = (1 + tanh(x / 2)) / 2: with three gates halved, one tanh serves all four.
        half = np.full(4 * hidden, 0.5, np.float32)
        half[2 * hidden : 3 * hidden] = 1.0
        projected = (inputs @ t["weight_ih"].T + t["bias"]) * half
        recurrent = np.ascontiguousarray((t["weight_hh"] * half[:, None]).T)
        states = np.empty((longest, count, hidden), np.float32)
        gates = np.empty((count, 4 * hidden), np.float32)
        opened = np.empty_like(gates)  # the gates as shares; its third quarter means nothing
        let_in, keep, let_out = opened[:, :hidden], opened[:, hidden : 2 * hidden], opened[:, 3 * hidden :]
        candidate = gates[:, 2 * hidden : 3 * hidden]
        one_half = np.array(0.5, np.float32)
        state, cell, new = (np.zeros((count, hidden), np.float32) for _ in range(3))
        # Looked up once, results by position, `dot` for `matmul`: a fifth of the time goes into calling.
        dot, add, multiply, tanh = np.dot, np.add, np.multiply, np.tanh
        for of_step, state_after in zip(projected, states, strict=True):
            dot(state, recurrent, gates)
            add(gates, of_step, gates)
            tanh(gates, gates)
            multiply(gates, one_half, opened)
            add(opened, one_half, opened)
            multiply(keep, cell, cell)
            multiply(let_in, candidate, new)
            add(cell, new, cell)
            tanh(cell, new)
            multiply(let_out, new, state_after)
            state = state_after
        return states

    def to_files(self) -> dict[str, bytes]:
        """Return the files of an artefact: `lstm.safetensors` and `lstm.json`."""
        config = {
            "hidden": self.hidden,
            "channels": CHANNELS,
            "context": list(CONTEXT_NAMES),
            "quantities": list(QUANTITIES),
            "op_embedding_sha256": embedding_sha256(),
        }
        tensors = {name: np.ascontiguousarray(self.tensors[name], np.float32) for name in TENSORS}
        return {"lstm.safetensors": save_tensors(tensors), "lstm.json": orjson.dumps(config)}

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> Self:
        """Read what `to_files` gave.

        Raises:
            ArtefactError: if it was made for other channels, context, quantities or operator vectors than this code's.
        """
        config: dict[str, Any] = orjson.loads(files["lstm.json"])
        expected = {
            "channels": CHANNELS,
            "context": list(CONTEXT_NAMES),
            "quantities": list(QUANTITIES),
            "op_embedding_sha256": embedding_sha256(),
        }
        for name, value in expected.items():
            if config.get(name) != value:
                fitted = config.get(name)
                raise ArtefactError(f"the LSTM was fitted with {name} {fitted}, this version has {value}: train again")
        tensors = load_tensors(files["lstm.safetensors"])
        return cls({name: tensors[name] for name in TENSORS})


@cache
def embedding_sha256() -> str:
    """Return the hash of the operators' vectors: under others, the same weights would read noise."""
    return hashlib.sha256(shipped_embedding().to_json()).hexdigest()
