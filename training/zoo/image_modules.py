"""Plain-torch image models: U-Nets of other designs, super-resolution, generators, diffusion, detection parts, 3-D."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional


class ResidualBlock(nn.Module):
    """Group norm, SiLU, convolution, twice, around a skip; an optional time embedding is added between."""

    def __init__(self, channels_in: int, channels_out: int, time_width: int = 0) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, channels_in), nn.GroupNorm(8, channels_out)
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, padding=1)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1)
        self.time = nn.Linear(time_width, channels_out) if time_width else None
        self.skip = nn.Conv2d(channels_in, channels_out, 1) if channels_in != channels_out else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor | None = None) -> torch.Tensor:
        h = self.conv1(functional.silu(self.norm1(x)))
        if self.time is not None and time is not None:
            h = h + self.time(functional.silu(time))[:, :, None, None]
        out: torch.Tensor = self.conv2(functional.silu(self.norm2(h))) + self.skip(x)
        return out


class ResUNet(nn.Module):
    """Residual U-Net that halves by strided convolution, doubles by interpolation and adds its skips."""

    def __init__(self, widths: tuple[int, ...] = (24, 48, 96, 192), classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], 3, padding=1)
        self.down = nn.ModuleList(ResidualBlock(w, w) for w in widths)
        pairs = list(pairwise(widths))
        self.shrink = nn.ModuleList(nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in pairs)
        self.reduce = nn.ModuleList(nn.Conv2d(b, a, 1) for a, b in reversed(pairs))
        self.up = nn.ModuleList(ResidualBlock(a, a) for a, _ in reversed(pairs))
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.down[0](self.stem(x))
        skips = [x]
        for shrink, block in zip(self.shrink, self.down[1:], strict=True):
            x = block(shrink(x))
            skips.append(x)
        skips.pop()
        for reduce, block in zip(self.reduce, self.up, strict=True):
            x = functional.interpolate(reduce(x), scale_factor=2, mode="bilinear", align_corners=False)
            x = block(x + skips.pop())
        out: torch.Tensor = self.head(x)
        return out


class SpatialAttention(nn.Module):
    """Self-attention over the positions of a feature map."""

    def __init__(self, channels: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(8, channels)
        self.qkv, self.out = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, 3, self.heads, c // self.heads, h * w).transpose(-1, -2).unbind(1)
        y = functional.scaled_dot_product_attention(q, k, v)
        out: torch.Tensor = x + self.out(y.transpose(-1, -2).reshape(b, c, h, w))
        return out


class DiffusionUNet(nn.Module):
    """Noise predictor with time embedding, residual blocks, attention at the coarsest level, concatenated skips."""

    def __init__(self, width: int = 48, channels: int = 3) -> None:
        super().__init__()
        time = 4 * width
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.stem = nn.Conv2d(channels, width, 3, padding=1)
        self.d1, self.d2 = ResidualBlock(width, width, time), ResidualBlock(width, 2 * width, time)
        self.m1, self.m2 = ResidualBlock(2 * width, 4 * width, time), ResidualBlock(4 * width, 4 * width, time)
        self.attention = SpatialAttention(4 * width)
        self.u2, self.u1 = ResidualBlock(6 * width, 2 * width, time), ResidualBlock(3 * width, width, time)
        self.head = nn.Conv2d(width, channels, 3, padding=1)

    def forward(self, x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        half = self.width // 2
        rates = torch.exp(torch.arange(half, device=x.device) * (-math.log(10000.0) / half))
        angles = step.float()[:, None] * rates[None]
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        a = self.d1(self.stem(x), time)
        b = self.d2(functional.avg_pool2d(a, 2), time)
        m = self.m2(self.attention(self.m1(functional.avg_pool2d(b, 2), time)), time)
        u = self.u2(torch.cat([functional.interpolate(m, scale_factor=2.0), b], 1), time)
        u = self.u1(torch.cat([functional.interpolate(u, scale_factor=2.0), a], 1), time)
        out: torch.Tensor = self.head(functional.silu(u))
        return out


class DiTBlock(nn.Module):
    """Transformer block whose norms are shifted and scaled by a condition."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))
        self.condition = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.condition(c)[:, None].chunk(6, dim=-1)
        b, t, d = x.shape
        h = self.norm1(x) * (1 + scale1) + shift1
        q, k, v = self.qkv(h).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = x + gate1 * self.out(y)
        out: torch.Tensor = x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)
        return out


class DiT(nn.Module):
    """Diffusion transformer over patches of a latent image."""

    def __init__(self, side: int = 32, channels: int = 4, patch: int = 2, width: int = 384, depth: int = 6) -> None:
        super().__init__()
        self.patch, self.side, self.channels = patch, side // patch, channels
        self.embed = nn.Conv2d(channels, width, patch, stride=patch)
        self.position = nn.Parameter(torch.zeros(1, self.side**2, width))
        self.label = nn.Embedding(1000, width)
        self.blocks = nn.ModuleList(DiTBlock(width, 6) for _ in range(depth))
        self.head = nn.Linear(width, channels * patch**2)

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        c = self.label(label)
        x = self.embed(x).flatten(2).transpose(1, 2) + self.position
        for block in self.blocks:
            x = block(x, c)
        x = self.head(x).transpose(1, 2).reshape(-1, self.channels * self.patch**2, self.side, self.side)
        return functional.pixel_shuffle(x, self.patch)


class EDSR(nn.Module):
    """Super-resolution by residual convolutions without norms, doubled by pixel shuffle."""

    def __init__(self, width: int = 48, depth: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.body = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1))
            for _ in range(depth)
        )
        self.up = nn.Conv2d(width, 4 * width, 3, padding=1)
        self.head = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = x
        for block in self.body:
            y = y + 0.1 * block(y)
        out: torch.Tensor = self.head(functional.pixel_shuffle(self.up(x + y), 2))
        return out


class ESPCN(nn.Module):
    """Super-resolution in low resolution with tanh, one shuffle at the end."""

    def __init__(self, scale: int = 3) -> None:
        super().__init__()
        self.net = nn.Sequential(
            *(nn.Conv2d(3, 64, 5, padding=2), nn.Tanh(), nn.Conv2d(64, 32, 3, padding=1), nn.Tanh()),
            *(nn.Conv2d(32, 3 * scale**2, 3, padding=1), nn.PixelShuffle(scale)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.net(x)
        return out


class ConvVAE(nn.Module):
    """Convolutional variational auto-encoder; returns the image with the divergence added as a constant map."""

    def __init__(self, width: int = 32, latent: int = 128) -> None:
        super().__init__()
        w = width
        self.encoder = nn.Sequential(
            *(nn.Conv2d(3, w, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(w, 2 * w, 4, 2, 1), nn.BatchNorm2d(2 * w)),
            *(nn.LeakyReLU(0.2), nn.Conv2d(2 * w, 4 * w, 4, 2, 1), nn.BatchNorm2d(4 * w), nn.LeakyReLU(0.2)),
        )
        self.mean, self.log_variance = nn.Linear(4 * w * 64, latent), nn.Linear(4 * w * 64, latent)
        self.project = nn.Linear(latent, 4 * w * 64)
        self.decoder = nn.Sequential(
            *(nn.ConvTranspose2d(4 * w, 2 * w, 4, 2, 1), nn.BatchNorm2d(2 * w), nn.ReLU()),
            *(nn.ConvTranspose2d(2 * w, w, 4, 2, 1), nn.BatchNorm2d(w), nn.ReLU(), nn.ConvTranspose2d(w, 3, 4, 2, 1)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.encoder(x).flatten(1)
        mean, log_variance = self.mean(h), self.log_variance(h)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).mean()
        image = self.decoder(self.project(z).view(-1, h.shape[1] // 64, 8, 8))
        out: torch.Tensor = image + 1e-3 * divergence
        return out


class DCGANGenerator(nn.Module):
    """Latent vector to a 64-pixel image by transposed convolutions."""

    def __init__(self, latent: int = 100, width: int = 64) -> None:
        super().__init__()
        w = width
        self.net = nn.Sequential(
            *(nn.ConvTranspose2d(latent, 8 * w, 4, 1, 0, bias=False), nn.BatchNorm2d(8 * w), nn.ReLU(inplace=True)),
            *(nn.ConvTranspose2d(8 * w, 4 * w, 4, 2, 1, bias=False), nn.BatchNorm2d(4 * w), nn.ReLU(inplace=True)),
            *(nn.ConvTranspose2d(4 * w, 2 * w, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * w), nn.ReLU(inplace=True)),
            *(nn.ConvTranspose2d(2 * w, w, 4, 2, 1, bias=False), nn.BatchNorm2d(w), nn.ReLU(inplace=True)),
            *(nn.ConvTranspose2d(w, 3, 4, 2, 1, bias=False), nn.Tanh()),
        )

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.net(z[:, :, None, None])
        return out


class PatchDiscriminator(nn.Module):
    """A map of real-or-fake logits, with instance norms."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        w = width
        self.net = nn.Sequential(
            *(nn.Conv2d(3, w, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True)),
            *(nn.Conv2d(w, 2 * w, 4, 2, 1), nn.InstanceNorm2d(2 * w), nn.LeakyReLU(0.2, inplace=True)),
            *(nn.Conv2d(2 * w, 4 * w, 4, 2, 1), nn.InstanceNorm2d(4 * w), nn.LeakyReLU(0.2, inplace=True)),
            nn.Conv2d(4 * w, 1, 4, 1, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.net(x)
        return out


class FeaturePyramid(nn.Module):
    """A small strided backbone, a feature pyramid over it, and RetinaNet's two shared heads on each level."""

    def __init__(self, width: int = 96, classes: int = 20, anchors: int = 9) -> None:
        super().__init__()
        widths = (48, 96, 192, 384)
        self.backbone = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True))
            for a, b in zip((3, *widths[:-1]), widths, strict=True)
        )
        self.lateral = nn.ModuleList(nn.Conv2d(w, width, 1) for w in widths[1:])
        self.smooth = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in widths[1:])
        self.classes, self.boxes = self._head(width, anchors * classes), self._head(width, anchors * 4)

    @staticmethod
    def _head(width: int, out: int) -> nn.Sequential:
        layers = [m for _ in range(3) for m in (nn.Conv2d(width, width, 3, padding=1), nn.ReLU())]
        return nn.Sequential(*layers, nn.Conv2d(width, out, 3, padding=1))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        maps = []
        for stage in self.backbone:
            x = stage(x)
            maps.append(x)
        top: torch.Tensor | None = None
        levels = []
        for lateral, smooth, feature in zip(
            reversed(self.lateral), reversed(self.smooth), reversed(maps[1:]), strict=True
        ):
            here = lateral(feature)
            top = here if top is None else here + functional.interpolate(top, scale_factor=2.0, mode="nearest")
            levels.append(smooth(top))
        return [head(level) for level in levels for head in (self.classes, self.boxes)]


class Conv3dNet(nn.Module):
    """Volumes through strided 3-D convolutions with group norms (VoxResNet-like)."""

    def __init__(self, widths: tuple[int, ...] = (16, 32, 48), classes: int = 10) -> None:
        super().__init__()
        self.stages = nn.ModuleList(
            nn.Sequential(
                *(nn.Conv3d(a, b, 3, padding=1), nn.GroupNorm(8, b), nn.ReLU(inplace=True)),
                *(nn.Conv3d(b, b, 3, stride=2, padding=1), nn.GroupNorm(8, b), nn.ReLU(inplace=True)),
            )
            for a, b in zip((1, *widths[:-1]), widths, strict=True)
        )
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for stage in self.stages:
            x = stage(x)
        out: torch.Tensor = self.head(x.mean((2, 3, 4)))
        return out


class VolumeUNet(nn.Module):
    """A two-level U-Net on volumes, transposed convolutions up, concatenated skips."""

    def __init__(self, width: int = 12, classes: int = 4) -> None:
        super().__init__()
        w = width
        self.a, self.b, self.m = self._block(1, w), self._block(w, 2 * w), self._block(2 * w, 4 * w)
        self.u2, self.u1 = nn.ConvTranspose3d(4 * w, 2 * w, 2, 2), nn.ConvTranspose3d(2 * w, w, 2, 2)
        self.c2, self.c1 = self._block(4 * w, 2 * w), self._block(2 * w, w)
        self.head = nn.Conv3d(w, classes, 1)

    @staticmethod
    def _block(channels_in: int, channels_out: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv3d(channels_in, channels_out, 3, padding=1),
            nn.InstanceNorm3d(channels_out, affine=True),
            nn.LeakyReLU(0.01, inplace=True),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.a(x)
        b = self.b(functional.max_pool3d(a, 2))
        m = self.m(functional.max_pool3d(b, 2))
        x = self.c2(torch.cat([self.u2(m), b], 1))
        x = self.c1(torch.cat([self.u1(x), a], 1))
        out: torch.Tensor = self.head(x)
        return out


class PixelCNN(nn.Module):
    """Masked convolutions with gated activations, and a distribution over 32 levels for each pixel."""

    mask: torch.Tensor

    def __init__(self, width: int = 64, depth: int = 6, levels: int = 32) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 7, padding=3)
        self.convs = nn.ModuleList(nn.Conv2d(width, 2 * width, 3, padding=1) for _ in range(depth))
        self.mix = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(depth))
        mask = torch.ones(1, 1, 3, 3)
        mask[..., 1, 2:] = 0
        mask[..., 2, :] = 0
        self.register_buffer("mask", mask)
        self.head = nn.Conv2d(width, levels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for conv, mix in zip(self.convs, self.mix, strict=True):
            assert isinstance(conv, nn.Conv2d)
            a, gate = functional.conv2d(x, conv.weight * self.mask, conv.bias, padding=1).chunk(2, 1)
            x = x + mix(a.tanh() * gate.sigmoid())
        out: torch.Tensor = self.head(functional.relu(x))
        return out
