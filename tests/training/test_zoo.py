"""The zoo: every model builds on fake tensors under its name, runs where it should, and none is reserved."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from peakcast.training.zoo import Case, architectures, build, entries, is_reserved
from peakcast.training.zoo.build import make_optimizer
from peakcast.training.zoo.seed import ENTRIES as SEED_ENTRIES

STEPPED = ("loop_lstm", "gat", "switch_experts", "diagonal_state_space", "conv3d_net", "deep_fm", "nerf", "dit_small")


PUBLISHED = {"resnet50": 25_557_032, "vit_b_16": 86_567_656, "gpt2_small": 124_439_808, "bert_base": 109_514_298}
SAMPLE = sorted({*PUBLISHED, *sorted(entries())[::8]})


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(SAMPLE, id="sample"),
        pytest.param(sorted(entries()), id="all", marks=pytest.mark.slow),
    ],
)
def built(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Build each model once, as a GPU would hold it: always a sample, all of them among the slow tests."""
    script = Path(__file__).with_name("build_zoo.py")
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2] / "src"), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), *request.param],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert sorted(found) == request.param
    return found


def test_every_model_is_of_the_architecture_it_says(built: dict[str, Any]) -> None:
    """The unit of hold-out is the implementing class, so that has to be the true one."""
    assert {name: one["class"] for name, one in built.items()} == {name: architectures()[name] for name in built}


def test_every_model_and_batch_lands_on_the_default_device(built: dict[str, Any]) -> None:
    """No tensor names a device of its own."""
    assert {name: one["devices"] for name, one in built.items() if one["devices"] != ["cuda"]} == {}


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_known_models_have_their_published_size(built: dict[str, Any], name: str, parameters: int) -> None:
    """Parameter counts as torchvision and the models' papers state them."""
    assert built[name]["parameters"] == parameters


def test_there_are_enough_architectures_beyond_the_seed() -> None:
    """At least 45 classes that the first measurements lack."""
    seed = {one.architecture for one in SEED_ENTRIES}
    assert len(set(architectures().values()) - seed) >= 45


def test_no_model_is_reserved() -> None:
    """Neither by its name nor by its class."""
    assert [name for name, cls in architectures().items() if is_reserved(name) or is_reserved(cls)] == []


@pytest.mark.parametrize(
    "name", ["maxvit_tiny", "wide_resnet50_2", "ConvNextV2ForImageClassification", "google/electra-small", "hrnet_w18"]
)
def test_reserved_names_are_known(name: str) -> None:
    """However they are spelt."""
    assert is_reserved(name)


@pytest.mark.parametrize("name", ["resnet50", "ConvNeXt", "MixtralForCausalLM", "convnext_tiny", "HighPerfGpuNet"])
def test_other_names_are_not_reserved(name: str) -> None:
    """Names that only look alike are free."""
    assert not is_reserved(name)


@pytest.mark.parametrize("name", STEPPED)
def test_a_whole_step_runs_on_fake_tensors(name: str) -> None:
    """Forward, loss, backward and optimizer, with state for every parameter that got a gradient."""
    batch = entries()[name].batches[0]
    with FakeTensorMode(allow_non_fake_inputs=True):
        workload = build(Case(name, batch))
        workload.run()
    assert workload.optimizer is not None
    assert workload.model is not None
    assert len(workload.optimizer.state) == len(list(workload.model.parameters()))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(entries()))
def test_a_step_of_every_model_runs_on_fake_tensors(name: str) -> None:
    """Where code asks a fake tensor for a number (layer dropping), it gets one."""
    from peakcast.featurizer.capture.fake_step import new_fake_mode, whole_steps_on_fake_tensors

    with whole_steps_on_fake_tensors(), new_fake_mode():
        build(Case(name, entries()[name].batches[0])).run()


@pytest.mark.parametrize("loop", ["standard", "clip", "accumulate"])
def test_a_step_learns_on_real_tensors(loop: str) -> None:
    """On the CPU a few real steps of each loop change the parameters and leave no gradients behind."""
    torch.manual_seed(0)
    workload = build(Case("deep_sets", 8, loop=loop))  # type: ignore[arg-type]
    assert workload.model is not None
    before = [p.detach().clone() for p in workload.model.parameters()]
    workload.run()
    assert all(not torch.equal(a, b) for a, b in zip(before, workload.model.parameters(), strict=True))
    assert all(p.grad is None for p in workload.model.parameters())


def test_clipping_bounds_the_step() -> None:
    """With a gradient norm of at most 1, SGD at 1e-3 moves all parameters together by at most 1e-3."""
    torch.manual_seed(0)
    workload = build(Case("autoencoder", 4, optimizer="sgd", loop="clip"))
    assert workload.model is not None
    before = torch.cat([p.detach().flatten() for p in workload.model.parameters()])
    workload.run()
    after = torch.cat([p.detach().flatten() for p in workload.model.parameters()])
    assert 0 < (after - before).norm().item() <= 1.001e-3


@pytest.mark.parametrize(
    ("name", "implementation", "expected"),
    [("adamw", None, (True, False)), ("adamw", "fused", (False, True)), ("sgd_momentum", "loop", (False, False))],
)
def test_an_optimizer_says_how_it_is_implemented(
    name: str, implementation: str | None, expected: tuple[bool, bool]
) -> None:
    """Foreach and fused are said outright, because PyTorch's own choice depends on the kind of tensor."""
    optimizer = make_optimizer(name, implementation, [torch.nn.Parameter(torch.zeros(2))])
    assert (bool(optimizer.defaults["foreach"]), bool(optimizer.defaults["fused"])) == expected


def test_a_case_survives_json_and_names_itself() -> None:
    """The key is the same in every process, and nothing is lost on the way."""
    case = Case("resnet18", 64, "bfloat16", optimizer="sgd", loop="clip")
    assert case.key == "resnet18|b64|bfloat16|training|sgd|foreach|clip"
    assert Case.from_dict(json.loads(json.dumps(case.to_dict()))) == case


@pytest.mark.parametrize(
    "fields",
    [
        {"batch": 0},
        {"autocast": "float64"},
        {"task": "inference"},
        {"optimizer": None},
        {"optimizer": "adam9"},
        {"implementation": "vectorised"},
    ],
)
def test_an_impossible_case_is_refused(fields: dict[str, object]) -> None:
    """A wrong value is named in the message."""
    with pytest.raises(ValueError, match=r"batch|autocast|inference|training|optimizer|implementation"):
        Case(**{"model": "resnet18", "batch": 1, **fields})  # type: ignore[arg-type]


def test_expected_peaks_cover_every_model_and_batch() -> None:
    """The scheduler knows roughly how large each case is, and none is too large to share a card."""
    expected = json.loads(resources.files("peakcast.training.zoo").joinpath("expected.json").read_text())
    assert {name: {int(b) for b in expected[name]["peak_bytes"]} for name in entries()} == {
        name: set(one.batches) for name, one in entries().items()
    }
    seed = {one.name for one in SEED_ENTRIES}
    assert max(max(expected[name]["peak_bytes"].values()) for name in entries() if name not in seed) < 9 << 30
