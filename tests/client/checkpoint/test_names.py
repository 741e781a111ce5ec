"""Names without wrappers, ties, constants of graphs, and state dicts that still have the wrappers' prefixes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from small_nets import NETS, Gpt, Mlp
from torch import fx, nn

from peakcast.client.checkpoint import load, plain_state, read_manifest, save, unwrapped
from peakcast.client.checkpoint.names import fallback_map, graph_owned, named_once, tensor_ids, tensors_of
from peakcast.featurizer.capture.plans import install


class Holder(nn.Module):
    """A module of the user's own that calls its part `module`."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(2, 2)
        self.other = nn.Linear(2, 2)


def compiled(model: nn.Module) -> nn.Module:
    """Wrap as torch.compile does; nothing is compiled before a call."""
    wrapped: nn.Module = torch.compile(model)  # type: ignore[assignment]
    return wrapped


WRAPS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "compile": compiled,
    "parallel": nn.DataParallel,
    "compile(parallel)": lambda model: compiled(nn.DataParallel(model)),
    "parallel(compile)": lambda model: nn.DataParallel(compiled(model)),
    "thrice": lambda model: compiled(nn.DataParallel(compiled(nn.DataParallel(compiled(model))))),
}


def inner_wrapped(model: nn.Module) -> nn.Module:
    """Wrap a block inside the model instead of the model."""
    model.blocks[0] = compiled(model.blocks[0])  # type: ignore[operator, index, arg-type]
    return model


@pytest.mark.parametrize("wrap", [*WRAPS.values(), inner_wrapped], ids=[*WRAPS, "inside"])
def test_wrappers_do_not_show_in_names(wrap: Callable[[nn.Module], nn.Module]) -> None:
    """The names are the bare model's, in its order, of the very same tensors."""
    model = Gpt()
    bare = tensors_of(model)
    assert list(bare) == list(model.state_dict())
    wrapped = wrap(model)
    assert [(name, id(tensor)) for name, tensor in tensors_of(wrapped).items()] == [(n, id(t)) for n, t in bare.items()]


def test_a_module_of_that_name_stays_in_the_name() -> None:
    """`module` is a wrapper's only where the type is."""
    names = ["module.weight", "module.bias", "other.weight", "other.bias"]
    assert list(tensors_of(compiled(Holder()))) == names


def test_tied_names_share_a_tensor_id_and_lead_back() -> None:
    """The head and the embedding of a GPT are one tensor with two names; ids and names map both ways."""
    ids = tensor_ids(tensors_of(Gpt()))
    assert ids["head.weight"] == ids["embedding.weight"]
    assert len(set(ids.values())) == len(ids) - 1
    assert "head.weight" not in named_once(tensors_of(Gpt()))


def test_a_manifest_maps_ids_to_names_and_back(tmp_path: Path) -> None:
    """Each name is among the names of its id, and each id has the names that carry it."""
    save(tmp_path / "saved", Gpt(), plan="eager")
    signature = read_manifest(tmp_path / "saved").graph_signature
    assert signature.names[signature.ids["head.weight"]] == ["embedding.weight", "head.weight"]
    back = {name: number for number, names in signature.names.items() for name in names}
    assert back == signature.ids


@pytest.mark.parametrize(
    ("plan", "parts"),
    [
        ("eager", {"": "eager"}),
        ("eager:checkpoint", {"": "eager"}),
        ("inductor", {"": "compiled"}),
        ("hybrid", {"": "eager", "layers.0": "compiled", "layers.1": "compiled", "layers.2": "compiled"}),
    ],
)
def test_the_fallback_map_says_which_parts_are_compiled(plan: str, parts: dict[str, str]) -> None:
    """Read off the model: a block of the hybrid is compiled, the rest of it falls back to eager."""
    model = Mlp()
    undo = install(model, plan)
    assert fallback_map(model) == parts
    undo()
    assert fallback_map(model) == {"": "eager"}
    assert fallback_map(compiled(nn.DataParallel(model))) == {"": "compiled"}


class Shifted(nn.Module):
    """Adds a constant that tracing turns into a buffer of the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x_BC: torch.Tensor) -> torch.Tensor:
        """Return the sum."""
        return self.linear(x_BC) + torch.tensor([1.0, 2.0])


def test_constants_of_a_traced_graph_may_be_missing_on_either_side(tmp_path: Path) -> None:
    """A traced model has `_tensor_constant0`, the model itself has not: both load the other's weights, and no more."""
    plain, traced = Shifted(), fx.symbolic_trace(Shifted())
    assert graph_owned(traced) == {"_tensor_constant0"}
    assert graph_owned(plain) == frozenset()
    save(tmp_path / "plain", plain, plan="eager")
    save(tmp_path / "traced", traced, plan="inductor")
    assert load(tmp_path / "plain", traced).kept == ("_tensor_constant0",)
    assert torch.equal(traced.linear.weight, plain.linear.weight)
    assert traced._tensor_constant0.tolist() == [1.0, 2.0]
    assert load(tmp_path / "traced", Shifted()).kept == ()
    # Constants are numbered as a graph was traced: another graph's first is not this one's.
    traced._tensor_constant0.fill_(7.0)
    assert load(tmp_path / "traced", traced).kept == ("_tensor_constant0",)
    assert traced._tensor_constant0.tolist() == [7.0, 7.0]


def test_a_buffer_that_only_sounds_like_a_graphs_own_is_the_models() -> None:
    """The name alone excuses nothing: it must lie on a traced graph."""
    model = nn.Linear(2, 2)
    model.register_buffer("_tensor_constant0", torch.zeros(2))
    assert graph_owned(model) == frozenset()


# Field case 25: a state dict saved from the compiled model has `_orig_mod.` on every key. Loaded with `strict=False`
# into the model as it is, nothing is found, nothing is said, and training goes on from random weights.
@pytest.mark.parametrize("wrap", WRAPS.values(), ids=list(WRAPS))
def test_a_state_dict_with_prefixes_is_loaded_whole(wrap: Callable[[nn.Module], nn.Module]) -> None:
    """What `strict=False` passes over without a word, `plain_state` finds under its own name."""
    trained, fresh = Mlp(), Mlp()
    saved = wrap(trained).state_dict()
    assert not any(
        torch.equal(mine, theirs) for mine, theirs in zip(fresh.parameters(), trained.parameters(), strict=True)
    )
    silently = fresh.load_state_dict(saved, strict=False)
    assert len(silently.missing_keys) == len(fresh.state_dict())
    unwrapped(fresh).load_state_dict(plain_state(fresh, saved))
    assert all(torch.equal(tensor, trained.state_dict()[name]) for name, tensor in fresh.state_dict().items())


@pytest.mark.parametrize(("saved_by", "loaded_by"), list(itertools.product(WRAPS, WRAPS)))
def test_a_checkpoint_crosses_any_two_wrappers(saved_by: str, loaded_by: str, tmp_path: Path) -> None:
    """Saved from a model in one nest of wrappers, loaded into one in another."""
    trained, fresh = Mlp(), Mlp()
    save(tmp_path / "saved", WRAPS[saved_by](trained), plan="inductor")
    load(tmp_path / "saved", WRAPS[loaded_by](fresh))
    assert all(torch.equal(tensor, trained.state_dict()[name]) for name, tensor in fresh.state_dict().items())


def test_plain_state_keeps_a_module_of_that_name() -> None:
    """`_orig_mod.module.module.weight` is `module.weight` of a model that has one."""
    model = Holder()
    saved = compiled(nn.DataParallel(model)).state_dict()
    assert list(plain_state(model, saved)) == list(model.state_dict())


def test_plain_state_refuses_what_is_not_whole() -> None:
    """A missing, an unexpected and a doubled key are named."""
    state = {f"_orig_mod.{name}": tensor for name, tensor in Mlp().state_dict().items()}
    del state["_orig_mod.head.bias"]
    state["_orig_mod.tail.bias"] = torch.zeros(4)
    state["module.head.weight"] = state["_orig_mod.head.weight"]
    with pytest.raises(KeyError) as raised:
        plain_state(Mlp(), state)
    assert "missing: head.bias; unexpected: _orig_mod.tail.bias; given twice: head.weight" in str(raised.value)


@pytest.mark.parametrize("name", sorted(NETS))
def test_names_are_those_of_the_state_dict(name: str) -> None:
    """Torch's own names, buffers and bare parameters included."""
    model = NETS[name].model()
    assert list(tensors_of(model)) == list(model.state_dict())
