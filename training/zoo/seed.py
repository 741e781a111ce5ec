"""The models of the first 297 measurements, under the same names, configurations and batches."""

from __future__ import annotations

from typing import Final

from peakcast.training.zoo import feeds
from peakcast.training.zoo.entry import Entry, Feed
from peakcast.training.zoo.seed_modules import DLRM, GCN, MLP, Attn, Enc, UNet
from peakcast.training.zoo.sources import Make, timm_model, torchvision_model, transformers_model


def _torchvision(name: str, architecture: str, kind: str, batches: tuple[int, ...]) -> Entry:
    return Entry(name, architecture, kind, torchvision_model(name), feeds.image(224), batches)


def _timm(name: str, of: str, architecture: str, kind: str, batches: tuple[int, ...], pixels: int = 224) -> Entry:
    return Entry(name, architecture, kind, timm_model(of), feeds.image(pixels), batches)


def _plain(name: str, kind: str, make: Make, architecture: str, feed: Feed, batches: tuple[int, ...]) -> Entry:
    return Entry(name, architecture, kind, make, feed, batches)


def _lm(name: str, of: str, length: int, vocabulary: int, batches: tuple[int, ...], **config: object) -> Entry:
    make = transformers_model(of, f"{_config_stem(of)}Config", **config)
    return Entry(name, of, "lm", make, feeds.language(length, vocabulary), batches)


def _config_stem(class_name: str) -> str:
    return class_name.removesuffix("LMHeadModel").split("For")[0]


ENTRIES: Final = (
    _torchvision("resnet18", "ResNet", "cnn", (8, 64, 256)),
    _torchvision("resnet50", "ResNet", "cnn", (8, 32, 128)),
    _torchvision("vgg16", "VGG", "cnn", (8, 64)),
    _torchvision("densenet121", "DenseNet", "cnn", (16, 64)),
    _torchvision("mobilenet_v3_large", "MobileNetV3", "cnn", (16, 128)),
    _torchvision("efficientnet_b0", "EfficientNet", "cnn", (16, 96)),
    _torchvision("convnext_tiny", "ConvNeXt", "cnn", (8, 64)),
    _torchvision("regnet_y_1_6gf", "RegNet", "cnn", (16, 64)),
    _torchvision("shufflenet_v2_x1_0", "ShuffleNetV2", "cnn", (32, 256)),
    _torchvision("squeezenet1_1", "SqueezeNet", "cnn", (32, 256)),
    _torchvision("vit_b_16", "VisionTransformer", "vit", (8, 64)),
    _torchvision("swin_t", "SwinTransformer", "vit", (8, 64)),
    _timm("deit_small", "deit_small_patch16_224", "VisionTransformer", "vit", (16, 128)),
    _timm("mixer_b16", "mixer_b16_224", "MlpMixer", "mixer", (16, 64)),
    _timm("poolformer_s12", "poolformer_s12", "MetaFormer", "mixer", (16, 64)),
    _timm("mobilevit_s", "mobilevit_s", "ByobNet", "vit", (16, 64), 256),
    _timm("resmlp_12", "resmlp_12_224", "MlpMixer", "mixer", (16, 128)),
    _timm("repvgg_a2", "repvgg_a2", "ByobNet", "cnn", (16, 64)),
    _plain("unet32", "unet", lambda: UNet(32), "UNet", feeds.image(256), (4, 16, 48)),
    _plain("mlp4096", "mlp", lambda: MLP(4096, 4), "MLP", feeds.vectors(4096), (64, 4096)),
    _plain("mlp1024x12", "mlp", lambda: MLP(1024, 12), "MLP", feeds.vectors(1024), (512, 16384)),
    _plain("enc512", "transformer", Enc, "Enc", feeds.tokens(256, 16000), (8, 64)),
    _plain("attn_manual", "transformer", Attn, "Attn", feeds.tokens(512, 8000), (4, 32)),
    _plain("attn_manual_long", "transformer", lambda: Attn(layers=2), "Attn", feeds.tokens(2048, 8000), (1, 4)),
    _plain("dlrm", "rec", DLRM, "DLRM", feeds.ids(8, 200000), (512, 65536)),
    _plain("gcn", "gnn", GCN, "GCN", feeds.nodes(20000, 128), (1,)),
    _lm("gpt2_small", "GPT2LMHeadModel", 512, 50257, (2, 8, 24), attn_implementation="sdpa"),
    _lm("gpt2_eager_attn", "GPT2LMHeadModel", 512, 50257, (4, 16), n_layer=6, attn_implementation="eager"),
    _lm("bert_base", "BertForMaskedLM", 128, 30522, (8, 64)),
    _lm("distilbert", "DistilBertForMaskedLM", 256, 30522, (8, 32)),
    _lm(
        "t5_small",
        "T5ForConditionalGeneration",
        256,
        32128,
        (4, 32),
        d_model=512,
        num_layers=6,
        num_heads=8,
        decoder_start_token_id=0,
    ),
    _lm(
        "llama_200m",
        "LlamaForCausalLM",
        1024,
        32000,
        (1, 4, 12),
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=10,
        num_attention_heads=16,
        vocab_size=32000,
    ),
    _lm(
        "qwen2_150m",
        "Qwen2ForCausalLM",
        512,
        64000,
        (2, 8),
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=8,
        num_attention_heads=12,
        num_key_value_heads=4,
        vocab_size=64000,
    ),
    _lm("opt_125m", "OPTForCausalLM", 512, 50272, (2, 12)),
    _lm(
        "pythia_160m",
        "GPTNeoXForCausalLM",
        512,
        50304,
        (2, 12),
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=3072,
        vocab_size=50304,
    ),
    Entry(
        "whisper_tiny_enc",
        "WhisperForAudioClassification",
        "audio",
        transformers_model(
            "WhisperForAudioClassification",
            "WhisperConfig",
            d_model=384,
            encoder_layers=4,
            encoder_attention_heads=6,
            num_labels=10,
        ),
        feeds.features("input_features", 80, 3000),
        (4, 32),
    ),
)
