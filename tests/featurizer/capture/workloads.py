"""Small workloads whose bytes can be counted by hand. All sizes in elements of float32 unless a dtype is named."""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from peakcast import Workload

BATCH, WIDTH, OUT = 16, 64, 32


def _linear(make: Any) -> Workload:
    model = nn.Linear(WIDTH, OUT)
    return Workload(model, torch.randn(BATCH, WIDTH), loss=torch.sum, optimizer=make(model.parameters()))


def sgd() -> Workload:
    """No optimizer state."""
    return _linear(functools.partial(torch.optim.SGD, lr=0.1))


def momentum() -> Workload:
    """One state per parameter."""
    return _linear(functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9))


def adam() -> Workload:
    """Two states per parameter."""
    return _linear(torch.optim.Adam)


def adafactor() -> Workload:
    """Rows and columns of a matrix, a vector whole."""
    return _linear(torch.optim.Adafactor)


class SlowWeights(torch.optim.Optimizer):
    """A user's own optimizer: one copy of each parameter as state, a loop of plain operations."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Pull each parameter towards its slow copy."""
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if "slow" not in state:
                state["slow"] = parameter.clone()
            state["slow"].lerp_(parameter, 0.5)
            parameter.sub_(parameter.grad, alpha=0.1).lerp_(state["slow"], 0.1)


def custom_optimizer() -> Workload:
    """State under a name no optimizer of torch uses."""
    return _linear(SlowWeights)


def _three_layers(**options: Any) -> Workload:
    model = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(5)))
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    return Workload(model, torch.randn(1, 256), loss=torch.sum, optimizer=optimizer)


def adamw_foreach() -> Workload:
    """Five parameters of 256 KiB at once."""
    return _three_layers(foreach=True)


def adamw_loop() -> Workload:
    """Five parameters of 256 KiB one after the other."""
    return _three_layers(foreach=False)


def adamw_fused() -> Workload:
    """Five parameters of 256 KiB in place."""
    return _three_layers(fused=True)


class Tied(nn.Module):
    """An embedding whose table is the head's weight, too."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(100, WIDTH)
        self.head = nn.Linear(WIDTH, 100, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Score every row."""
        out: torch.Tensor = self.head(self.table(ids))
        return out


def tied() -> Workload:
    """One parameter, one gradient."""
    model = Tied()
    return Workload(
        model, torch.randint(100, (4,)), loss=torch.sum, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)
    )


def accumulated() -> Workload:
    """Two micro-batches before a step."""
    model = nn.Linear(WIDTH, OUT)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [torch.randn(BATCH, WIDTH) for _ in range(2)]

    def step() -> None:
        for batch in batches:
            model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return Workload(model=model, optimizer=optimizer, step=step)


def _zeroing(*, first: bool, set_to_none: bool) -> Workload:
    model = nn.Linear(WIDTH, OUT, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.randn(BATCH, WIDTH)

    def step() -> None:
        if first:
            optimizer.zero_grad(set_to_none=set_to_none)
        model(batch).sum().backward()
        optimizer.step()
        if not first:
            optimizer.zero_grad(set_to_none=set_to_none)

    return Workload(model=model, optimizer=optimizer, step=step)


def zero_grad_first() -> Workload:
    """Gradients of the step before are there when a step begins."""
    return _zeroing(first=True, set_to_none=True)


def zero_grad_last() -> Workload:
    """No gradient outlives the step."""
    return _zeroing(first=False, set_to_none=True)


def zero_grad_kept() -> Workload:
    """Keep the gradient buffers for good."""
    return _zeroing(first=False, set_to_none=False)


def hook() -> Workload:
    """Keep an activation by a forward hook, until the next step's replaces it."""
    model = nn.Linear(WIDTH, OUT)
    kept: dict[str, torch.Tensor] = {}
    model.register_forward_hook(lambda *call: kept.update(last=call[2].detach()))
    return Workload(
        model, torch.randn(BATCH, WIDTH), loss=torch.sum, optimizer=torch.optim.SGD(model.parameters(), 0.1)
    )


def scaled() -> Workload:
    """Half precision with a GradScaler and clipping, as the user's own step."""
    model = nn.Linear(WIDTH, OUT, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    batch = torch.randn(BATCH, WIDTH)

    def step() -> None:
        with torch.autocast("cuda", torch.float16):
            loss = model(batch).float().sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return Workload(model=model, optimizer=optimizer, step=step)


def ema() -> Workload:
    """Hold an averaged copy of the weights in a closure."""
    model = nn.Linear(WIDTH, OUT, bias=False)
    average = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.randn(BATCH, WIDTH)

    def step() -> None:
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for slow, fast in zip(average, model.parameters(), strict=True):
                slow.lerp_(fast, 0.01)

    return Workload(model=model, optimizer=optimizer, step=step)


class Adapted(nn.Module):
    """A frozen layer beside a trained low-rank pair."""

    def __init__(self, rank: int = 4) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH, bias=False).requires_grad_(False)
        self.down = nn.Linear(WIDTH, rank, bias=False)
        self.up = nn.Linear(rank, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the adapter's output to the frozen layer's."""
        out: torch.Tensor = self.base(x) + self.up(self.down(x))
        return out


def adapters() -> Workload:
    """Gradients and state for the adapter alone."""
    model = Adapted()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
    return Workload(model, torch.randn(BATCH, WIDTH), loss=torch.sum, optimizer=optimizer)


class InPlace(nn.Module):
    """One allocation, renamed and written over."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Double, rectify in place, flatten."""
        return (x * 2).relu_().view(-1)


def in_place() -> Workload:
    """Inference without parameters."""
    return Workload(InPlace(), torch.randn(BATCH, WIDTH))


class Flattened(nn.Module):
    """A product in half precision with 4,095 columns, which pays to pad, and its elements in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1024, 4095, bias=False, dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply, then rename."""
        return self.linear(x).view(-1)


def flattened() -> Workload:
    """Inference over 8,192 rows."""
    return Workload(Flattened(), torch.randn(8192, 1024, dtype=torch.bfloat16))


class Transposed(nn.Module):
    """A linear layer on an input that is not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, OUT)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mix channels, which come second."""
        out: torch.Tensor = self.linear(x.transpose(1, 2))
        return out


def transposed() -> Workload:
    """[B, C, T] into a layer over C."""
    return Workload(Transposed(), torch.randn(BATCH, WIDTH, 8))


class Inference(nn.Module):
    """A model that enters inference mode itself."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, OUT)

    @torch.inference_mode()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the layer."""
        out: torch.Tensor = self.linear(x)
        return out


def inference_mode() -> Workload:
    """Below autograd."""
    return Workload(Inference(), torch.randn(BATCH, WIDTH))


class Choice(nn.Module):
    """A cheap branch and a wide one."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 1024, bias=False), nn.Linear(1024, WIDTH, bias=False)
        self.small = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Choose by the data."""
        out: torch.Tensor = torch.cond(x.sum() > 0, lambda x: self.down(self.up(x).relu()), self.small, (x,))
        return out


def choice() -> Workload:
    """`torch.cond` without gradients."""
    return Workload(Choice(), torch.randn(BATCH, WIDTH))


def choice_trained() -> Workload:
    """`torch.cond` with gradients."""
    model = Choice()
    return Workload(
        model, torch.randn(BATCH, WIDTH), loss=torch.sum, optimizer=torch.optim.SGD(model.parameters(), 0.1)
    )


class Recurrent(nn.Module):
    """An LSTM and the mean of its last layer."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.rnn = nn.LSTM(24, 40, layers, batch_first=True, bidirectional=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Average over everything."""
        return self.rnn(x)[0].mean()  # type: ignore[no-any-return]


def lstm() -> Workload:
    """[5, 7, 24] through two layers in both directions."""
    model = Recurrent()
    return Workload(model, torch.randn(5, 7, 24), optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


def lstm_half() -> Workload:
    """Run the same under autocast."""
    model = Recurrent()
    return Workload(
        model,
        torch.randn(5, 7, 24),
        loss=torch.Tensor.float,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        autocast=torch.bfloat16,
    )


class Packed(nn.Module):
    """A GRU over sequences of unequal length."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(8, 8)

    def forward(self, x: torch.Tensor) -> Any:
        """Pack, then run."""
        return self.rnn(nn.utils.rnn.pack_padded_sequence(x, [4, 2]))[1]


def packed() -> Workload:
    """Build what cannot be captured."""
    return Workload(Packed(), torch.randn(4, 2, 8))


class Stubborn(nn.Module):
    """Reads a drawn number while it is built, and keeps tensors in plain attributes, lists and a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.scale = torch.arange(8.0)
        self.shifts = [torch.ones(8), {"more": torch.ones(8)}]
        if int(torch.randint(3, 4, (1,)).item()) != 3:
            raise RuntimeError("real numbers are needed")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Use them all."""
        if not hasattr(self, "positions"):
            self.positions = torch.arange(8.0, device=x.device)
        more: Any = self.shifts[1]
        out: torch.Tensor = self.linear(x) * self.scale + self.shifts[0] + more["more"] + self.positions
        return out


def stubborn() -> Workload:
    """Build for real, with a target that lives in a closure."""
    model = Stubborn()
    target = torch.randint(8, (4,))
    return Workload(
        model,
        torch.randn(4, 8),
        loss=lambda out: functional.cross_entropy(out, target),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )


class Block(nn.Module):
    """A gated block whose activations are worth recomputing."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mix, then five pointwise functions."""
        out: torch.Tensor = functional.gelu(self.linear(x)).sin().exp().cos().tanh() + x
        return out


class Stack(nn.Module):
    """Three like blocks; `broken` prints between them, which no graph can hold."""

    def __init__(self, *, broken: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.broken = broken

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the blocks."""
        for block in self.blocks:
            x = block(x)
            if self.broken:
                torch._dynamo.graph_break()
        return x


def _trained(model: Stack) -> Workload:
    return Workload(
        model, torch.randn(BATCH, WIDTH), loss=torch.sum, optimizer=torch.optim.SGD(model.parameters(), 0.1)
    )


def stack() -> Workload:
    """One graph when compiled whole."""
    return _trained(Stack(broken=False))


def broken_stack() -> Workload:
    """Break the graph after each block."""
    return _trained(Stack(broken=True))


class Settling(Stack):
    """Is another program in its first call: Dynamo compiles it in the first step and in the second."""

    def __init__(self) -> None:
        super().__init__(broken=False)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add one in the first call, two in all others."""
        self.calls = min(self.calls + 1, 2)
        return super().forward(x + self.calls)


def settling() -> Workload:
    """Compile in two steps."""
    return _trained(Settling())


class Keeping(Stack):
    """Keeps a product of its own weights from the first call on, as attention keeps its biases for inference."""

    def __init__(self) -> None:
        super().__init__(broken=False)
        self.kept: dict[str, torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add it after the first block's work, from the second call on without computing it."""
        y = torch.tanh(x)
        if "bias" not in self.kept:
            self.kept["bias"] = torch.arange(64.0, device=x.device) * 2
        return super().forward(y @ y.T @ x + self.kept["bias"])


def keeping() -> Workload:
    """Infer with what the first call made."""
    return Workload(model=Keeping().eval(), inputs=torch.randn(16, 64))


class Watchful(Stack):
    """Does more work on fake tensors, as transformers' mask does, between its blocks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take the exponential of what looks like tracing."""
        looks_traced = sys.modules["transformers.utils.import_utils"].is_fake_tensor(x)
        return super().forward(x.exp() if looks_traced else x)


def watchful() -> Workload:
    """Behave in another way when traced."""
    importlib.import_module("transformers.utils.import_utils")
    return _trained(Watchful(broken=False))


class Biased(nn.Module):
    """Attention over 16 tokens in bfloat16, two heads of 32, with a bias added to its scores."""

    def __init__(self, *, learns: bool, turned: bool = False) -> None:
        super().__init__()
        self.weight = nn.Linear(WIDTH, WIDTH)
        self.bias = nn.Parameter(torch.zeros(1, 2, 16, 16), requires_grad=learns)
        self.turned = turned

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend."""
        heads = self.weight(x).view(BATCH, 16, 2, 32).transpose(1, 2)
        bias = self.bias.transpose(2, 3) if self.turned else self.bias
        return functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=bias)


def _biased(**options: bool) -> Workload:
    model = Biased(**options).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Workload(model, torch.randn(BATCH, 16, WIDTH, dtype=torch.bfloat16), loss=torch.sum, optimizer=optimizer)


def fixed_bias() -> Workload:
    """Attend with a bias that does not learn."""
    return _biased(learns=False)


def learned_bias() -> Workload:
    """Attend with a bias that learns."""
    return _biased(learns=True)


def turned_bias() -> Workload:
    """Attend with a bias whose rows do not lie one after another."""
    return _biased(learns=True, turned=True)


class Pasted(nn.Module):
    """Write a batch into zeros twice, part by part, as attention over windows puts its bands together."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Paste, and compute with the whole."""
        both = x.new_zeros(2, BATCH, WIDTH + 8)
        both[0, :, 8:] = x
        both[1, :, :-8] = x
        both[0, :4, :8] = 1.0
        return both.sin().sum()


def pasted() -> Workload:
    """Write over parts of a buffer: every write makes a new one in a compiled graph."""
    return Workload(Pasted(), torch.randn(BATCH, WIDTH))


def only_step() -> Workload:
    """Give a step, but no model to put a plan on."""
    weight = torch.randn(WIDTH)

    def step() -> None:
        weight.mul(2)

    return Workload(step=step)


def fails() -> Workload:
    """Make the user's own mistake."""
    return Workload(nn.Linear(WIDTH, OUT), torch.randn(BATCH, OUT))


def among_ranks() -> Workload:
    """Start a process group before anything else, as a training script does."""
    torch.distributed.init_process_group("nccl")
    return Workload(nn.Linear(4, 4), torch.randn(2, 4))
