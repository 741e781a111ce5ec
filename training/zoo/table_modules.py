"""Plain-torch models of tables, clicks, graphs, points and fields."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional


def _mlp(*widths: int, last: nn.Module | None = None) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    layers.pop()
    return nn.Sequential(*layers, *([last] if last is not None else []))


class DeepFM(nn.Module):
    """One shared table, second-order interactions by the sum-square trick, and a deep part."""

    def __init__(self, columns: int = 24, rows: int = 500_000, width: int = 32) -> None:
        super().__init__()
        self.table, self.bias = nn.Embedding(rows, width), nn.Embedding(rows, 1)
        self.deep = _mlp(columns * width, 512, 256, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        e = self.table(ids)
        pairs = 0.5 * (e.sum(1).square() - e.square().sum(1)).sum(1, keepdim=True)
        out: torch.Tensor = self.bias(ids).sum(1) + pairs + self.deep(e.flatten(1))
        return out


class CrossNetwork(nn.Module):
    """DCN v2: full-rank crosses beside an MLP."""

    def __init__(self, columns: int = 16, rows: int = 300_000, width: int = 32, depth: int = 3) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, width)
        d = columns * width
        self.cross = nn.ModuleList(nn.Linear(d, d) for _ in range(depth))
        self.deep = _mlp(d, 1024, 512, last=nn.ReLU())
        self.head = nn.Linear(d + 512, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x0 = self.table(ids).flatten(1)
        x = x0
        for layer in self.cross:
            x = x0 * layer(x) + x
        out: torch.Tensor = self.head(torch.cat([x, self.deep(x0)], 1))
        return out


class TwoTower(nn.Module):
    """Two embedding towers whose in-batch score matrix [B, B] is the logits."""

    def __init__(self, rows: int = 400_000, width: int = 96) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(rows, width), nn.Embedding(rows, width)
        self.left, self.right = _mlp(width, 512, 128), _mlp(width, 512, 128)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        u = functional.normalize(self.left(self.user(ids[:, 0])), dim=-1)
        v = functional.normalize(self.right(self.item(ids[:, 1])), dim=-1)
        return 20.0 * u @ v.T


class NeuralCF(nn.Module):
    """Neural collaborative filtering: an elementwise product beside an MLP."""

    def __init__(self, rows: int = 250_000, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(4))
        self.mlp = _mlp(2 * width, 256, 128, 64, last=nn.ReLU())
        self.head = nn.Linear(width + 64, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        a, b = self.tables[0](ids[:, 0]), self.tables[1](ids[:, 1])
        c, d = self.tables[2](ids[:, 0]), self.tables[3](ids[:, 1])
        out: torch.Tensor = self.head(torch.cat([a * b, self.mlp(torch.cat([c, d], 1))], 1))
        return out


class FTTransformer(nn.Module):
    """Each numeric feature becomes a token; a transformer reads the row."""

    def __init__(self, columns: int = 48, width: int = 128, depth: int = 3, classes: int = 10) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(columns, width) * 0.02)
        self.shift = nn.Parameter(torch.zeros(columns, width))
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        layer = nn.TransformerEncoderLayer(width, 8, 2 * width, activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x[:, :, None] * self.scale + self.shift
        tokens = torch.cat([self.token.expand(x.shape[0], -1, -1), tokens], 1)
        out: torch.Tensor = self.head(self.encoder(tokens)[:, 0])
        return out


class ResidualMLP(nn.Module):
    """Pre-norm residual MLP blocks with dropout."""

    def __init__(self, width: int = 768, depth: int = 8, classes: int = 10) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm1d(width),
                nn.Linear(width, 2 * width),
                nn.ReLU(),
                nn.Dropout(0.1),
                nn.Linear(2 * width, width),
            )
            for _ in range(depth)
        )
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        out: torch.Tensor = self.head(x)
        return out


class GatedMLP(nn.Module):
    """SwiGLU blocks with RMS norms."""

    def __init__(self, width: int = 1024, depth: int = 6, classes: int = 100) -> None:
        super().__init__()
        self.norm = nn.ModuleList(nn.RMSNorm(width) for _ in range(depth))
        self.up = nn.ModuleList(nn.Linear(width, 4 * width, bias=False) for _ in range(depth))
        self.down = nn.ModuleList(nn.Linear(2 * width, width, bias=False) for _ in range(depth))
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, up, down in zip(self.norm, self.up, self.down, strict=True):
            a, gate = up(norm(x)).chunk(2, -1)
            x = x + down(a * functional.silu(gate))
        out: torch.Tensor = self.head(x)
        return out


class _EdgeList(nn.Module):
    """Hold a fixed random edge list of one graph."""

    src: torch.Tensor
    dst: torch.Tensor

    def __init__(self, count: int, edges: int) -> None:
        super().__init__()
        self.register_buffer("src", torch.randint(count, (edges,)))
        self.register_buffer("dst", torch.randint(count, (edges,)))


class GAT(_EdgeList):
    """Graph attention: edge scores, softmax over each node's edges by scatter."""

    def __init__(
        self, count: int = 20000, edges: int = 150000, width: int = 64, heads: int = 4, classes: int = 16
    ) -> None:
        super().__init__(count, edges)
        self.heads = heads
        self.layers = nn.ModuleList(nn.Linear(a, width, bias=False) for a in (128, width))
        self.left = nn.ParameterList(nn.Parameter(torch.randn(heads, width // heads) * 0.1) for _ in range(2))
        self.right = nn.ParameterList(nn.Parameter(torch.randn(heads, width // heads) * 0.1) for _ in range(2))
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, left, right in zip(self.layers, self.left, self.right, strict=True):
            h = layer(x).view(x.shape[0], self.heads, -1)
            scores = functional.leaky_relu((h * left).sum(-1)[self.src] + (h * right).sum(-1)[self.dst], 0.2)
            weight = (scores.float() - scores.float().amax()).exp()
            total = torch.zeros(x.shape[0], self.heads, device=x.device).index_add(0, self.dst, weight)
            weight = (weight / (total[self.dst] + 1e-9)).to(h.dtype)
            x = torch.zeros_like(h).index_add(0, self.dst, h[self.src] * weight[..., None]).flatten(1).relu()
        out: torch.Tensor = self.head(x)
        return out


class GIN(_EdgeList):
    """Graph isomorphism network: sums of neighbours into an MLP with batch norm."""

    def __init__(
        self, count: int = 30000, edges: int = 240000, width: int = 96, depth: int = 3, classes: int = 16
    ) -> None:
        super().__init__(count, edges)
        self.epsilon = nn.Parameter(torch.zeros(depth))
        self.mlps = nn.ModuleList(
            nn.Sequential(
                nn.Linear(width, 2 * width), nn.BatchNorm1d(2 * width), nn.ReLU(), nn.Linear(2 * width, width)
            )
            for _ in range(depth)
        )
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i, mlp in enumerate(self.mlps):
            total = torch.zeros_like(x).index_add(0, self.dst, x[self.src])
            x = mlp((1 + self.epsilon[i]).to(x.dtype) * x + total)
        out: torch.Tensor = self.head(x)
        return out


class GraphSAGE(_EdgeList):
    """Mean of neighbours by scatter_reduce, concatenated with the node."""

    def __init__(
        self, count: int = 40000, edges: int = 200000, width: int = 64, depth: int = 3, classes: int = 16
    ) -> None:
        super().__init__(count, edges)
        self.layers = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(depth))
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            index = self.dst[:, None].expand(-1, x.shape[1])
            mean = torch.zeros_like(x).scatter_reduce(0, index, x[self.src], "mean", include_self=False)
            x = functional.normalize(layer(torch.cat([x, mean.to(x.dtype)], 1)).relu(), dim=-1)
        out: torch.Tensor = self.head(x)
        return out


class PointNet(nn.Module):
    """Shared MLPs over points with a learned 3 x 3 alignment, max over points."""

    def __init__(self, classes: int = 40) -> None:
        super().__init__()
        self.align = nn.Sequential(nn.Conv1d(3, 64, 1), nn.BatchNorm1d(64), nn.ReLU(), nn.Conv1d(64, 256, 1))
        self.matrix = nn.Linear(256, 9)
        self.body = nn.Sequential(
            *(nn.Conv1d(3, 64, 1), nn.BatchNorm1d(64), nn.ReLU(), nn.Conv1d(64, 128, 1), nn.BatchNorm1d(128)),
            *(nn.ReLU(), nn.Conv1d(128, 1024, 1), nn.BatchNorm1d(1024)),
        )
        self.head = _mlp(1024, 512, 256, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        matrix = self.matrix(self.align(x).amax(-1)).view(-1, 3, 3)
        out: torch.Tensor = self.head(self.body(torch.bmm(matrix, x)).amax(-1))
        return out


class NeRF(nn.Module):
    """Positional encoding, eight wide layers with a skip, then transmittance along each ray."""

    def __init__(self, width: int = 256, bands: int = 10) -> None:
        super().__init__()
        self.bands = bands
        d = 3 + 6 * bands
        self.first = nn.ModuleList(nn.Linear(a, width) for a in (d, width, width, width))
        self.second = nn.ModuleList(nn.Linear(a, width) for a in (width + d, width, width, width))
        self.head = nn.Linear(width, 4)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        scales = (2.0 ** torch.arange(self.bands, device=points.device)) * math.pi
        angles = (points[..., None] * scales).flatten(-2)
        encoded = torch.cat([points, angles.sin(), angles.cos()], -1)
        x = encoded
        for layer in self.first:
            x = layer(x).relu()
        x = torch.cat([x, encoded], -1)
        for layer in self.second:
            x = layer(x).relu()
        rgbs = self.head(x)
        alpha = 1 - torch.exp(-functional.relu(rgbs[..., 3]) * 0.05)
        through = torch.cumprod(1 - alpha + 1e-6, -1)
        color: torch.Tensor = (rgbs[..., :3].sigmoid() * (alpha * through)[..., None]).sum(-2)
        return color


class Siren(nn.Module):
    """Sine activations over coordinates."""

    def __init__(self, width: int = 512, depth: int = 5, out: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, width) for a in (2, *[width] * (depth - 1)))
        self.head = nn.Linear(width, out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.sin(30.0 * layer(x))
        out: torch.Tensor = self.head(x)
        return out


class DeepSets(nn.Module):
    """An MLP for each element, a sum, an MLP for the set."""

    def __init__(self, features: int = 16, width: int = 256, classes: int = 10) -> None:
        super().__init__()
        self.element = nn.Sequential(nn.Linear(features, width), nn.ELU(), nn.Linear(width, width), nn.ELU())
        self.whole = nn.Sequential(nn.Linear(width, width), nn.ELU(), nn.Linear(width, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.whole(self.element(x).sum(1))
        return out


class Autoencoder(nn.Module):
    """A deep symmetric auto-encoder of vectors, with layer norms."""

    def __init__(self, widths: tuple[int, ...] = (2048, 1024, 512, 64)) -> None:
        super().__init__()
        path = (*widths, *reversed(widths[:-1]))
        self.net = nn.Sequential(*(m for a, b in pairwise(path) for m in (nn.Linear(a, b), nn.LayerNorm(b), nn.SiLU())))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.net(x)
        return out
