"""The scheduler's orders: what each greedy rule takes next, and that the best of them is taken."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from peakcast.featurizer.memory_order import Buffer, Program


def program(
    kernels: list[tuple[list[str], list[str]]], sizes: dict[str, int], outputs: str = "", given: str = ""
) -> Program:
    """Return a program of kernels (names read, names made); `given` may be freed, `outputs` stay."""
    makers = {name: index for index, (_, made) in enumerate(kernels) for name in made}
    buffers = [
        Buffer(
            sizes[name],
            makers.get(name),
            {index for index, (read, _) in enumerate(kernels) if name in read},
            is_output=name in outputs,
        )
        for name in sizes
        if name in makers or name in given
    ]
    return Program(len(kernels), buffers, {})


# Two large values are made first and each is turned into a small output: the graph's own order holds both at once.
WIDE = program([([], ["a"]), ([], ["b"]), (["a"], ["p"]), (["b"], ["q"])], {"a": 10, "b": 10, "p": 1, "q": 1}, "pq")


def test_the_graphs_own_order_holds_both_large_values() -> None:
    """10, 20, 21, then 11 + 1."""
    assert WIDE.peak_bytes([0, 1, 2, 3]) == 21


def test_one_chain_after_the_other_is_cheaper() -> None:
    """10 + 1, then 1 + 10 + 1: the greedy rule finds it, and it is taken."""
    for order in (WIDE.least_peak_first(), WIDE.best_order()):
        assert order == [0, 2, 1, 3]
        assert WIDE.peak_bytes(order) == 12


def test_breadth_first_runs_what_was_ready_first() -> None:
    """Both makers are ready before what reads them."""
    assert WIDE.breadth_first() == [0, 1, 2, 3]


def test_depth_first_starts_from_what_touches_least() -> None:
    """The second chain's values are smaller: its end (2 + 1 bytes) is reached before the first one's."""
    chains = program(
        [([], ["a"]), (["a"], ["p"]), ([], ["b"]), (["b"], ["q"])], {"a": 10, "p": 1, "b": 2, "q": 1}, "pq"
    )
    assert chains.smallest_first() == [2, 3, 0, 1]


def test_a_kernel_that_frees_more_than_it_makes_goes_first() -> None:
    """A gradient of 8 is cast into one of 16 while 20 of saved memory wait to be freed: the cast comes last.

    In the graph's order the peak is 8 + 20 + 16; with the cast last it is 8 + 20 + 1.
    """
    cast_last = program([(["g"], ["G"]), (["s"], ["r"])], {"g": 8, "s": 20, "G": 16, "r": 1}, outputs="Gr", given="gs")
    assert cast_last.peak_bytes([0, 1]) == 44
    assert cast_last.least_peak_first() == [1, 0]
    assert cast_last.peak_bytes(cast_last.best_order()) == 29


def test_equal_orders_leave_the_graphs_own() -> None:
    """Where nothing is gained the kernels stay where they are."""
    chain = program([([], ["a"]), (["a"], ["b"]), (["b"], ["c"])], {"a": 4, "b": 4, "c": 4}, "c")
    assert chain.best_order() == [0, 1, 2]


def test_kernels_wait_for_those_they_come_after() -> None:
    """An order that is asked for beyond the data's holds in every rule."""
    buffers = [Buffer(1, 0, set(), is_output=True), Buffer(5, 1, set(), is_output=True)]
    bound = Program(2, buffers, {0: {1}})
    for order in (bound.least_peak_first(), bound.breadth_first(), bound.smallest_first()):
        assert order == [1, 0]


@pytest.mark.parametrize("rule", [Program.least_peak_first, Program.breadth_first, Program.smallest_first])
@pytest.mark.parametrize("seed", range(5))
def test_every_order_is_topological(rule: Callable[[Program], list[int]], seed: int) -> None:
    """Every kernel runs once, after all that make what it reads; the best peak is no worse than the graph's own."""
    draw = random.Random(seed)
    count = 60
    buffers = [
        Buffer(
            draw.randrange(1, 100),
            maker,
            set(draw.sample(range(maker + 1, count), min(draw.randrange(3), count - maker - 1))),
            is_output=draw.random() < 0.1,
        )
        for maker in range(count)
    ]
    made = Program(count, buffers, {})
    order = rule(made)
    assert sorted(order) == list(range(count))
    place = {kernel: position for position, kernel in enumerate(order)}
    assert all(
        place[buffer.maker] < place[reader]
        for buffer in buffers
        for reader in buffer.readers
        if buffer.maker is not None
    )
    assert made.peak_bytes(made.best_order()) <= made.peak_bytes(list(range(count)))


def test_a_given_order_that_cannot_run_leaves_the_graphs_own() -> None:
    """Kernels that wait for each other (a stranger's trace) are left as they came."""
    circle = Program(2, [Buffer(1, 0, {1}, is_output=False), Buffer(1, 1, {0}, is_output=False)], {})
    assert circle.best_order() == [0, 1]


def test_a_graph_that_takes_too_long_keeps_its_own_order() -> None:
    """Four thousand kernels that all wait and are all too large: the greedy order is given up in time."""
    count = 4000
    buffers = [Buffer(1, kernel, set(), is_output=False) for kernel in range(count)]
    many = Program(count, buffers, {})
    started = time.process_time()
    assert many.least_peak_first() == list(range(count))
    assert time.process_time() - started < 5
