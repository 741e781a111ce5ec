"""cuBLAS workspaces: how large on which card, taken by which node, once for each thread."""

from __future__ import annotations

import numpy as np
import pytest
from handmade import MIB, Sketch

from peakcast.featurizer.vocabulary import BACKWARD, CPU, FORWARD, LOSS, OPTIMIZER
from peakcast.featurizer.workspace import Workspace, generation_of, op_mask, op_name, product_nodes, workspaces_of


@pytest.mark.parametrize(
    ("name", "capability", "workspace_bytes"),
    [
        ("NVIDIA H200", 9, 33_554_432),
        ("NVIDIA H100 80GB HBM3", 9, 33_554_432),
        ("NVIDIA GH200 480GB", 9, 33_554_432),
        ("NVIDIA B200", 10, 33_554_432),
        ("NVIDIA GeForce RTX 5090", 12, 33_554_432),
        ("NVIDIA A100-SXM4-80GB", 8, 8_519_680),
        ("NVIDIA A10G", 8, 8_519_680),
        ("NVIDIA L4", 8, 8_519_680),
        ("NVIDIA L40S", 8, 8_519_680),
        ("NVIDIA GeForce RTX 4090", 8, 8_519_680),
        ("NVIDIA RTX 6000 Ada Generation", 8, 8_519_680),
        ("NVIDIA RTX A6000", 8, 8_519_680),
        ("Tesla V100-SXM2-16GB", 7, 8_519_680),
        ("Tesla T4", 7, 8_519_680),
    ],
)
def test_workspace_by_card(name: str, capability: int, workspace_bytes: int) -> None:
    """32 MiB from Hopper on, 8,519,680 bytes before."""
    generation = generation_of(name)
    assert (generation.capability, generation.cublas_workspace_bytes) == (capability, workspace_bytes)
    assert generation.is_known


@pytest.mark.parametrize("name", ["", "AMD Instinct MI300X", "NVIDIA Z9000", "card H2000", "L400"])
def test_an_unknown_card_says_so(name: str) -> None:
    """It is given the larger workspace and flagged."""
    generation = generation_of(name)
    assert not generation.is_known
    assert generation.cublas_workspace_bytes == 33_554_432


def test_op_name_is_the_middle_part() -> None:
    """`aten.mm.default` is mm; a name without dots is itself."""
    assert [op_name(op) for op in ("aten.mm.default", "mylib::op.out", "bare")] == ["mm", "out", "bare"]


HOPPER = generation_of("NVIDIA H200")


def nodes_of(sketch: Sketch) -> list[tuple[int, int]]:
    """Return (node, MiB) of the workspaces of a sketch on an H200."""
    trace = sketch.trace()
    products = product_nodes(trace, sketch.ops)
    return [(w.node, w.bytes // MIB) for w in workspaces_of(trace, sketch.ops, HOPPER, products)]


def test_one_workspace_for_each_thread_at_its_first_product() -> None:
    """Forward, loss and optimizer share the caller's thread; backward has autograd's."""
    sketch = Sketch()
    sketch.node("aten.relu.default", phase=FORWARD)
    sketch.node("aten.bmm.default", phase=LOSS)
    sketch.node("aten.convolution_backward.default", phase=BACKWARD)
    sketch.node("aten.mm.default", phase=BACKWARD)
    sketch.node("aten.bmm.default", phase=BACKWARD)
    sketch.node("aten.mm.default", phase=OPTIMIZER)
    assert nodes_of(sketch) == [(1, 32), (3, 32)]


def test_a_product_with_bias_takes_one_of_cublaslt_too() -> None:
    """1 MiB more at the first `addmm` of a thread."""
    sketch = Sketch()
    sketch.node("aten.mm.default", phase=FORWARD)
    sketch.node("aten.addmm.default", phase=FORWARD)
    sketch.node("aten.addmm.default", phase=FORWARD)
    sketch.node("aten.addmm.default", phase=BACKWARD)  # recomputed under checkpointing
    assert nodes_of(sketch) == [(0, 32), (1, 1), (3, 32), (3, 1)]


def test_products_on_the_cpu_take_none() -> None:
    """Only nodes on the GPU call cuBLAS."""
    sketch = Sketch()
    sketch.node("aten.mm.default", device=CPU)
    assert nodes_of(sketch) == []


def test_lifetimes_can_say_which_nodes_multiply() -> None:
    """A product that the compiler turns into a sum takes no workspace."""
    sketch = Sketch()
    sketch.node("aten.addmm.default")
    sketch.node("aten.mm.default")
    (workspace,) = workspaces_of(sketch.trace(), sketch.ops, HOPPER, np.array([False, True]))
    assert workspace == Workspace(node=1, bytes=32 * MIB)


def test_a_product_inside_a_branch_counts_for_its_node() -> None:
    """A `cond` whose one branch multiplies takes the workspace."""
    ops = ["higher_order.cond", "aten.relu.default", "aten.mm.default"]
    plain, product, outer = Sketch(), Sketch(), Sketch()
    plain.node("aten.relu.default")
    product.node("aten.mm.default")
    outer.node("aten.relu.default")
    outer.node("higher_order.cond", branches=[plain.trace(ops), product.trace(ops)])
    assert op_mask(outer.trace(ops), ops, {"mm"}).tolist() == [False, True]
