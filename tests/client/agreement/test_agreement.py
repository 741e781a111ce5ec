"""Merging the proposals of the ranks: the most careful wins, whoever is missing or compiles something else is named."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore

from peakcast.client.agreement.agreement import UNKNOWN_GRAPH, Need, Proposal, Sealed, merge, name_ranks
from peakcast.client.agreement.store import Agreement, AgreementWarning, agree
from peakcast.client.guard.ranks import adopted
from peakcast.client.guard.verdict import Verdict

PLANS = ("inductor", "inductor:budget=0.5", "hybrid", "eager", "eager:checkpoint")
GIB = 1 << 30


def proposal(free_gib: float = 10, graph_id: str = "a" * 64, **needs_gib: float) -> Proposal:
    """Give a proposal in GiB: plans in the order named, fastest first."""
    needs = tuple(Need(plan, int(gib * GIB)) for plan, gib in (needs_gib or {"inductor": 9, "eager": 5}).items())
    return Proposal(graph_id, needs, int(free_gib * GIB))


@st.composite
def proposals(draw: st.DrawFn) -> dict[int, Proposal]:
    """Draw what up to five ranks propose, each in its own order, out of the same plans."""
    drawn = {}
    for rank in draw(st.lists(st.integers(0, 4), min_size=1, unique=True)):
        plans = draw(st.lists(st.sampled_from(PLANS), unique=True))
        needs = tuple(Need(plan, draw(st.integers(0, 100))) for plan in plans)
        drawn[rank] = Proposal(draw(st.sampled_from("abc")), needs, draw(st.integers(0, 100)))
    return drawn


def test_the_fastest_plan_that_fits_everywhere_is_chosen() -> None:
    """Rank 1 has 6 GiB, too little for inductor's 9: both run eager, and the reason says which rank and what lacks."""
    sealed = merge({0: proposal(), 1: proposal(free_gib=6)}, world_size=2)
    assert (sealed.plan, sealed.missing, sealed.strangers) == ("eager", (), ())
    assert "inductor does not fit on rank 1 (9.00 GiB needed, 6.00 GiB are free there)" in sealed.reason


def test_an_exact_fit_fits() -> None:
    """A plan may need all that is free, and not a byte more."""
    need = (Need("inductor", 100),)
    assert merge({0: Proposal("a", need, 100)}, world_size=1).plan == "inductor"
    assert merge({0: Proposal("a", need, 99)}, world_size=1).plan is None


def test_with_a_rank_missing_the_leanest_common_plan_is_chosen() -> None:
    """Nobody knows what fits on rank 2, so eager with its 5 GiB goes before inductor with 9, and hybrid with 7."""
    both = proposal(inductor=9, eager=5, hybrid=7)
    sealed = merge({0: both, 1: both}, world_size=3)
    assert (sealed.plan, sealed.missing) == ("eager", (2,))
    assert "rank 2 did not answer" in sealed.reason


def test_the_leanest_plan_is_judged_by_the_rank_where_it_needs_most() -> None:
    """Eager needs 5 and 8, hybrid 7 and 7: with a rank missing, hybrid is the leaner one."""
    sealed = merge({0: proposal(eager=5, hybrid=7), 1: proposal(eager=8, hybrid=7)}, world_size=3)
    assert sealed.plan == "hybrid"


def test_ranks_that_order_plans_differently_take_the_best_of_the_worst_places() -> None:
    """Places: inductor 0 and 2, hybrid 1 and 0, eager 2 and 1. The worst are 2, 1 and 2."""
    orders = {0: proposal(inductor=1, hybrid=1, eager=1), 1: proposal(hybrid=1, eager=1, inductor=1)}
    assert merge(orders, world_size=2).plan == "hybrid"


def test_the_graph_of_most_ranks_is_the_graph() -> None:
    """The ranks that compile another are named with theirs; of equally many the lowest rank's counts."""
    a, b = proposal(graph_id="a" * 64), proposal(graph_id="b" * 64)
    sealed = merge({0: b, 1: a, 2: a}, world_size=3)
    assert (sealed.graph_id, sealed.strangers) == ("a" * 64, ((0, "b" * 64),))
    assert f"rank 0 compiles another graph, {'b' * 12}" in sealed.reason
    assert merge({0: b, 1: a}, world_size=2).strangers == ((1, "a" * 64),)


def test_a_rank_that_does_not_know_its_graph_is_no_stranger() -> None:
    """Two of three ranks could not capture: the third's graph is the graph, and nobody is named."""
    unknown, known = proposal(graph_id=UNKNOWN_GRAPH), proposal(graph_id="b" * 64)
    sealed = merge({0: unknown, 1: unknown, 2: known}, world_size=3)
    assert (sealed.graph_id, sealed.strangers) == ("b" * 64, ())
    assert merge({0: unknown}, world_size=1).graph_id == UNKNOWN_GRAPH


def test_where_nothing_fits_the_plan_that_lacks_least_is_named() -> None:
    """Inductor lacks 1 GiB on rank 0 and 4 on rank 1, eager 2 and 3; hybrid lacks nothing, but only rank 0 knows it."""
    first, second = proposal(free_gib=8, inductor=9, eager=10, hybrid=1), proposal(free_gib=4, inductor=8, eager=7)
    sealed = merge({0: first, 1: second}, world_size=2)
    assert (sealed.plan, sealed.least) == (None, "eager")
    assert merge({0: proposal(hybrid=1), 1: proposal(eager=1)}, world_size=2).least is None


def test_the_fit_of_a_rank_with_another_graph_counts() -> None:
    """It runs the same plan, so one that does not fit there is not agreed on."""
    other = proposal(graph_id="b" * 64, inductor=11, eager=5)
    assert merge({0: proposal(), 1: proposal(), 2: other}, world_size=3).plan == "eager"


@given(proposals())
def test_what_is_agreed_fits_on_every_rank_and_nothing_less_is_refused(given: dict[int, Proposal]) -> None:
    """The plan is one of those that fit on all; there is none exactly where that set is empty."""
    common = set(PLANS)
    for each in given.values():
        common &= {need.plan for need in each.needs if need.required_upper_bytes <= each.free_bytes}
    sealed = merge(given, world_size=5)
    assert (sealed.plan in common) if common else (sealed.plan is None)
    assert set(sealed.missing) == set(range(5)) - set(given)


@given(proposals())
def test_the_order_in_which_proposals_came_does_not_matter(given: dict[int, Proposal]) -> None:
    """Ranks may answer in any order."""
    assert merge(dict(reversed(given.items())), world_size=5) == merge(given, world_size=5)


@given(proposals())
def test_proposals_and_decisions_survive_the_store(given: dict[int, Proposal]) -> None:
    """What is written is what is read."""
    sealed = merge(given, world_size=5)
    assert Sealed.from_bytes(sealed.to_bytes()) == sealed
    assert {rank: Proposal.from_bytes(each.to_bytes()) for rank, each in given.items()} == given


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"\x80\x04K\x01.", "not JSON"),
        (b"[]", "expected the fields"),
        (b'{"graph_id": "a", "needs": []}', "expected the fields"),
        (b'{"graph_id": 7, "needs": [], "free_bytes": 1}', "graph_id must be"),
        (b'{"graph_id": "a", "needs": [["eager", "much"]], "free_bytes": 1}', "needs must be a list"),
    ],
    ids=["pickle", "list", "missing field", "wrong type", "wrong need"],
)
def test_what_is_no_proposal_is_refused(text: bytes, fault: str) -> None:
    """A value of another version or a broken one raises ValueError in words."""
    with pytest.raises(ValueError, match=fault):
        Proposal.from_bytes(text)


@pytest.mark.parametrize("ranks", [(), (4,), (-1,)], ids=["none", "too high", "negative"])
def test_ranks_that_cannot_be_are_refused(ranks: tuple[int, ...]) -> None:
    """Merging needs a proposal, and ranks within the world."""
    with pytest.raises(ValueError, match="proposals of ranks 0 to 3 are needed"):
        merge(dict.fromkeys(ranks, proposal()), world_size=4)


def test_many_ranks_are_named_in_short() -> None:
    """A sentence stays readable where hundreds are missing."""
    assert name_ranks([3]) == "rank 3"
    assert name_ranks([1, 2, 5]) == "ranks 1, 2 and 5"
    assert name_ranks(range(100)) == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 92 more"


def _together(store: HashStore, each: dict[int, Proposal], *, world_size: int, timeout_s: float) -> list[Agreement]:
    """Run the ranks as threads over one store in memory; a warning is an error under pytest and loses the answer."""
    found: dict[int, Agreement] = {}

    def run(rank: int) -> None:
        timeout = timedelta(seconds=timeout_s)
        found[rank] = agree(each[rank], store=store, rank=rank, world_size=world_size, timeout=timeout)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in each]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[rank] for rank in sorted(found)]


def test_eight_ranks_that_seal_at_once_seal_one_decision() -> None:
    """Twenty rounds, each with eight ranks at once that order plans differently, end in one decision each."""
    store = HashStore()
    orders = {rank: proposal(**{PLANS[(rank + k) % 3]: 1 for k in range(3)}) for rank in range(8)}
    for _ in range(20):
        agreed = _together(store, orders, world_size=8, timeout_s=20)
        assert len({(each.plan, each.how, each.reason) for each in agreed}) == 1
        assert agreed[0].how == "sealed"


def test_a_proposal_nobody_can_read_names_its_rank() -> None:
    """Rank 1 runs another version and writes something else: it counts as missing."""
    store = HashStore()
    store.set("peakcast/agree/0/1", "hello")
    store.add("peakcast/agree/0/came", 1)
    with pytest.warns(AgreementWarning, match="rank 1 did not answer in time"):
        agreed = agree(proposal(), store=store, rank=0, world_size=2, timeout=timedelta(seconds=0.1))
    assert (agreed.plan, agreed.missing) == ("eager", (1,))


def test_a_named_step_is_agreed_by_itself() -> None:
    """A compile that one rank alone has, at step 7, does not shift what the ranks agree on at step 8."""
    store = HashStore()
    brief = timedelta(seconds=0.1)
    with pytest.warns(AgreementWarning, match="rank 1 did not answer"):
        agree(proposal(), store=store, rank=0, world_size=2, timeout=brief, sequence=7)
    with pytest.warns(AgreementWarning, match="rank 1 did not answer"):
        first = agree(proposal(graph_id="c" * 64), store=store, rank=0, world_size=2, timeout=brief, sequence=8)
    with pytest.warns(AgreementWarning, match="rank 1 came late"):
        late = agree(proposal(graph_id="c" * 64), store=store, rank=1, world_size=2, sequence=8)
    assert (late.plan, late.how, late.strangers) == (first.plan, "late", ())


def test_a_late_rank_on_which_the_plan_does_not_fit_is_told() -> None:
    """It adopts the plan all the same, since the others run it, and says that it may not fit."""
    store = HashStore()
    with pytest.warns(AgreementWarning, match="did not answer"):
        agree(proposal(), store=store, rank=0, world_size=2, timeout=timedelta(seconds=0.1))
    with pytest.warns(AgreementWarning, match="eager is not sure to fit on it"):
        late = agree(proposal(free_gib=1), store=store, rank=1, world_size=2)
    assert (late.plan, late.fits_here) == ("eager", False)


def test_where_nothing_fits_all_ranks_run_the_same_plan() -> None:
    """One rank could run inductor, the other nothing: both take what lacks least, and say that it may not fit."""
    store = HashStore()
    each = {0: proposal(free_gib=10), 1: proposal(free_gib=1)}
    verdicts = {0: Verdict("inductor", "compile", "fits"), 1: Verdict("inductor", "smallest", "nothing fits")}
    agreed = _together(store, each, world_size=2, timeout_s=20)
    after = [adopted(verdicts[rank], found) for rank, found in enumerate(agreed)]
    assert [(verdict.plan, verdict.action) for verdict in after] == [("eager", "smallest")] * 2
    assert all("no plan fits on all of ranks 0 and 1" in verdict.reason for verdict in after)


def test_without_a_process_group_a_rank_decides_alone() -> None:
    """No store at all is answered as a dead one: the leanest plan that fits, and a warning."""
    with pytest.warns(AgreementWarning, match="rank 0 decides without the others"):
        alone = agree(proposal(), rank=0, world_size=2)
    assert (alone.plan, alone.how, alone.fits_here) == ("eager", "alone", True)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [({"rank": 2}, "rank must be 0 to 1, got 2"), ({"rank": 0, "timeout": timedelta(0)}, "timeout must be positive")],
    ids=["rank", "timeout"],
)
def test_arguments_that_cannot_be_are_refused(arguments: dict[str, int], fault: str) -> None:
    """A wrong call is the caller's fault and raises."""
    with pytest.raises(ValueError, match=fault):
        agree(proposal(), world_size=2, **arguments)  # type: ignore[arg-type]
