"""Small copies of what users reported. Sizes in elements of float32 unless a dtype is named; MIB is one MiB of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from peakcast import Workload

MIB = 1 << 18  # float32 elements in one MiB
WIDTH = 1024  # a square weight has 4 MiB


def holds_logits() -> Workload:
    """Logits of 4 MiB that live until the next step overwrites them."""
    model = nn.Linear(64, WIDTH, bias=False)
    x = torch.randn(WIDTH, 64)
    held: dict[str, Any] = {}

    def step() -> None:
        with torch.no_grad():
            held["logits"] = model(x)

    return Workload(model=model, step=step)


class MatrixVector(nn.Module):
    """A batch of matrices times a batch of vectors."""

    def forward(self, matrices: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
        """[1000, 6, 256] x [1000, 256, 1]."""
        return matrices @ vectors


def matrix_vector() -> Workload:
    """In bfloat16: 3,072,000 and 512,000 bytes in, 12,000 out."""
    x, y = torch.randn(1000, 6, 256, dtype=torch.bfloat16), torch.randn(1000, 256, 1, dtype=torch.bfloat16)
    return Workload(MatrixVector(), (x, y))


class Pointwise(nn.Module):
    """Three pointwise operations in a row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the last one's result."""
        return x.sin().exp().tanh()


def pointwise() -> Workload:
    """8 MiB through three operations."""
    return Workload(Pointwise(), torch.randn(8 * MIB))


class Gelus(nn.Module):
    """Pointwise operations whose inputs an eager backward keeps."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a scalar."""
        return functional.gelu(functional.gelu(x).sin()).sum()


def gelus() -> Workload:
    """8 MiB of which gradients are taken."""
    x = torch.randn(8 * MIB, requires_grad=True)
    return Workload(Gelus(), x, loss=lambda y: y, optimizer=torch.optim.SGD([x], 0.1))


def _order(*, before_forward: bool) -> Workload:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Sigmoid(), nn.Sigmoid(), nn.Sigmoid())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(4096, WIDTH)

    def step() -> None:
        if before_forward:
            optimizer.zero_grad(set_to_none=True)
        loss = model(x).sum()
        if not before_forward:
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return Workload(model=model, optimizer=optimizer, step=step)


def zero_grad_before_forward() -> Workload:
    """Return a loop in which the old gradients are gone while the forward runs."""
    return _order(before_forward=True)


def zero_grad_before_backward() -> Workload:
    """Return a loop in which the old gradients live through the forward."""
    return _order(before_forward=False)


def adam() -> Workload:
    """Train a weight of 4 MiB with activations of 16 MiB, so that no step has its peak in the optimizer."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Sigmoid(), nn.Sigmoid())
    return Workload(
        model, torch.randn(4096, WIDTH), loss=torch.sum, optimizer=torch.optim.Adam(model.parameters(), foreach=True)
    )


def autocast_inference() -> Workload:
    """Three weights of 4 MiB under autocast."""
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3)))
    return Workload(model, torch.randn(1, WIDTH), autocast=torch.bfloat16)


def cross_entropy() -> Workload:
    """Logits of 1024 tokens over 8192 words: 32 MiB."""
    model = nn.Linear(16, 8192, bias=False)
    labels = torch.zeros(1024, dtype=torch.int64)
    return Workload(
        model,
        torch.randn(1024, 16),
        loss=lambda logits: functional.cross_entropy(logits, labels),
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
    )


def one_linear() -> Workload:
    """Return a weight of 4 MiB, a bias of 4 KiB, one row."""
    return Workload(nn.Linear(WIDTH, WIDTH), torch.randn(1, WIDTH))


class Cache(nn.Module):
    """A cache of 16 MiB that one token is written to."""

    keys: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(4096, WIDTH))

    def forward(self, key: torch.Tensor) -> torch.Tensor:
        """Write through a view; read one row."""
        self.keys[5:6] = key
        return self.keys[5] * 2.0


def cache_write() -> Workload:
    """One row of 4 KiB into the cache."""
    return Workload(Cache(), torch.randn(1, WIDTH))


class Tied(nn.Module):
    """An embedding that is the head too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1024, WIDTH)
        self.head = nn.Linear(WIDTH, 1024, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        out: torch.Tensor = self.head(self.embedding(ids))
        return out


def tied() -> Workload:
    """One weight of 4 MiB."""
    return Workload(Tied(), torch.zeros(8, dtype=torch.int64))


class Growing(nn.Module):
    """Values that grow, so that freed blocks are each too small for the next."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the last of five sizes between 11 and 43 MiB."""
        total = x[:1].sum()
        for size in range(11, 44, 8):
            total = total + (x[: size * MIB] * 2.0).sum()
        return total


def growing() -> Workload:
    """Temporaries of 11, 19, 27, 35 and 43 MiB, one after the other."""
    return Workload(Growing(), torch.randn(44 * MIB))


class Branches(nn.Module):
    """A condition with a small and a large branch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a scalar of either branch."""

        def large(x: torch.Tensor) -> torch.Tensor:
            return torch.cat([x, x, x]).sum().reshape(1)

        def small(x: torch.Tensor) -> torch.Tensor:
            return torch.cat([x, x]).sum().reshape(1)

        out: torch.Tensor = torch.cond(x[0] > 0, large, small, (x,))
        return out


def branches() -> Workload:
    """4 MiB in; 12 or 8 MiB inside."""
    return Workload(Branches(), torch.randn(4 * MIB))


class Quantised(nn.Module):
    """A weight in int8 with a scale a row, taken apart at each use."""

    weight: torch.Tensor
    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(WIDTH, WIDTH, dtype=torch.int8))
        self.register_buffer("scale", torch.ones(WIDTH, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply by the weight as float32."""
        return x @ (self.weight.float() * self.scale)


def quantised() -> Workload:
    """1 MiB of weight, 4 KiB of scales; as floats 4 MiB twice."""
    return Workload(Quantised(), torch.randn(1, WIDTH))


class EightBit(torch.optim.Optimizer):
    """Adam with its states in one byte an element."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take the states apart, update them, and put them back."""
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            for name in ("mean", "square"):
                if name not in state:
                    state[name] = torch.zeros_like(parameter, dtype=torch.uint8)
            mean = state["mean"].float().lerp_(parameter.grad, 0.1)
            state["mean"].copy_(mean)
            parameter.sub_(mean, alpha=0.1)


def eight_bit_optimizer() -> Workload:
    """Train a weight of 4 MiB with states of 1 MiB each."""
    model = nn.Linear(WIDTH, WIDTH, bias=False)
    return Workload(model, torch.randn(1, WIDTH), loss=torch.sum, optimizer=EightBit(model.parameters()))


def offloaded() -> Workload:
    """Three weights of 4 MiB that lie on the host and come to the card one at a time."""
    weights = [torch.randn(WIDTH, WIDTH, device="cpu") for _ in range(3)]
    x = torch.randn(1, WIDTH)

    def step() -> None:
        y = x
        for weight in weights:
            on_card = weight.to(x.device)
            y = y @ on_card
            del on_card

    return Workload(model=nn.Identity(), step=step)


def generate() -> Workload:
    """Four tokens, each adding 4 MiB of keys to a cache that grows by concatenation."""
    x = torch.randn(1, WIDTH, WIDTH)

    def step() -> None:
        cache = x * 2.0
        for _ in range(3):
            cache = torch.cat([cache, x])

    return Workload(model=nn.Identity(), step=step)


def pinned() -> Workload:
    """9 MiB that are pinned on the host, where they take 16, and come to the card."""
    x = torch.randn(1)
    host = torch.empty(9 * MIB, device="cpu")

    def step() -> None:
        on_card = host.pin_memory().to(x.device, non_blocking=True)
        on_card.sum()

    return Workload(model=nn.Identity(), step=step)


def _one_rank(*, view: bool | None) -> Workload:
    """Train four weights of 4 MiB, wrapped in DDP unless `view` is None."""
    model: nn.Module = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)))
    if view is not None:
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=view)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return Workload(model, torch.randn(1, WIDTH), loss=torch.sum, optimizer=optimizer)


def without_ddp() -> Workload:
    """Return the model by itself."""
    return _one_rank(view=None)


def ddp_with_buckets() -> Workload:
    """Return the model in DDP as it is by default."""
    return _one_rank(view=False)


def ddp_with_views() -> Workload:
    """Return the model in DDP, its gradients views of the buckets."""
    return _one_rank(view=True)


CHECKPOINTED = functools.partial(checkpoint, use_reentrant=False)
PRODUCTS_SAVED = functools.partial(
    CHECKPOINTED, context_fn=functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
)


def _chain(x: torch.Tensor) -> torch.Tensor:
    return x.sin().exp().tanh().sigmoid()


def _two_chains(block: Callable[[torch.Tensor], torch.Tensor]) -> Workload:
    """Two blocks in a row over 8 MiB; nothing but the graph holds what they return."""
    x = torch.randn(8 * MIB, requires_grad=True)

    def step() -> None:
        block(block(x)).sum().backward()
        x.grad = None

    return Workload(model=nn.Identity(), step=step)


def chains_compiled() -> Workload:
    """Return blocks that the step compiles, without checkpoints."""
    return _two_chains(torch.compile(_chain))


def chains_checkpoint_of_compiled() -> Workload:
    """Return compiled blocks in checkpoints."""
    return _two_chains(functools.partial(CHECKPOINTED, torch.compile(_chain)))


def chains_compiled_checkpoint() -> Workload:
    """Return checkpointed blocks, each compiled with its checkpoint."""
    return _two_chains(torch.compile(functools.partial(CHECKPOINTED, _chain)))


def _products(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return ((x @ weight).sin() @ weight).tanh()


def _two_products(block: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Workload:
    """Two blocks of two products each over 16 MiB, with a weight of 4 MiB that has no gradient."""
    x, weight = torch.randn(4096, WIDTH, requires_grad=True), torch.randn(WIDTH, WIDTH)

    def step() -> None:
        block(block(x, weight), weight).sum().backward()
        x.grad = None

    return Workload(model=nn.Identity(), step=step)


def products_compiled() -> Workload:
    """Return blocks that the step compiles, without checkpoints."""
    return _two_products(torch.compile(_products))


def products_checkpoint_of_compiled() -> Workload:
    """Return compiled blocks in checkpoints."""
    return _two_products(functools.partial(CHECKPOINTED, torch.compile(_products)))


def products_compiled_checkpoint() -> Workload:
    """Return checkpointed blocks, each compiled with its checkpoint."""
    return _two_products(torch.compile(functools.partial(CHECKPOINTED, _products)))


def products_selective() -> Workload:
    """Return blocks in checkpoints that save products."""
    return _two_products(functools.partial(PRODUCTS_SAVED, _products))


def products_selective_of_compiled() -> Workload:
    """Return compiled blocks in checkpoints that save products."""
    return _two_products(functools.partial(PRODUCTS_SAVED, torch.compile(_products)))


def products_compiled_selective() -> Workload:
    """Return blocks compiled together with checkpoints that save products."""
    return _two_products(torch.compile(functools.partial(PRODUCTS_SAVED, _products)))


def compiled_with_cuda_graphs() -> Workload:
    """Return blocks that the step compiles with CUDA graphs."""
    return _two_chains(torch.compile(_chain, mode="reduce-overhead"))
