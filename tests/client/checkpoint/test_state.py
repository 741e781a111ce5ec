"""Random state, optimizer options and the command line."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from small_nets import NETS, Mlp, train
from typer.testing import CliRunner

from peakcast.cli import app
from peakcast.client.checkpoint import load, read_manifest, save


def draw() -> list[float]:
    """Draw from each global generator, Gaussian numbers too, of which two of them keep a second one back."""
    numpy = [float(np.random.normal()), float(np.random.random())]  # noqa: NPY002 - the global generator is meant
    return [random.gauss(0, 1), random.random(), *numpy, torch.randn(()).item(), torch.rand(()).item()]


def test_all_random_generators_go_on_where_they_were(tmp_path: Path) -> None:
    """Python's, numpy's and torch's numbers after the restore are those after the save, mid-pair Gaussians too."""
    draw()
    save(tmp_path / "saved", Mlp(), plan="eager")
    expected = [draw() for _ in range(3)]
    assert load(tmp_path / "saved", Mlp()).rng
    assert [draw() for _ in range(3)] == expected


def test_random_state_stays_where_it_is_not_wanted(tmp_path: Path) -> None:
    """`rng=False` restores weights alone."""
    save(tmp_path / "saved", Mlp(), plan="eager")
    model = Mlp()
    torch.manual_seed(3)
    expected = torch.rand(())
    torch.manual_seed(3)
    assert not load(tmp_path / "saved", model, rng=False).rng
    assert torch.equal(torch.rand(()), expected)


def test_options_of_the_groups_come_back(tmp_path: Path) -> None:
    """A learning rate that a scheduler moved, an option that is a tensor, and betas as the tuple they were."""
    model = Mlp()
    decay = torch.tensor(0.125)
    groups = [{"params": model.head.parameters(), "weight_decay": decay}, {"params": model.layers.parameters()}]
    optimizer = torch.optim.AdamW(groups, lr=0.1, betas=(0.5, 0.75), amsgrad=True)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    train(NETS["mlp"], model, optimizer, 1)
    scheduler.step()
    save(tmp_path / "saved", model, optimizer, plan="eager", extra=scheduler.state_dict())

    other = Mlp()
    fresh = torch.optim.AdamW([{"params": other.head.parameters()}, {"params": other.layers.parameters()}])
    fresh_scheduler = torch.optim.lr_scheduler.StepLR(fresh, step_size=1, gamma=0.5)
    fresh_scheduler.load_state_dict(load(tmp_path / "saved", other, fresh).extra)
    first, second = fresh.param_groups
    assert torch.equal(first["weight_decay"], decay)
    assert (second["lr"], second["initial_lr"], second["betas"], second["amsgrad"]) == (0.05, 0.1, (0.5, 0.75), True)
    assert "max_exp_avg_sq" in fresh.state[other.head.weight]
    fresh_scheduler.step()
    assert fresh.param_groups[1]["lr"] == 0.025


def test_an_optimizer_before_its_first_step_has_no_state(tmp_path: Path) -> None:
    """Nothing is made up: the restored optimizer starts its moments itself, as the saved one would."""
    save(tmp_path / "saved", *NETS["gpt"].make(), plan="eager")
    model, optimizer = NETS["gpt"].make()
    train(NETS["gpt"], model, optimizer, 1)
    load(tmp_path / "saved", model, optimizer)
    assert len(optimizer.state) == 0


def test_half_precision_weights_keep_full_precision_moments(tmp_path: Path) -> None:
    """Torch's own `load_state_dict` would round a float32 moment of a bfloat16 weight to bfloat16."""
    model = torch.nn.Linear(3, 3, dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.state[model.weight] = {"momentum_buffer": torch.full((3, 3), 1 / 3)}
    save(tmp_path / "saved", model, optimizer, plan="eager")
    other = torch.nn.Linear(3, 3, dtype=torch.bfloat16)
    fresh = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    load(tmp_path / "saved", other, fresh)
    assert torch.equal(fresh.state[other.weight]["momentum_buffer"], torch.full((3, 3), 1 / 3))


def test_state_that_is_there_is_filled_in_place(tmp_path: Path) -> None:
    """Restoring in a running job needs no second copy of weights or moments."""
    model, optimizer = NETS["mlp"].make()
    train(NETS["mlp"], model, optimizer, 1)
    save(tmp_path / "saved", model, optimizer, plan="eager")
    train(NETS["mlp"], model, optimizer, 1)
    weight, moment = model.head.weight, optimizer.state[model.head.weight]["momentum_buffer"]
    load(tmp_path / "saved", model, optimizer)
    assert model.head.weight is weight
    assert optimizer.state[weight]["momentum_buffer"] is moment


def test_strides_are_the_models_own(tmp_path: Path) -> None:
    """A channels-last weight restores into a contiguous one and back: equal numbers, each in its own layout."""
    last = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    plain = torch.nn.Conv2d(3, 4, 3)
    save(tmp_path / "last", last, plan="eager")
    load(tmp_path / "last", plain)
    assert torch.equal(last.weight, plain.weight)
    assert plain.weight.is_contiguous()
    save(tmp_path / "plain", plain, plan="eager")
    load(tmp_path / "plain", last)
    assert last.weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int8, torch.bool, torch.float8_e4m3fn])
def test_every_kind_of_number_comes_back_as_it_was(dtype: torch.dtype, tmp_path: Path) -> None:
    """Scalars, empty tensors and views of one storage, bit by bit, with infinities and not-a-number."""
    values = torch.tensor([0.0, 1.0, -2.5, float("inf"), float("nan")]).to(dtype)
    model, other = torch.nn.Module(), torch.nn.Module()
    for name, tensor in {"a": values[:3], "b": values[2:], "empty": values[:0], "scalar": values[1]}.items():
        model.register_buffer(name, tensor)
        other.register_buffer(name, torch.zeros_like(tensor))
    save(tmp_path / "saved", model, plan="eager")
    load(tmp_path / "saved", other)
    for name, tensor in model.named_buffers():
        assert torch.equal(other.get_buffer(name).reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))


def test_a_wrapped_optimizer_is_the_one_inside(tmp_path: Path) -> None:
    """Saved as accelerate wraps it, restored into the optimizer itself."""
    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(*NETS["mlp"].make())
    train(NETS["mlp"], model, optimizer, 1)
    save(tmp_path / "saved", model, optimizer, plan="eager")
    other, fresh = NETS["mlp"].make(seed=4)
    load(tmp_path / "saved", other, fresh)
    moments = [state["momentum_buffer"] for state in optimizer.optimizer.state.values()]
    assert all(map(torch.equal, moments, (state["momentum_buffer"] for state in fresh.state.values())))
    assert len(moments) == len(fresh.state) == 8


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_run_on_the_gpu_goes_on_as_it_was(tmp_path: Path) -> None:
    """With the GPU's own random numbers for dropout; step counters stay on the CPU, and a CPU can take over."""
    model, optimizer = NETS["mlp"].make()
    model.cuda()
    batches = [torch.randn(4, 24, device="cuda") for _ in range(4)]

    def steps(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
        losses = []
        for batch in batches:
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    optimizer = torch.optim.AdamW(model.parameters())
    steps(model, optimizer)
    save(tmp_path / "saved", model, optimizer, plan="eager")
    expected = steps(model, optimizer)
    other = Mlp().cuda()
    fresh = torch.optim.AdamW(other.parameters())
    load(tmp_path / "saved", other, fresh)
    assert {state["step"].device.type for state in fresh.state.values()} == {"cpu"}
    assert steps(other, fresh) == expected
    on_cpu = Mlp()
    load(tmp_path / "saved", on_cpu, torch.optim.AdamW(on_cpu.parameters()), rng=False)


def test_show_and_verify_tell_a_person_and_a_program(tmp_path: Path) -> None:
    """`show` prints names and plan, `verify` that all is whole; with --json the manifest and the faults."""
    path = tmp_path / "saved"
    save(path, *NETS["gpt"].make(), plan="hybrid")
    shown = CliRunner().invoke(app, ["checkpoint", "show", str(path)])
    assert shown.exit_code == 0
    assert all(word in shown.output for word in ("hybrid", "AdamW", "embedding.weight", "= head.weight", "[32, 16]"))
    as_json = CliRunner().invoke(app, ["checkpoint", "show", str(path), "--json"])
    assert json.loads(as_json.output) == read_manifest(path).model_dump(by_alias=True)
    whole = CliRunner().invoke(app, ["checkpoint", "verify", str(path)])
    assert (whole.exit_code, "is whole: 2 files" in whole.output) == (0, True)

    file = path / read_manifest(path).folder / "tensors.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    damaged = CliRunner().invoke(app, ["checkpoint", "verify", str(path)])
    assert (damaged.exit_code, "tensors.safetensors has" in damaged.output.replace("\n", "")) == (1, True)
    as_json = CliRunner().invoke(app, ["checkpoint", "verify", str(path), "--json"])
    assert as_json.exit_code == 1
    assert json.loads(as_json.output)["whole"] is False


def test_a_path_without_a_checkpoint_fails_in_one_sentence(tmp_path: Path) -> None:
    """Exit code 1 and what is missing."""
    ran = CliRunner().invoke(app, ["checkpoint", "show", str(tmp_path)])
    assert ran.exit_code == 1
    assert "holds no complete checkpoint" in ran.output.replace("\n", " ")
