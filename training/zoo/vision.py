"""Image models of torchvision, timm and transformers beyond the seed's. Shallow variants keep compile time low."""

from __future__ import annotations

from typing import Any, Final

from peakcast.training.zoo import feeds
from peakcast.training.zoo.entry import Entry
from peakcast.training.zoo.sources import timm_model, torchvision_model, transformers_model


def _tv(name: str, architecture: str, batches: tuple[int, ...], **options: Any) -> Entry:
    return Entry(name, architecture, "cnn", torchvision_model(name, **options), feeds.image(224), batches)


def _tv_segmentation(name: str, architecture: str, batches: tuple[int, ...], pixels: int = 256) -> Entry:
    make = torchvision_model(f"segmentation.{name}", weights_backbone=None, num_classes=21)
    return Entry(name, architecture, "segmentation", make, feeds.image_to_labels(pixels, classes=21), batches)


def _timm(
    name: str, architecture: str, kind: str, batches: tuple[int, ...], pixels: int = 224, **options: Any
) -> Entry:
    return Entry(name, architecture, kind, timm_model(name, **options), feeds.image(pixels), batches)


def _hf(name: str, stem: str, kind: str, batches: tuple[int, ...], pixels: int = 224, **config: Any) -> Entry:
    make = transformers_model(f"{stem}ForImageClassification", f"{stem}Config", num_labels=feeds.CLASSES, **config)
    return Entry(name, f"{stem}ForImageClassification", kind, make, feeds.pixels_by_name(pixels), batches)


_TORCHVISION = (
    _tv("alexnet", "AlexNet", (32, 512)),
    _tv("googlenet", "GoogLeNet", (16, 96), aux_logits=False, init_weights=False),
    _tv("mobilenet_v2", "MobileNetV2", (16, 96)),
    _tv("vgg11_bn", "VGG", (8, 48)),
    _tv("regnet_x_400mf", "RegNet", (32, 192)),
    _tv("resnet34", "ResNet", (16, 128)),
    Entry(
        "r3d_18",
        "VideoResNet",
        "video",
        torchvision_model("video.r3d_18", num_classes=feeds.CLASSES),
        feeds.vectors(3, 8, 64, 64),
        (4, 24),
    ),
    _tv_segmentation("fcn_resnet50", "FCN", (2, 12)),
    _tv_segmentation("deeplabv3_mobilenet_v3_large", "DeepLabV3", (4, 24)),
    _tv_segmentation("lraspp_mobilenet_v3_large", "LRASPP", (4, 32)),
)

_TIMM_CNN = (
    _timm("resnetv2_18", "ResNetV2", "cnn", (16, 128)),
    _timm("efficientnet_lite0", "EfficientNet", "cnn", (16, 96)),
    _timm("ghostnet_100", "GhostNet", "cnn", (16, 128)),
    _timm("mobileone_s0", "ByobNet", "cnn", (16, 96)),
    _timm("convmixer_768_32", "ConvMixer", "mixer", (2, 12)),
    _timm("dla34", "DLA", "cnn", (8, 64)),
    _timm("dpn48b", "DPN", "cnn", (8, 64)),
    _timm("rexnet_100", "RexNet", "cnn", (16, 96)),
    _timm("selecsls42b", "SelecSls", "cnn", (16, 96)),
    _timm("ese_vovnet19b_dw", "VovNet", "cnn", (8, 64)),
    _timm("cspresnet50", "CspNet", "cnn", (8, 48)),
    _timm("cspdarknet53", "CspNet", "cnn", (8, 32)),
    _timm("nf_regnet_b0", "NormFreeNet", "cnn", (16, 64)),
    _timm("fastvit_t8", "FastVit", "cnn", (8, 48), 256),
    _timm("hardcorenas_a", "MobileNetV3", "cnn", (16, 96)),
    _timm("hgnetv2_b0", "HighPerfGpuNet", "cnn", (16, 96)),
    _timm("starnet_s1", "StarNet", "cnn", (16, 96)),
    _timm("fasternet_t0", "FasterNet", "cnn", (16, 128)),
    _timm("repghostnet_050", "RepGhostNet", "cnn", (32, 192)),
    _timm("repvit_m0_9", "RepVit", "cnn", (16, 64)),
    _timm("xception41", "XceptionAligned", "cnn", (4, 32)),
    _timm("rdnet_tiny", "RDNet", "cnn", (8, 48)),
    _timm("tresnet_m", "TResNet", "cnn", (8, 64)),
    _timm("skresnet18", "ResNet", "cnn", (16, 96)),
)

_TIMM_TRANSFORMER = (
    _timm("levit_128s", "LevitDistilled", "vit", (32, 192)),
    _timm("pvt_v2_b0", "PyramidVisionTransformerV2", "vit", (16, 96)),
    _timm("twins_pcpvt_small", "Twins", "vit", (8, 48)),
    _timm("cait_xxs24_224", "Cait", "vit", (8, 48), depth=8),
    _timm("volo_d1_224", "VOLO", "vit", (4, 24)),
    _timm("coat_lite_tiny", "CoaT", "vit", (8, 64)),
    _timm("crossvit_9_240", "CrossVit", "vit", (8, 64), 240),
    _timm("beit_base_patch16_224", "Beit", "vit", (8, 48), depth=4),
    _timm("eva02_tiny_patch14_224", "Eva", "vit", (8, 64), depth=6),
    _timm("pit_ti_224", "PoolingVisionTransformer", "vit", (16, 128)),
    _timm("gmlp_ti16_224", "MlpMixer", "mixer", (16, 96)),
    _timm("efficientformer_l1", "EfficientFormer", "vit", (16, 96)),
    _timm("efficientformerv2_s0", "EfficientFormerV2", "vit", (16, 64)),
    _timm("davit_tiny", "DaVit", "vit", (4, 32)),
    _timm("focalnet_tiny_srf", "FocalNet", "vit", (4, 32)),
    _timm("convit_tiny", "ConVit", "vit", (8, 64)),
    _timm("tnt_s_patch16_224", "TNT", "vit", (8, 32)),
    _timm("visformer_tiny", "Visformer", "vit", (16, 96)),
    _timm("gcvit_xxtiny", "GlobalContextVit", "vit", (8, 48)),
    _timm("mvitv2_tiny", "MultiScaleVit", "vit", (4, 24)),
    _timm("hiera_tiny_224", "Hiera", "vit", (8, 48)),
    _timm("swinv2_tiny_window8_256", "SwinTransformerV2", "vit", (4, 24), 256),
    _timm("efficientvit_b0", "EfficientVit", "vit", (16, 128)),
    _timm("efficientvit_m0", "EfficientVitMsra", "vit", (32, 256)),
    _timm("swiftformer_xs", "SwiftFormer", "vit", (16, 96)),
    _timm("tiny_vit_5m_224", "TinyVit", "vit", (16, 64)),
    _timm("shvit_s1", "SHViT", "vit", (32, 192)),
    _timm("vit_relpos_small_patch16_224", "VisionTransformerRelPos", "vit", (8, 64), depth=6),
    _timm("nextvit_small", "NextViT", "vit", (4, 32)),
)

_TRANSFORMERS = (
    _hf("hf_vit_4", "ViT", "vit", (8, 64), num_hidden_layers=4),
    _hf("hf_cvt_13", "Cvt", "vit", (8, 48)),
    _hf("hf_pvt_tiny", "Pvt", "vit", (8, 48)),
    _hf("hf_swin_tiny", "Swin", "vit", (8, 48), depths=[2, 2, 2, 2]),
    _hf("hf_mobilenet_v1", "MobileNetV1", "cnn", (16, 96)),
    _hf("hf_textnet", "TextNet", "cnn", (8, 64)),
    _hf("hf_vit_msn", "ViTMSN", "vit", (8, 64), num_hidden_layers=3, hidden_size=384, num_attention_heads=6),
    Entry(
        "hf_yolos_tiny",
        "YolosModel",
        "detection",
        transformers_model(
            "YolosModel",
            "YolosConfig",
            hidden_size=192,
            num_hidden_layers=6,
            num_attention_heads=3,
            intermediate_size=768,
            image_size=[256, 256],
        ),
        lambda b: (
            {"pixel_values": feeds.image(256)(b)[0][0]},
            lambda out: feeds.mean_of_squares(out.last_hidden_state),
        ),
        (4, 24),
    ),
    Entry(
        "hf_dpt_depth",
        "DPTForDepthEstimation",
        "depth",
        transformers_model(
            "DPTForDepthEstimation",
            "DPTConfig",
            hidden_size=384,
            num_hidden_layers=6,
            num_attention_heads=6,
            intermediate_size=1536,
            image_size=224,
            backbone_out_indices=[2, 3, 4, 5],
            neck_hidden_sizes=[48, 96, 192, 384],
            fusion_hidden_size=128,
        ),
        lambda b: (
            {"pixel_values": feeds.image(224)(b)[0][0]},
            lambda out: feeds.mean_of_squares(out.predicted_depth),
        ),
        (2, 12),
    ),
)

ENTRIES: Final = (*_TORCHVISION, *_TIMM_CNN, *_TIMM_TRANSFORMER, *_TRANSFORMERS)
