"""What does not belong together is refused with the keys, and nothing of it is loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch
from small_nets import NETS, Gpt, Mlp, train
from torch import nn

from peakcast.client.checkpoint import CheckpointError, RefusedError, load, read_manifest, save, verify


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Give a checkpoint of a trained Mlp with its optimizer."""
    model, optimizer = NETS["mlp"].make()
    train(NETS["mlp"], model, optimizer, 2)
    save(tmp_path / "saved", model, optimizer, plan="inductor", graph_id="ab" * 32, extra={"step": 2})
    return tmp_path / "saved"


def unlike(change: Callable[[nn.Module], None]) -> nn.Module:
    """Give an Mlp with something changed."""
    model = Mlp()
    change(model)
    return model


def longer(model: Any) -> None:
    """Give the model a layer that the checkpoint lacks."""
    model.extra = nn.Linear(2, 2)


def shorter(model: Any) -> None:
    """Take away a layer that the checkpoint has."""
    del model.head


def wider(model: Any) -> None:
    """Change a shape."""
    model.head = nn.Linear(24, 5)


def coarser(model: Any) -> None:
    """Change a dtype."""
    model.head.bfloat16()


def tied(model: Any) -> None:
    """Let two layers share a weight that they do not share in the checkpoint."""
    model.layers[2].linear.weight = model.layers[1].linear.weight


@pytest.mark.parametrize(
    ("change", "missing", "unexpected", "mismatched"),
    [
        (longer, ["extra.weight", "extra.bias"], [], []),
        (shorter, [], ["head.weight", "head.bias"], []),
        (wider, [], [], ["head.weight: float32 [4, 24] in the checkpoint, float32 [5, 24] in the model",
                         "head.bias: float32 [4] in the checkpoint, float32 [5] in the model"]),
        (coarser, [], [], ["head.weight: float32 [4, 24] in the checkpoint, bfloat16 [4, 24] in the model",
                           "head.bias: float32 [4] in the checkpoint, bfloat16 [4] in the model"]),
        (tied, [], [], [("layers.2.linear.weight: by itself in the checkpoint, "
                         "tied to layers.1.linear.weight in the model")]),
    ],
)  # fmt: skip
def test_another_model_is_refused_with_the_keys(
    saved: Path, change: Callable[[nn.Module], None], missing: list[str], unexpected: list[str], mismatched: list[str]
) -> None:
    """Every key that differs is in the error and its words, and the model is as it was, to the bit."""
    model = unlike(change)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random_before = torch.get_rng_state()
    with pytest.raises(RefusedError) as raised:
        load(saved, model)
    refused = raised.value
    assert (list(refused.missing), list(refused.unexpected), list(refused.mismatched)) == (
        missing,
        unexpected,
        mismatched,
    )
    assert all(key in str(refused) for key in (*missing, *unexpected, *mismatched))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_before)


def test_a_tie_that_the_model_lacks_is_refused(tmp_path: Path) -> None:
    """A GPT whose head is its own would load the embedding twice and train another model."""
    save(tmp_path / "gpt", Gpt(), plan="eager")
    untied = Gpt()
    untied.head = nn.Linear(16, 32, bias=False)
    with pytest.raises(RefusedError) as raised:
        load(tmp_path / "gpt", untied)
    assert raised.value.mismatched == (
        "head.weight: tied to embedding.weight in the checkpoint, by itself in the model",
    )


@pytest.mark.parametrize(
    ("optimizer", "fault"),
    [
        (lambda model: torch.optim.Adam(model.parameters()), "optimizer: SGD in the checkpoint, Adam here"),
        (lambda model: torch.optim.SGD(model.head.parameters()),
         "unexpected in the checkpoint: optimizer/layers.0.linear"),
        (lambda model: torch.optim.SGD([{"params": model.head.parameters()}, {"params": model.layers.parameters()}]),
         "grouped in another way"),
    ],
    ids=["kind", "fewer parameters", "groups"],
)  # fmt: skip
def test_another_optimizer_is_refused(saved: Path, optimizer: Any, fault: str) -> None:
    """Kind, parameters and groups are the checkpoint's, or neither weights nor state are loaded."""
    model = Mlp()
    before = model.head.weight.clone()
    with pytest.raises(RefusedError, match=fault):
        load(saved, model, optimizer(model))
    assert torch.equal(model.head.weight, before)


def test_an_optimizer_that_was_not_saved_is_not_restored(tmp_path: Path) -> None:
    """Starting its moments from zero would pass unseen."""
    save(tmp_path / "saved", Mlp(), plan="eager")
    with pytest.raises(CheckpointError, match="holds no optimizer state"):
        load(tmp_path / "saved", *NETS["mlp"].make())


def test_weights_alone_can_be_loaded(saved: Path) -> None:
    """Without an optimizer its state is passed over; plan, graph id and extra come back."""
    restored = load(saved, Mlp(), rng=False)
    assert (restored.plan, restored.graph_id, restored.extra, restored.rng) == (
        "inductor",
        "ab" * 32,
        {"step": 2},
        False,
    )


def rewrite(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a manifest on the disk."""
    file = path / "checkpoint.json"
    document = orjson.loads(file.read_bytes())
    change(document)
    file.write_bytes(orjson.dumps(document))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda d: d["graph_signature"]["tensors"]["head.bias"].update(shape=[5]), "graph_signature has the hash"),
        (lambda d: d["graph_signature"]["ids"].update({"head.bias": 0}), "graph_signature has the hash"),
        (lambda d: d["eager_fallback_map"].update({"head": "compiled"}), "eager_fallback_map has the hash"),
        (lambda d: d.update(eager_fallback_map_sha256="0" * 64), "eager_fallback_map has the hash"),
        (lambda d: d.update(schema=2), "schema"),
        (lambda d: d.update(folder="../elsewhere"), "folder"),
        (lambda d: d["files"].update({"../../etc/passwd": {"size_bytes": 1, "sha256": "0" * 64}}), "files"),
        (lambda d: d.update(pickle="gASVAAAA"), "pickle"),
    ],
    ids=["shape", "id", "map", "hash", "schema", "folder", "file", "field"],
)
def test_a_changed_manifest_is_refused(saved: Path, change: Callable[[dict[str, Any]], None], fault: str) -> None:
    """A wrong hash, another schema, and paths that lead out of the checkpoint are found before a tensor is read."""
    rewrite(saved, change)
    with pytest.raises(CheckpointError, match=fault):
        load(saved, Mlp())


def _tensors_file(saved: Path) -> Path:
    return saved / read_manifest(saved).folder / "tensors.safetensors"


def flip(file: Path) -> None:
    """Change the last bit."""
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def cut(file: Path) -> None:
    """Cut the last byte off."""
    file.write_bytes(file.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("damage", "fault"),
    [(flip, "has the hash"), (cut, "bytes, not"), (Path.unlink, "No such file")],
    ids=["flipped", "cut", "gone"],
)
def test_a_damaged_file_is_refused(saved: Path, damage: Callable[[Path], None], fault: str) -> None:
    """One bit, one byte or the whole file: `verify` and `load` say which file, and the model stays as it was."""
    damage(_tensors_file(saved))
    assert [fault in found for found in verify(saved)] == [True]
    model = Mlp()
    before = model.head.weight.clone()
    with pytest.raises(CheckpointError, match=fault):
        load(saved, model)
    assert torch.equal(model.head.weight, before)


@pytest.mark.parametrize(
    "content", [None, b"", b"{}", b"\x80\x04K\x01.", b"[" * 100_000], ids=["none", "empty", "object", "pickle", "deep"]
)
def test_what_is_no_checkpoint_is_said_to_be_none(tmp_path: Path, content: bytes | None) -> None:
    """A missing, empty, foreign or hostile manifest ends in CheckpointError."""
    if content is not None:
        (tmp_path / "checkpoint.json").write_bytes(content)
    with pytest.raises(CheckpointError):
        load(tmp_path, Mlp())


@pytest.mark.parametrize(
    ("extra", "fault"),
    [
        ({"when": object()}, "JSON"),
        ({"loss": float("inf")}, "reads back"),
        ({"betas": (0.9, 0.99)}, "reads back"),
        ({1: 2}, "JSON"),
    ],
    ids=["object", "inf", "tuple", "key"],
)
def test_extra_that_is_no_json_is_refused(tmp_path: Path, extra: Any, fault: str) -> None:
    """What would not come back as it went is refused at the save, and nothing is written."""
    with pytest.raises(ValueError, match=fault):
        save(tmp_path / "saved", Mlp(), plan="eager", extra=extra)
    assert list(tmp_path.iterdir()) == []


class Keeper(nn.Linear):
    """Keeps something beside its tensors."""

    def get_extra_state(self) -> Any:
        """Return it."""
        return {"seen": 3}


def test_state_that_would_be_lost_is_refused(tmp_path: Path) -> None:
    """Extra state of a module, and a parameter that is not the model's."""
    with pytest.raises(ValueError, match="0 has extra state"):
        save(tmp_path / "saved", nn.Sequential(Keeper(2, 2)), plan="eager")
    with pytest.raises(ValueError, match="not the model's"):
        save(tmp_path / "saved", Mlp(), torch.optim.SGD(Mlp().parameters()), plan="eager")
    with pytest.raises(ValueError, match="unknown plan"):
        save(tmp_path / "saved", Mlp(), plan="fast")


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    """Saving into a folder with other files, or over a file, would end in removing what is not ours."""
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match=r"holds 'notes.txt'"):
        save(tmp_path, Mlp(), plan="eager")
    with pytest.raises(CheckpointError, match="is a file"):
        save(tmp_path / "notes.txt", Mlp(), plan="eager")
    assert (tmp_path / "notes.txt").read_text() == "mine"
