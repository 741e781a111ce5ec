"""The plain-torch models of the first measurements. Their configuration is fixed: the records of them rely on it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class MLP(nn.Module):
    """`depth` linear layers of one width with GELU between, and a head."""

    def __init__(self, width: int = 4096, depth: int = 4, out: int = 1000) -> None:
        super().__init__()
        layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.GELU())]
        self.net = nn.Sequential(*layers, nn.Linear(width, out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.net(x)
        return out


def _double_conv(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, padding=1),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(inplace=True),
        nn.Conv2d(channels_out, channels_out, 3, padding=1),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """Three levels down and up with skips by concatenation, then a mean over the image and a linear head."""

    def __init__(self, width: int = 32, out: int = 10) -> None:
        super().__init__()
        w = width
        self.d1, self.d2 = _double_conv(3, w), _double_conv(w, 2 * w)
        self.d3, self.mid = _double_conv(2 * w, 4 * w), _double_conv(4 * w, 8 * w)
        self.u3, self.u2 = nn.ConvTranspose2d(8 * w, 4 * w, 2, 2), nn.ConvTranspose2d(4 * w, 2 * w, 2, 2)
        self.u1 = nn.ConvTranspose2d(2 * w, w, 2, 2)
        self.c3, self.c2, self.c1 = _double_conv(8 * w, 4 * w), _double_conv(4 * w, 2 * w), _double_conv(2 * w, w)
        self.head = nn.Linear(w, out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.d1(x)
        b = self.d2(functional.max_pool2d(a, 2))
        c = self.d3(functional.max_pool2d(b, 2))
        m = self.mid(functional.max_pool2d(c, 2))
        x = self.c3(torch.cat([self.u3(m), c], 1))
        x = self.c2(torch.cat([self.u2(x), b], 1))
        x = self.c1(torch.cat([self.u1(x), a], 1))
        out: torch.Tensor = self.head(x.mean((2, 3)))
        return out


class Enc(nn.Module):
    """Embedding, `nn.TransformerEncoder`, head over the vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(16000, 512)
        self.enc = nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True), 6)
        self.head = nn.Linear(512, 16000)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.enc(self.emb(ids)))
        return out


class Attn(nn.Module):
    """Attention written by hand, which materialises the T x T scores."""

    def __init__(self, width: int = 512, heads: int = 8, layers: int = 4, vocabulary: int = 8000) -> None:
        super().__init__()
        self.heads = heads
        self.emb = nn.Embedding(vocabulary, width)
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.o = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.emb(ids)
        b, t, d = x.shape
        for qkv, o in zip(self.qkv, self.o, strict=False):
            q, k, v = qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
            a = (q @ k.transpose(-1, -2)) / (d // self.heads) ** 0.5
            x = x + o((a.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))
        out: torch.Tensor = self.head(x)
        return out


class DLRM(nn.Module):
    """Eight embedding tables of 200,000 rows into an MLP."""

    def __init__(self, tables: int = 8, rows: int = 200000, width: int = 64, out: int = 10) -> None:
        super().__init__()
        self.emb = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.mlp = nn.Sequential(
            nn.Linear(tables * width, 1024), nn.ReLU(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, out)
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.mlp(torch.cat([e(ids[:, i]) for i, e in enumerate(self.emb)], 1))
        return out


class GCN(nn.Module):
    """Three graph convolutions by `index_add` over a fixed random edge list."""

    src: torch.Tensor
    dst: torch.Tensor

    def __init__(self, width: int = 128, count: int = 20000, edges: int = 200000, out: int = 16) -> None:
        super().__init__()
        self.register_buffer("src", torch.randint(count, (edges,)))
        self.register_buffer("dst", torch.randint(count, (edges,)))
        self.l = nn.ModuleList([nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, out)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i, layer in enumerate(self.l):
            h = layer(x)
            x = torch.zeros_like(h).index_add(0, self.dst, h[self.src])
            if i < 2:
                x = x.relu()
        return x
