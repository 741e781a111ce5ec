"""Plain-torch sequence models: recurrent, convolutional, state-space, linear attention, experts, latent arrays.

B batch, T time, D width, H heads.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional


class GRUTagger(nn.Module):
    """Embedding, two bidirectional GRU layers, a label per token."""

    def __init__(self, vocabulary: int = 8000, width: int = 256, labels: int = 8000) -> None:
        super().__init__()
        self.emb = nn.Embedding(vocabulary, width)
        self.rnn = nn.GRU(width, width, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, labels)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.rnn(self.emb(ids))[0])
        return out


class LoopLSTM(nn.Module):
    """An LSTM written as a Python loop over its cell: every step's gates are tensors of their own."""

    def __init__(self, features: int = 64, width: int = 192, classes: int = 10) -> None:
        super().__init__()
        self.width = width
        self.gates = nn.Linear(features + width, 4 * width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.new_zeros(x.shape[0], self.width)
        c = torch.zeros_like(h)
        for step in range(x.shape[1]):
            i, f, g, o = self.gates(torch.cat([x[:, step], h], 1)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        out: torch.Tensor = self.head(h)
        return out


class AdditiveSeq2Seq(nn.Module):
    """GRU encoder, GRU decoder, additive attention that materialises [B, T, T, D]."""

    def __init__(self, vocabulary: int = 8000, width: int = 192) -> None:
        super().__init__()
        self.emb = nn.Embedding(vocabulary, width)
        self.encoder, self.decoder = nn.GRU(width, width, batch_first=True), nn.GRU(width, width, batch_first=True)
        self.query, self.key, self.score = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 1)
        self.head = nn.Linear(2 * width, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.emb(ids)
        memory, state = self.encoder(x)
        h, _ = self.decoder(x, state)
        scores = self.score((self.query(h)[:, :, None] + self.key(memory)[:, None]).tanh()).squeeze(-1)
        out: torch.Tensor = self.head(torch.cat([h, scores.softmax(-1) @ memory], -1))
        return out


class TCN(nn.Module):
    """Dilated causal convolutions with weight-free residuals and dropout."""

    def __init__(self, features: int = 32, width: int = 128, depth: int = 6, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv1d(features, width, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                *(nn.Conv1d(width, width, 3, dilation=2**i), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2)),
                *(nn.Conv1d(width, width, 3, dilation=2**i), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2)),
            )
            for i in range(depth)
        )
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for i, block in enumerate(self.blocks):
            x = x + block(functional.pad(x, (4 * 2**i, 0)))
        out: torch.Tensor = self.head(x.mean(-1))
        return out


class WaveNet(nn.Module):
    """Gated dilated convolutions with skip sums, and a distribution over 256 levels per sample."""

    def __init__(self, width: int = 64, depth: int = 10, levels: int = 256) -> None:
        super().__init__()
        self.stem = nn.Embedding(levels, width)
        self.gated = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2**i) for i in range(depth))
        self.mix = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(depth))
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(width, width, 1), nn.ReLU(), nn.Conv1d(width, levels, 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.stem(ids).transpose(1, 2)
        total = torch.zeros_like(x)
        for i, (gated, mix) in enumerate(zip(self.gated, self.mix, strict=True)):
            a, gate = gated(functional.pad(x, (2**i, 0))).chunk(2, 1)
            residual, skip = mix(a.tanh() * gate.sigmoid()).chunk(2, 1)
            x, total = x + residual, total + skip
        out: torch.Tensor = self.head(total).transpose(1, 2)
        return out


class DiagonalStateSpace(nn.Module):
    """S4D: each layer is a long convolution, by FFT, with the kernel of a diagonal complex state space."""

    def __init__(
        self, features: int = 16, width: int = 128, states: int = 32, depth: int = 4, classes: int = 10
    ) -> None:
        super().__init__()
        self.stem = nn.Linear(features, width)
        self.rates = nn.ParameterList(nn.Parameter(torch.rand(width, states)) for _ in range(depth))
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(width, states, 2)) for _ in range(depth))
        self.mix = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(depth))
        self.norm = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        length = x.shape[1]
        times = torch.arange(length, device=x.device)
        for rates, weights, mix, norm in zip(self.rates, self.weights, self.mix, self.norm, strict=True):
            decay = torch.exp(-rates[..., None] * times)
            angle = rates[..., None] * times * math.pi
            kernel = (weights[..., :1] * decay * angle.cos() - weights[..., 1:] * decay * angle.sin()).sum(1)
            h = norm(x).transpose(1, 2).float()
            y = torch.fft.irfft(torch.fft.rfft(h, n=2 * length) * torch.fft.rfft(kernel.float(), n=2 * length))
            x = x + functional.glu(mix(functional.gelu(y[..., :length]).transpose(1, 2).to(x.dtype)))
        out: torch.Tensor = self.head(x.mean(1))
        return out


class SelectiveScan(nn.Module):
    """Input-dependent decay, run as a cumulative sum in log space over whole sequences."""

    def __init__(self, vocabulary: int = 8000, width: int = 192, states: int = 8, depth: int = 3) -> None:
        super().__init__()
        self.emb = nn.Embedding(vocabulary, width)
        self.states = states
        self.inner = nn.ModuleList(nn.Linear(width, 2 * width + 2 * states) for _ in range(depth))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norm = nn.ModuleList(nn.RMSNorm(width) for _ in range(depth))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.emb(ids)
        d = x.shape[-1]
        for inner, out, norm in zip(self.inner, self.out, self.norm, strict=True):
            value, delta, key, query = inner(norm(x)).split([d, d, self.states, self.states], -1)
            decay = -functional.softplus(delta).cumsum(1).clamp(max=30.0)
            state = (value[..., None] * key[:, :, None] * torch.exp(-decay)[..., None]).cumsum(1)
            y = (state * torch.exp(decay)[..., None] * query[:, :, None]).sum(-1)
            x = x + out(functional.silu(y))
        logits: torch.Tensor = self.head(x)
        return logits


class LinearAttention(nn.Module):
    """Attention with elu + 1 features, summed over keys: no T x T matrix."""

    def __init__(self, vocabulary: int = 8000, width: int = 384, heads: int = 6, depth: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.emb = nn.Embedding(vocabulary, width)
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(depth))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
            for _ in range(depth)
        )
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.emb(ids)
        b, t, d = x.shape
        for qkv, out, mlp in zip(self.qkv, self.out, self.mlp, strict=True):
            q, k, v = qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
            q, k = functional.elu(q) + 1, functional.elu(k) + 1
            y = (q @ (k.transpose(-1, -2) @ v)) / (q @ k.sum(2, keepdim=True).transpose(-1, -2))
            x = x + out(y.transpose(1, 2).reshape(b, t, d))
            x = x + mlp(x)
        logits: torch.Tensor = self.head(x)
        return logits


class Retention(nn.Module):
    """Retention in its parallel form: decayed T x T scores without softmax, group norm over heads."""

    def __init__(self, vocabulary: int = 8000, width: int = 384, heads: int = 6, depth: int = 3) -> None:
        super().__init__()
        self.heads = heads
        self.emb = nn.Embedding(vocabulary, width)
        self.qkvg = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(depth))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norm = nn.ModuleList(nn.GroupNorm(heads, width) for _ in range(depth))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.emb(ids)
        b, t, d = x.shape
        times = torch.arange(t, device=x.device)
        gap = (times[:, None] - times[None]).float()
        rates = 1 - 2.0 ** (-5 - torch.arange(self.heads, device=x.device).float())
        decay = torch.where(gap >= 0, rates[:, None, None] ** gap.clamp(min=0), 0.0)
        for qkvg, out, norm in zip(self.qkvg, self.out, self.norm, strict=True):
            q, k, v, g = qkvg(x).view(b, t, 4, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
            y = ((q @ k.transpose(-1, -2)) * decay) @ v
            y = norm(y.transpose(1, 2).reshape(b * t, d)).view(b, t, d)
            x = x + out(y * functional.silu(g.transpose(1, 2).reshape(b, t, d)))
        logits: torch.Tensor = self.head(x)
        return logits


class SwitchExperts(nn.Module):
    """Transformer with a top-1 mixture of experts of fixed capacity, dispatched by one-hot products."""

    def __init__(self, vocabulary: int = 8000, width: int = 384, experts: int = 8, depth: int = 3) -> None:
        super().__init__()
        self.emb = nn.Embedding(vocabulary, width)
        self.attention = nn.ModuleList(nn.MultiheadAttention(width, 6, batch_first=True) for _ in range(depth))
        self.router = nn.ModuleList(nn.Linear(width, experts) for _ in range(depth))
        self.w1 = nn.ParameterList(nn.Parameter(torch.randn(experts, width, 2 * width) * 0.02) for _ in range(depth))
        self.w2 = nn.ParameterList(nn.Parameter(torch.randn(experts, 2 * width, width) * 0.02) for _ in range(depth))
        self.norm = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.experts = experts
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.emb(ids)
        b, t, d = x.shape
        capacity = 2 * b * t // self.experts
        for i, (attention, router, w1, w2) in enumerate(
            zip(self.attention, self.router, self.w1, self.w2, strict=True)
        ):
            h = self.norm[2 * i](x)
            x = x + attention(h, h, h, need_weights=False)[0]
            h = self.norm[2 * i + 1](x).reshape(b * t, d)
            gate, choice = router(h).softmax(-1).max(-1)
            chosen = functional.one_hot(choice, self.experts)
            place = (chosen.cumsum(0) * chosen - 1).amax(-1)
            slot = (choice * capacity + place.clamp(max=capacity - 1)).clamp(max=self.experts * capacity - 1)
            inputs = torch.zeros(self.experts * capacity, d, device=h.device, dtype=h.dtype).index_copy(0, slot, h)
            hidden = functional.gelu(torch.bmm(inputs.view(self.experts, capacity, d), w1))
            outputs = torch.bmm(hidden, w2).reshape(-1, d)
            x = x + (outputs[slot] * gate[:, None]).view(b, t, d)
        logits: torch.Tensor = self.head(x)
        return logits


class LatentArray(nn.Module):
    """Perceiver-like: a few latents attend to a long input, then to themselves, with shared weights."""

    def __init__(
        self, features: int = 32, width: int = 256, latents: int = 128, depth: int = 4, classes: int = 10
    ) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(latents, width) * 0.02)
        self.embed = nn.Linear(features, width)
        self.cross = nn.MultiheadAttention(width, 4, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(width, 8, 2 * width, batch_first=True, norm_first=True)
        self.depth = depth
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        z = self.latents.expand(x.shape[0], -1, -1)
        for _ in range(self.depth):
            z = z + self.cross(z, x, x, need_weights=False)[0]
            z = self.layer(z)
        out: torch.Tensor = self.head(z.mean(1))
        return out


class ConformerBlock(nn.Module):
    """Half feed-forward, attention, depthwise convolution, half feed-forward."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ff1, self.ff2 = self._feed_forward(width), self._feed_forward(width)
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, heads, batch_first=True)
        self.conv = nn.Sequential(
            *(nn.Conv1d(width, 2 * width, 1), nn.GLU(1), nn.Conv1d(width, width, 15, padding=7, groups=width)),
            *(nn.BatchNorm1d(width), nn.SiLU(), nn.Conv1d(width, width, 1)),
        )
        self.last = nn.LayerNorm(width)

    @staticmethod
    def _feed_forward(width: int) -> nn.Sequential:
        return nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Dropout(0.1), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + 0.5 * self.ff1(x)
        h = self.norm(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        x = x + self.conv(x.transpose(1, 2)).transpose(1, 2)
        out: torch.Tensor = self.last(x + 0.5 * self.ff2(x))
        return out


class Conformer(nn.Module):
    """Subsampling convolutions and conformer blocks over mel frames, a token distribution per frame."""

    def __init__(self, bins: int = 80, width: int = 256, depth: int = 4, vocabulary: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv1d(bins, width, 3, 2, 1), nn.ReLU(), nn.Conv1d(width, width, 3, 2, 1), nn.ReLU()
        )
        self.blocks = nn.ModuleList(ConformerBlock(width, 4) for _ in range(depth))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(x)
        return out


class TextCNN(nn.Module):
    """Parallel convolutions of several widths over embeddings, max over time."""

    def __init__(self, vocabulary: int = 30000, width: int = 128, classes: int = 10) -> None:
        super().__init__()
        self.emb = nn.Embedding(vocabulary, width)
        self.convs = nn.ModuleList(nn.Conv1d(width, 192, k) for k in (3, 4, 5))
        self.head = nn.Sequential(nn.Dropout(0.5), nn.Linear(3 * 192, classes))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.emb(ids).transpose(1, 2)
        out: torch.Tensor = self.head(torch.cat([conv(x).relu().amax(-1) for conv in self.convs], 1))
        return out


class Seq2SeqTransformer(nn.Module):
    """`nn.Transformer` on one token sequence, teacher forced with a causal mask."""

    def __init__(self, vocabulary: int = 16000, width: int = 384) -> None:
        super().__init__()
        self.emb = nn.Embedding(vocabulary, width)
        self.net = nn.Transformer(width, 6, 3, 3, 4 * width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.emb(ids)
        length = ids.shape[1]
        mask = torch.full((length, length), float("-inf"), device=ids.device).triu(1)
        out: torch.Tensor = self.head(self.net(x, x, tgt_mask=mask, tgt_is_causal=True))
        return out
