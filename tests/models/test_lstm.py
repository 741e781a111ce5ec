"""The LSTM in numpy is the LSTM of torch, and its file gives the same model back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from samples import make_dataset

from peakcast.models.artefact import ArtefactError
from peakcast.models.example import CHANNELS, CONTEXT_NAMES
from peakcast.models.lstm import SequenceModel

HIDDEN, HEAD, TARGETS = 6, 5, 10


@pytest.fixture(scope="module")
def model() -> SequenceModel:
    """Return a model of random weights."""
    random = np.random.default_rng(0)
    shapes = {
        "input_mean": (CHANNELS,),
        "input_std": (CHANNELS,),
        "weight_ih": (4 * HIDDEN, CHANNELS),
        "weight_hh": (4 * HIDDEN, HIDDEN),
        "bias": (4 * HIDDEN,),
        "head_weight": (HEAD, 3 * HIDDEN + len(CONTEXT_NAMES)),
        "head_bias": (HEAD,),
        "out_weight": (TARGETS, HEAD),
        "out_bias": (TARGETS,),
    }
    tensors = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    tensors["input_std"] = np.abs(tensors["input_std"]) + 0.5
    return SequenceModel(tensors)


def test_equals_torch_one_sequence_at_a_time(model: SequenceModel) -> None:
    """Sequences of unlike length in one call give what torch.nn.LSTM gives for each alone."""
    examples = make_dataset(architectures=2, records=2).examples
    examples = [replace(example, peak_step=7) for example in examples]
    found = model.predict(examples)
    t = {name: torch.from_numpy(tensor) for name, tensor in model.tensors.items()}
    lstm = torch.nn.LSTM(CHANNELS, HIDDEN, batch_first=True)
    lstm.load_state_dict(
        {
            "weight_ih_l0": t["weight_ih"],
            "weight_hh_l0": t["weight_hh"],
            "bias_ih_l0": t["bias"],
            "bias_hh_l0": torch.zeros_like(t["bias"]),
        }
    )
    for row, example in enumerate(examples):
        with torch.no_grad():
            steps = (torch.from_numpy(example.steps_TC) - t["input_mean"]) / t["input_std"]
            states = lstm(steps[None])[0][0]
            features = torch.cat([states[7], states[-1], states.mean(0), torch.from_numpy(example.context_K)])
            head = torch.relu(t["head_weight"] @ features + t["head_bias"])
            expected = t["out_weight"] @ head + t["out_bias"]
        assert np.allclose(found[row], expected.numpy(), rtol=1e-4, atol=1e-4)


def test_survives_its_files(model: SequenceModel) -> None:
    """Written and read, the model answers the same to the bit."""
    examples = make_dataset(architectures=1, records=2).examples
    again = SequenceModel.from_files(model.to_files())
    assert np.array_equal(again.predict(examples), model.predict(examples))


def test_refuses_a_model_of_other_inputs(model: SequenceModel) -> None:
    """A model fitted on other context than this code builds is refused by name."""
    files = model.to_files()
    files["lstm.json"] = files["lstm.json"].replace(b"log2_nodes", b"log9_nodes")
    with pytest.raises(ArtefactError, match="context"):
        SequenceModel.from_files(files)
