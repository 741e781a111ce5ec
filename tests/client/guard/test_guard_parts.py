"""The parts of the guard that need no capture: policy, signatures, ladder, answers that cannot be, plan switching."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from guarded import Net, Training
from torch import nn

from peakcast.client.ask import predict
from peakcast.client.errors import AskError
from peakcast.client.guard.asking import WrongAnswerError, check_answer, within
from peakcast.client.guard.largest_batch import batch_of, first_of, largest_batch
from peakcast.client.guard.plan_backend import PlanBackend
from peakcast.client.guard.plan_switch import PlanSwitch, possible_plans
from peakcast.client.guard.policy import DEFAULT_PLANS, Policy
from peakcast.client.guard.signature import Signature, signature_of
from peakcast.client.guard.spare_process import SpareProcess
from peakcast.client.guard.step_description import (
    ONLY_FORWARD,
    CannotDescribeError,
    bound_inputs,
    describe,
    likely_loss,
    modules_of,
)
from peakcast.client.guard.verdict import Verdict, likeliest
from peakcast.featurizer.capture.ship import pack
from peakcast.featurizer.capture.workload import Workload
from peakcast.featurizer.plans import parse_plan
from peakcast.featurizer.spec import GraphSpec
from peakcast.models.prediction import Prediction
from peakcast.service.examples import example_request

# Dynamo looks at `.grad` of what a block is given, and hides torch's warning only where warnings are not errors.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"plans": ()}, "plans must be at least one name"),
        ({"plans": "inductor"}, "plans must be at least one name"),
        ({"plans": ("turbo",)}, "unknown plan 'turbo'"),
        ({"risk": 0.9}, "risk must be from 0.0001 to 0.5, got 0.9"),
        ({"questions": 0}, "questions must be at least 1, got 0"),
        ({"ask_time": timedelta(0)}, "ask_time must be longer than nothing"),
        ({"nothing_fits": "pray"}, "nothing_fits must be 'run_smallest' or 'refuse', got 'pray'"),
    ],
)
def test_a_policy_that_cannot_be_is_refused(given: dict[str, Any], named: str) -> None:
    """The message has the offending value and what is allowed."""
    with pytest.raises(ValueError, match=named):
        Policy(**given)


def signature(batch: int, length: int = 8, **changed: bool) -> Signature:
    """Return the signature of a network called on one tensor."""
    net = Net(length)
    net.train(changed.get("training", True))
    with torch.set_grad_enabled(changed.get("gradients", True)):
        return signature_of(net, (torch.zeros(batch, length),), {})


def test_a_signature_tells_calls_apart_that_compile_or_peak_otherwise() -> None:
    """Sizes, dtypes, mode, gradients, autocast, frozen weights and scalar arguments count; values of tensors do not."""
    net = Net(8)
    x = torch.randn(4, 8)
    same = signature_of(net, (x,), {})
    assert signature_of(net, (x + 1,), {}) == same
    others = [
        signature_of(net, (x[:3],), {}),
        signature_of(net, (x.double(),), {}),
        signature_of(net, (x,), {"flag": True}),
        signature_of(net, (x,), {"flag": False}),
        signature_of(net, (torch.randn(8, 4).T,), {}),
    ]
    with torch.no_grad():
        others.append(signature_of(net, (x,), {}))
    with torch.autocast("cpu", torch.bfloat16):
        others.append(signature_of(net, (x,), {}))
    net.head.requires_grad_(False)
    others.append(signature_of(net, (x,), {}))
    assert len({same, *others}) == len(others) + 1


def test_what_fits_for_a_call_fits_for_a_smaller_one() -> None:
    """In no dimension larger; without gradients needs no more than with them, but not the other way round."""
    large = signature(64)
    assert large.covers(signature(64))
    assert large.covers(signature(63))
    assert not large.covers(signature(65))
    assert large.covers(signature(64, gradients=False, training=False))
    assert not signature(64, gradients=False).covers(large)
    assert not large.covers(signature(1, training=False))


def test_where_nothing_is_sure_to_fit_the_fastest_that_likely_fits_runs() -> None:
    """Of the plans expected to fit the fastest, else the one expected to need least; bounds do not count."""
    expected = {"inductor": 456, "inductor:budget=0.7": 410, "inductor:budget=0.4": 405, "eager:checkpoint": 462}
    assert likeliest([*expected], expected, 425) == "inductor:budget=0.7"
    assert likeliest([*expected], expected, 460) == "inductor"
    assert likeliest([*expected], expected, 400) == "inductor:budget=0.4"
    assert likeliest([*expected], expected, -1) == "inductor:budget=0.4"


def test_after_running_out_every_plan_has_its_turn() -> None:
    """First the fastest that is expected to fit in less than what failed, then the others, least first."""
    expected = {
        "inductor": 456,
        "inductor:budget=0.7": 410,
        "inductor:budget=0.4": 405,
        "hybrid": 900,
        "eager": 705,
        "eager:checkpoint": 440,
    }
    verdict = Verdict("inductor", "smallest", "", required=dict.fromkeys(expected, 1000), expected=expected)
    assert _turns(replace(verdict, room_bytes=425)) == [
        "inductor",
        "inductor:budget=0.7",
        "inductor:budget=0.4",
        "eager:checkpoint",
        "eager",
        "hybrid",
    ]
    # All that need less are expected to fit: by speed. Eager would fit too, but needs more than what has failed.
    assert _turns(replace(verdict, room_bytes=800))[1:4] == [
        "inductor:budget=0.7",
        "inductor:budget=0.4",
        "eager:checkpoint",
    ]


def test_plans_without_a_prediction_follow_by_what_they_usually_need() -> None:
    """What usually needs less comes next; what usually needs more comes last, the most careful of it first."""
    assert _turns(Verdict("inductor", "unknown", "")) == list(DEFAULT_PLANS)
    assert _turns(Verdict("hybrid", "unknown", "")) == [
        "hybrid",
        "eager",
        "eager:checkpoint",
        "inductor:budget=0.4",
        "inductor:budget=0.7",
        "inductor",
    ]
    only_wanted = Verdict("inductor", "compile", "", expected={"inductor": 456}, room_bytes=800)
    assert _turns(only_wanted) == list(DEFAULT_PLANS)


def test_a_compile_is_ended_only_for_a_plan_that_should_need_less() -> None:
    """Nothing is compiled in vain: where every other plan is expected to need more, the plan goes on."""
    verdict = Verdict("inductor", "smallest", "", expected={"inductor": 456, "eager": 705}, room_bytes=425)
    assert verdict.next_after("inductor", ("inductor", "eager"), any_left=False) is None
    assert verdict.next_after("inductor", ("inductor", "eager"), any_left=True) == "eager"


def test_trouble_leads_down_to_no_plan_that_failed_or_likely_will() -> None:
    """Down the ladder, unless the plan there has failed or is expected to need more than is free."""
    verdict = Verdict("inductor", "compile", "", expected={"inductor": 456, "hybrid": 900}, room_bytes=1000)
    assert verdict.after_trouble("hybrid") == "hybrid"
    assert replace(verdict, room_bytes=800).after_trouble("hybrid") == "inductor"
    assert replace(verdict, failed=frozenset({"eager"})).after_trouble("hybrid") == "inductor"
    assert verdict.after_trouble("eager") == "eager"
    assert replace(verdict, failed=frozenset({"eager"})).after_trouble("eager") == "inductor"


def _turns(verdict: Verdict) -> list[str]:
    """Return the plans in the order of their turns, where each one runs out of memory."""
    turns = [verdict.plan]
    while (following := verdict.next_after(turns[-1], DEFAULT_PLANS, any_left=True)) is not None:
        verdict = verdict.falling_to(following, "ran out", failed=turns[-1])
        turns.append(following)
    return turns


def test_what_unpacking_imports_is_named_ahead() -> None:
    """The modules of the model's classes and of the optimizer, each once; torch is there anyway."""
    net = nn.Sequential(Net(), Net())
    assert modules_of(net, torch.optim.SGD(net.parameters())) == ("guarded",)
    assert modules_of(nn.Linear(2, 2), None) == ()


def test_a_module_that_cannot_be_imported_ahead_costs_no_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is missing or ends the process, a workload that does not need it is captured."""
    (tmp_path / "a_script.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    training = Training()
    packed = pack(Workload(step=training.step_on(4), model=training.model, optimizer=training.optimizer))
    spare = SpareProcess(["no_such_module", "a_script", "guarded"])
    try:
        captured = spare.capture(packed, ["eager"], timeout_s=240)
    finally:
        spare.close()
    assert list(captured.spec.traces) == ["eager"]


@pytest.fixture(scope="module")
def spec() -> GraphSpec:
    """Give a small captured graph."""
    return GraphSpec.from_json(example_request()["graph"])


@pytest.fixture(scope="module")
def honest(spec: GraphSpec) -> dict[str, Any]:
    """Give an honest answer as JSON values."""
    return predict(spec, plans=["inductor", "eager"]).model_dump()


def _changed(answer: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """Return a copy with one value changed: `plans.0.required.upper_bytes`."""
    copy = Prediction.model_validate(answer).model_dump(mode="json")
    at: Any = copy
    *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in way:
        at = at[part]
    at[last] = value
    return copy  # type: ignore[no-any-return]


def test_an_honest_answer_is_believed(spec: GraphSpec, honest: dict[str, Any]) -> None:
    """The predictor's own answer passes every check."""
    check_answer(Prediction.model_validate(honest), spec, ["eager", "inductor"])


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("graph_id", "0" * 64, "about graph"),
        ("plans.0.plan", "hybrid", "about the plans"),
        ("plans.0.required.upper_bytes", -1, "required is expected to be"),
        ("plans.0.required.upper_bytes", 1 << 60, "required is expected to be"),
        ("plans.1.steady_allocated.expected_bytes", 1 << 49, "steady_allocated is expected to be"),
        ("decision.plan", None, "decides compile and names the plan 'None'"),
        ("decision.plan", "inductor:budget=0", "decides for 'inductor:budget=0'"),
        ("decision.action", "refuse", "decides refuse"),
        ("plans.0.fits", False, "which it does not say fits"),
    ],
)
def test_an_answer_that_cannot_be_is_not_believed(
    spec: GraphSpec, honest: dict[str, Any], path: str, value: object, named: str
) -> None:
    """Another graph, other plans, impossible bytes, and a decision that contradicts its own plans are found."""
    answer = Prediction.model_validate(_changed(honest, path, value))
    with pytest.raises(WrongAnswerError, match=named):
        check_answer(answer, spec, ["inductor", "eager"])


def test_a_call_that_never_returns_is_left_behind() -> None:
    """The time limit holds whatever the call does."""
    started = time.monotonic()
    with pytest.raises(AskError, match=r"no answer within 0\.05 s"):
        within(0.05, lambda: time.sleep(2))
    assert time.monotonic() - started < 1


def test_the_plans_a_model_has_no_blocks_for_are_left_out() -> None:
    """Hybrid and checkpointing need repeated blocks."""
    assert possible_plans(nn.Linear(2, 2), ("inductor", "hybrid", "eager:checkpoint")) == ("inductor",)
    assert possible_plans(Net(), ("hybrid",)) == ("hybrid",)
    with pytest.raises(ValueError, match="none of the plans hybrid can be put on"):
        possible_plans(nn.Linear(2, 2), ("hybrid",))


def test_switching_compiles_each_plan_once_and_leaves_the_model_as_it_was() -> None:
    """Going back to a plan uses what was compiled; keys stay; the gate sees every call; closing removes it."""
    training = Training()
    model, x = training.model, torch.randn(4, 32)
    expected, keys, before = model(x), list(model.state_dict()), dict(vars(model))
    compiled: list[str] = []
    calls: list[str] = []

    class Counting:
        def __init__(self, plan: str) -> None:
            self.plan = plan

        def __call__(self, graph: torch.fx.GraphModule, _: Any, **__: Any) -> Any:
            compiled.append(self.plan)
            return graph.forward

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Counting) and other.plan == self.plan

        def __hash__(self) -> int:
            return hash(self.plan)

    def gate(*args: Any) -> Any:
        calls.append(switch.plan)
        return switch.call(*args)

    switch = PlanSwitch(model, gate, lambda plan: Counting(plan.name))
    order = [
        "eager",
        "inductor",
        "inductor:budget=0.5",
        "eager:checkpoint",
        "inductor",
        "hybrid",
        "inductor:budget=0.5",
    ]
    for plan in order:
        switch.to(plan)
        torch.testing.assert_close(model(x), expected)
        assert list(model.state_dict()) == keys
    assert calls == order
    # Of the two like blocks only the second is given something that takes gradients: two graphs.
    assert compiled == ["inductor", "inductor:budget=0.5", "hybrid", "hybrid"]
    with switch.bare():
        assert vars(model) == before
    assert switch.plan == "inductor:budget=0.5"
    switch.close()
    assert vars(model) == before


def test_backends_of_equal_plans_are_equal() -> None:
    """Dynamo keeps compiled code by backend, so this is what makes it reuse a plan's code."""
    half = parse_plan("inductor:budget=0.5")
    assert PlanBackend(half) == PlanBackend(parse_plan("inductor:budget=0.50"))
    assert hash(PlanBackend(half)) == hash(PlanBackend(half))
    assert PlanBackend(half) != PlanBackend(parse_plan("inductor"))


class WithMask(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, *, scale: float = 1.0) -> torch.Tensor:
        """Scale, and mask where there is a mask."""
        return x * scale if mask is None else x * mask * scale


def test_arguments_are_bound_as_a_workload_takes_them() -> None:
    """Positional ones as a tuple, named ones as a mapping, both together by their names."""
    x, mask = torch.ones(2), torch.zeros(2)
    model = WithMask()
    assert bound_inputs(model, (x, mask), {}) == (x, mask)
    assert bound_inputs(model, (), {"x": x, "scale": 2.0}) == {"x": x, "scale": 2.0}
    assert bound_inputs(model, (x,), {"mask": mask, "scale": 2.0}) == {"x": x, "mask": mask, "scale": 2.0}
    with pytest.raises(CannotDescribeError, match="positional arguments that have no name"):
        bound_inputs(nn.Sequential(), (x, mask), {"scale": 1.0})


def test_the_loss_is_the_models_own_scalar_or_a_mean_of_its_outputs() -> None:
    """`.loss`, an entry "loss", a scalar first element; else the mean of each output that takes gradients, summed."""
    scalar = torch.tensor(3.0, requires_grad=True)
    logits = torch.tensor([1.0, 3.0], requires_grad=True)
    assert likely_loss({"loss": scalar, "logits": logits}) is scalar
    assert likely_loss((scalar, logits)) is scalar
    assert likely_loss((logits, torch.ones(2))).item() == 2.0
    with pytest.raises(ValueError, match="takes gradients"):
        likely_loss(torch.ones(2))


def test_a_step_that_cannot_be_sent_is_described_by_its_forward() -> None:
    """A lock cannot be pickled, a list of gigabytes is no shape; the model and its inputs are sent instead."""
    training = Training()
    x, generator = torch.randn(4, 32), (value for value in range(3))

    def step() -> None:
        next(generator)
        training.model(x).sum().backward()

    whole = describe(
        training.model, (x,), {}, optimizer=training.optimizer, step=training.step_on(4), takes_gradients=True
    )
    assert whole.is_whole_step
    assert whole.assumptions == ()
    parts = describe(training.model, (x,), {}, optimizer=training.optimizer, step=step, takes_gradients=True)
    assert not parts.is_whole_step
    assert parts.assumptions == (ONLY_FORWARD,)
    # Shapes travel, not contents: three weights of 32 x 128 floats alone would be more.
    assert len(whole.packed) < 3 * 32 * 128 * 4


def test_a_workload_of_more_bytes_than_allowed_is_not_packed_to_its_end() -> None:
    """The limit counts what is written, so that a data set in a closure does not fill the memory first."""
    held = bytearray(1 << 20)
    workload = Workload(step=lambda: len(held), model=nn.Linear(1, 1))
    with pytest.raises(OverflowError, match="more than 65,536 bytes"):
        pack(workload, most_bytes=1 << 16)
    assert len(pack(workload)) > 1 << 20


@pytest.mark.parametrize(("room", "largest"), [(1000, 45), (640, 27), (101, 0), (1059, 47), (1060, 48), (120, 1)])
def test_the_largest_batch_is_found_with_few_captures(room: int, largest: int) -> None:
    """100 bytes and 20 for each row: the largest batch below 64 that fits, each answer checked; 0 stands for none."""
    asked: list[int] = []

    def required(batch: int) -> int:
        asked.append(batch)
        return 100 + 20 * batch

    assert (largest_batch(required, too_large=64, room_bytes=room) or 0) == largest
    assert len(asked) <= 6
    assert all(batch < 64 for batch in asked[1:])


def test_a_batch_that_fits_is_found_where_bytes_jump() -> None:
    """Where bytes are not linear the answer still fits."""

    def required(batch: int) -> int:
        return 500 if batch > 20 else batch

    found = largest_batch(required, too_large=64, room_bytes=100)
    assert found is not None
    assert 16 <= found <= 20


def test_the_batch_is_the_first_dimension_that_all_share() -> None:
    """Inputs of unlike first dimension, or of one row, have none; slicing takes the first rows of each."""
    x, y = torch.zeros(6, 2), torch.zeros(6)
    assert batch_of(((x,), {"y": y, "flag": True})) == 6
    assert batch_of(((x, y[:3]), {})) is None
    assert batch_of(((x[:1],), {})) is None
    ((first,), rest) = first_of(((x,), {"y": y}), 4)
    assert (first.shape, rest["y"].shape) == ((4, 2), (4,))
