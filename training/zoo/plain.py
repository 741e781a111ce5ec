"""Entries of the plain-torch models that are not in the seed."""

from __future__ import annotations

from typing import Final

import torch
from torch import nn

from peakcast.training.zoo import feeds
from peakcast.training.zoo import image_modules as image
from peakcast.training.zoo import sequence_modules as sequence
from peakcast.training.zoo import table_modules as table
from peakcast.training.zoo.entry import Entry, Feed


def _entry(name: str, kind: str, module: type[nn.Module], feed: Feed, batches: tuple[int, ...]) -> Entry:
    return Entry(name, module.__name__, kind, module, feed, batches)


def _diffusion(side: int, channels: int) -> Feed:
    return lambda b: (
        (torch.randn(b, channels, side, side), torch.randint(1000, (b,))),
        feeds.mean_square(torch.randn(b, channels, side, side)),
    )


def _in_batch_match(rows: int) -> Feed:
    """User and item ids; each user's item is the positive among the batch's."""
    return lambda b: ((torch.randint(rows, (b, 2)),), feeds.cross_entropy(torch.arange(b)))


_IMAGE = (
    _entry("res_unet", "unet", image.ResUNet, feeds.image_to_labels(192), (4, 24)),
    _entry("diffusion_unet", "diffusion", image.DiffusionUNet, _diffusion(64, 3), (8, 48)),
    _entry("dit_small", "diffusion", image.DiT, _diffusion(32, 4), (8, 64)),
    _entry("edsr", "super-resolution", image.EDSR, feeds.image_to_image(96, scale=2), (4, 24)),
    _entry("espcn", "super-resolution", image.ESPCN, feeds.image_to_image(128, scale=3), (8, 48)),
    _entry("conv_vae", "generative", image.ConvVAE, feeds.image_to_image(64), (32, 256)),
    _entry(
        "dcgan_generator", "generative", image.DCGANGenerator, feeds.vectors_to_vectors((100,), (3, 64, 64)), (32, 256)
    ),
    _entry("patch_discriminator", "generative", image.PatchDiscriminator, feeds.unlabelled(3, 256, 256), (8, 48)),
    _entry("feature_pyramid", "detection", image.FeaturePyramid, feeds.unlabelled(3, 320, 320), (4, 24)),
    _entry("conv3d_net", "volume", image.Conv3dNet, feeds.vectors(1, 48, 48, 48), (4, 16)),
    _entry(
        "volume_unet",
        "volume",
        image.VolumeUNet,
        lambda b: ((torch.randn(b, 1, 48, 48, 48),), feeds.dense_cross_entropy(torch.randint(4, (b, 48, 48, 48)))),
        (1, 6),
    ),
    _entry(
        "pixel_cnn",
        "generative",
        image.PixelCNN,
        lambda b: ((torch.rand(b, 1, 48, 48),), feeds.dense_cross_entropy(torch.randint(32, (b, 48, 48)))),
        (16, 96),
    ),
)

_SEQUENCE = (
    _entry("gru_tagger", "recurrent", sequence.GRUTagger, feeds.tokens(128, 8000), (8, 48)),
    _entry("loop_lstm", "recurrent", sequence.LoopLSTM, feeds.vectors(48, 64), (64, 1024)),
    _entry("additive_seq2seq", "recurrent", sequence.AdditiveSeq2Seq, feeds.tokens(96, 8000), (4, 32)),
    _entry("tcn", "conv1d", sequence.TCN, feeds.vectors(32, 1024), (16, 96)),
    _entry("wavenet", "conv1d", sequence.WaveNet, feeds.tokens(2048, 256), (4, 24)),
    _entry("diagonal_state_space", "state-space", sequence.DiagonalStateSpace, feeds.vectors(1024, 16), (8, 48)),
    _entry("selective_scan", "state-space", sequence.SelectiveScan, feeds.tokens(256, 8000), (4, 24)),
    _entry("linear_attention", "linear-attention", sequence.LinearAttention, feeds.tokens(1024, 8000), (2, 16)),
    _entry("retention", "linear-attention", sequence.Retention, feeds.tokens(512, 8000), (4, 24)),
    _entry("switch_experts", "mixture", sequence.SwitchExperts, feeds.tokens(256, 8000), (8, 48)),
    _entry("latent_array", "perceiver", sequence.LatentArray, feeds.vectors(2048, 32), (4, 32)),
    _entry(
        "conformer",
        "audio",
        sequence.Conformer,
        lambda b: ((torch.randn(b, 80, 800),), feeds.cross_entropy(torch.randint(1000, (b, 200)))),
        (8, 48),
    ),
    _entry("text_cnn", "conv1d", sequence.TextCNN, feeds.token_labels(256, 30000), (32, 256)),
    _entry("seq2seq_transformer", "transformer", sequence.Seq2SeqTransformer, feeds.tokens(128, 16000), (8, 48)),
)

_TABLE = (
    _entry("deep_fm", "rec", table.DeepFM, feeds.clicks(24, 500_000), (1024, 32768)),
    _entry("cross_network", "rec", table.CrossNetwork, feeds.clicks(16, 300_000), (1024, 32768)),
    _entry("two_tower", "rec", table.TwoTower, _in_batch_match(400_000), (512, 8192)),
    _entry("neural_cf", "rec", table.NeuralCF, feeds.clicks(2, 250_000), (4096, 131072)),
    _entry("ft_transformer", "tabular", table.FTTransformer, feeds.vectors(48), (64, 1024)),
    _entry("residual_mlp", "mlp", table.ResidualMLP, feeds.vectors(768), (256, 8192)),
    _entry("gated_mlp", "mlp", table.GatedMLP, feeds.vectors(1024), (256, 4096)),
    _entry("gat", "gnn", table.GAT, feeds.nodes(20000, 128), (1,)),
    _entry("gin", "gnn", table.GIN, feeds.nodes(30000, 96), (1,)),
    _entry("graph_sage", "gnn", table.GraphSAGE, feeds.nodes(40000, 64), (1,)),
    _entry("pointnet", "points", table.PointNet, feeds.vectors(3, 1024), (16, 128)),
    _entry("nerf", "field", table.NeRF, feeds.vectors_to_vectors((64, 3), (3,)), (256, 4096)),
    _entry("siren", "field", table.Siren, feeds.vectors_to_vectors((2,), (3,)), (8192, 131072)),
    _entry("deep_sets", "set", table.DeepSets, feeds.vectors(256, 16), (64, 1024)),
    _entry("autoencoder", "mlp", table.Autoencoder, feeds.vectors_to_vectors((2048,), (2048,)), (512, 16384)),
)

ENTRIES: Final = (*_IMAGE, *_SEQUENCE, *_TABLE)
