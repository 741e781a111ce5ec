"""Under max-autotune small products in half precision leave nothing to cuBLAS, and its workspace is not taken."""

from __future__ import annotations

from dataclasses import replace

import pytest
from handmade import Sketch

from peakcast.featurizer.prior import simulate
from peakcast.featurizer.run import DeviceSpec, RunSpec
from peakcast.featurizer.spec import GraphSpec
from peakcast.featurizer.vocabulary import INPUT, OUTPUT, PARAMETER

MM = "aten.mm.default"
MIB = 1 << 20
WORKSPACE_BYTES = 32 * MIB


def product(rows: int, *, dtype: str = "bfloat16", plan: str = "inductor:max-autotune", region: int = 0) -> GraphSpec:
    """Return a product of rows x 1024 and 1024 x 1024 in one compiled region."""
    item_bytes = 4 if dtype == "float32" else 2
    sketch = Sketch()
    first, second = (sketch.start(item_bytes * size * 1024, role) for size, role in ((rows, INPUT), (1024, PARAMETER)))
    sketch.node(MM, item_bytes * rows * 1024, role=OUTPUT, reads=[first, second])
    spec = sketch.spec(plan)
    trace = spec.traces[plan]
    trace.region[:] = region
    trace.numel[:] = rows * 1024
    return replace(spec, dtypes=(dtype,))


def taken_bytes(spec: GraphSpec) -> int:
    """Return what the product takes beyond what a call that needs no workspace would."""
    (plan,) = spec.traces
    other = replace(spec, ops=("aten.sort.default",))
    with_product, without = (simulate(one, plan, RunSpec(), DeviceSpec()) for one in (spec, other))
    return with_product.steady_allocated_bytes - without.steady_allocated_bytes


def test_a_small_product_takes_none() -> None:
    """512 x 1024 x 1024 are 1.07 GFLOP."""
    assert taken_bytes(product(512)) == 0


def batch_of_products(batch: int) -> GraphSpec:
    """Return a batch of products of 128 x 128 matrices in bfloat16."""
    sketch = Sketch()
    first, second = (sketch.start(2 * batch * 128 * 128, role) for role in (INPUT, PARAMETER))
    sketch.node("aten.bmm.default", 2 * batch * 128 * 128, role=OUTPUT, reads=[first, second])
    spec = sketch.spec("inductor:max-autotune")
    trace = spec.traces["inductor:max-autotune"]
    trace.region[:] = 0
    trace.numel[:] = batch * 128 * 128
    return replace(spec, dtypes=("bfloat16",))


def test_a_batch_is_left_to_cublas_sooner() -> None:
    """2 x 128 ** 3 are 4.2 MFLOP; what sizes tell of a batch grows by B ** 1.5, so that 60 are taken for 1.95 GFLOP."""
    assert taken_bytes(batch_of_products(60)) == 0
    assert taken_bytes(batch_of_products(62)) == WORKSPACE_BYTES


@pytest.mark.parametrize(
    "spec",
    [
        product(1024),  # 2.1 GFLOP
        product(512, dtype="float32"),
        product(512, plan="inductor:reduce-overhead"),
        product(512, region=-1),
    ],
    ids=["large", "float32", "no templates", "not compiled"],
)
def test_any_other_takes_it(spec: GraphSpec) -> None:
    """32 MiB on Hopper."""
    assert taken_bytes(spec) == WORKSPACE_BYTES
