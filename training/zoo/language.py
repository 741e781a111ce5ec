"""Language models of transformers beyond the seed's: decoders, encoders, encoder-decoders. Two to four blocks each."""

from __future__ import annotations

from typing import Any, Final

from peakcast.training.zoo import feeds
from peakcast.training.zoo.entry import Entry
from peakcast.training.zoo.sources import transformers_model

_VOCABULARY: Final = 32000

_WIDE: Final[dict[str, Any]] = {
    "vocab_size": _VOCABULARY,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 3,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
}
_ENCODER: Final[dict[str, Any]] = {
    "vocab_size": _VOCABULARY,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
}
_SEQ2SEQ: Final[dict[str, Any]] = {
    "vocab_size": _VOCABULARY,
    "d_model": 512,
    "encoder_layers": 3,
    "decoder_layers": 3,
    "encoder_attention_heads": 8,
    "decoder_attention_heads": 8,
    "encoder_ffn_dim": 2048,
    "decoder_ffn_dim": 2048,
    "decoder_start_token_id": 2,
    "pad_token_id": 1,
}


def _decoder(
    stem: str, batches: tuple[int, ...], length: int = 512, *, suffix: str = "ForCausalLM", **config: Any
) -> Entry:
    options = {**_WIDE, **config}
    feed = feeds.language(length, int(options["vocab_size"]))
    make = transformers_model(f"{stem}{suffix}", f"{stem}Config", **options)
    return Entry(f"{stem.lower()}_small", f"{stem}{suffix}", "decoder", make, feed, batches)


def _own(stem: str, batches: tuple[int, ...], length: int, *, suffix: str = "ForCausalLM", **config: Any) -> Entry:
    """Describe a decoder whose configuration has field names of its own."""
    make = transformers_model(f"{stem}{suffix}", f"{stem}Config", **config)
    feed = feeds.language(length, int(config.get("vocab_size", _VOCABULARY)))
    return Entry(f"{stem.lower()}_small", f"{stem}{suffix}", "decoder", make, feed, batches)


def _encoder(stem: str, batches: tuple[int, ...], length: int = 256, **config: Any) -> Entry:
    options = {**_ENCODER, **config}
    feed = feeds.masked_language(length, int(options["vocab_size"]))
    make = transformers_model(f"{stem}ForMaskedLM", f"{stem}Config", **options)
    return Entry(f"{stem.lower()}_small", f"{stem}ForMaskedLM", "encoder", make, feed, batches)


def _seq2seq(
    stem: str, batches: tuple[int, ...], length: int = 256, *, suffix: str = "ForConditionalGeneration", **config: Any
) -> Entry:
    feed = feeds.language(length, int(config["vocab_size"]))
    make = transformers_model(f"{stem}{suffix}", f"{stem}Config", **config)
    return Entry(f"{stem.lower()}_small", f"{stem}{suffix}", "encoder-decoder", make, feed, batches)


_DECODERS = (
    _own(
        "GPTNeo",
        (2, 12),
        512,
        vocab_size=50257,
        hidden_size=768,
        num_layers=4,
        num_heads=12,
        attention_types=[[["global", "local"], 2]],
    ),
    _own("Bloom", (2, 8), 512, vocab_size=64000, hidden_size=768, n_layer=3, n_head=12),
    _own("GPTJ", (2, 12), 512, vocab_size=50400, n_embd=768, n_layer=3, n_head=12, rotary_dim=32),
    _own("CodeGen", (2, 12), 512, vocab_size=51200, n_embd=768, n_layer=3, n_head=12, rotary_dim=32),
    _own("GPTBigCode", (2, 12), 512, vocab_size=49152, n_embd=768, n_layer=4, n_head=12),
    _own("OpenAIGPT", (4, 16), 256, suffix="LMHeadModel", vocab_size=40478, n_embd=768, n_layer=4, n_head=12),
    _own("Mpt", (2, 12), 512, vocab_size=_VOCABULARY, d_model=768, n_layers=3, n_heads=12, max_seq_len=1024),
    _own("CTRL", (2, 12), 256, suffix="LMHeadModel", vocab_size=_VOCABULARY, n_embd=512, n_layer=4, n_head=8, dff=2048),
    _own(
        "XGLM",
        (2, 8),
        512,
        vocab_size=64000,
        d_model=512,
        num_layers=3,
        attention_heads=8,
        ffn_dim=2048,
    ),
    _own(
        "BioGpt",
        (2, 12),
        512,
        vocab_size=42384,
        hidden_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        intermediate_size=2048,
    ),
    _decoder("Phi", (2, 12), vocab_size=51200),
    _decoder("Phi3", (2, 12), num_key_value_heads=12, pad_token_id=0),
    _decoder("StableLm", (2, 12), vocab_size=50304),
    _decoder("Qwen3", (2, 8), vocab_size=96000, head_dim=64),
    _decoder("Olmo", (2, 12), vocab_size=50304),
    _decoder("Olmo2", (2, 8), 1024),
    _decoder("Cohere", (1, 6), vocab_size=128000),
    _decoder("Starcoder2", (2, 12), vocab_size=49152),
    _decoder("Granite", (2, 12), vocab_size=49152),
    _decoder("SmolLM3", (1, 6), 1024, vocab_size=49152, pad_token_id=0),
    _decoder("Nemotron", (2, 8), 1024),
    _decoder("Persimmon", (2, 12)),
    _decoder("Helium", (2, 12), head_dim=64),
    _decoder("Glm", (2, 8), head_dim=64, pad_token_id=0),
    _decoder("Arcee", (1, 8), 1024),
    _decoder("SeedOss", (1, 8), 1024, head_dim=64),
    _decoder("Apertus", (2, 8)),
    _decoder("Exaone4", (2, 8), vocab_size=64000),
    _decoder("Ernie4_5", (2, 8), vocab_size=64000, head_dim=64),
    _decoder("MiniCPM3", (1, 6), num_key_value_heads=12),
)

_ENCODERS = (
    _encoder("Roberta", (8, 32), vocab_size=50265),
    _encoder("MPNet", (8, 32)),
    _encoder("RoFormer", (8, 32)),
    _encoder("Nystromformer", (4, 24), 512, max_position_embeddings=1024),
    _encoder("ModernBert", (4, 24), vocab_size=50368),
    _encoder("ConvBert", (8, 32), embedding_size=512),
    _encoder("FNet", (8, 48)),
    _encoder("SqueezeBert", (8, 32), embedding_size=512),
    _encoder("MobileBert", (8, 32), 128),
    _encoder("Ernie", (8, 32)),
    _encoder("RoCBert", (8, 32)),
    _encoder("Data2VecText", (8, 32)),
    _encoder("RobertaPreLayerNorm", (8, 32)),
    _encoder("Esm", (8, 64), 256, vocab_size=33, pad_token_id=1, mask_token_id=32),
    _encoder("MegatronBert", (8, 32)),
    _encoder("Camembert", (8, 32), vocab_size=32005),
    _encoder("RemBert", (4, 16), vocab_size=64000, input_embedding_size=256, output_embedding_size=512),
    _encoder("LayoutLM", (8, 32)),
    _encoder("Yoso", (4, 24), use_expectation=True),
    _encoder("BigBird", (2, 12), 512, attention_type="original_full"),
)

_T5: Final[dict[str, Any]] = {"d_kv": 64, "d_ff": 1024, "num_layers": 3, "decoder_start_token_id": 0}

_SEQ2SEQS = (
    _seq2seq("Bart", (4, 24), **_SEQ2SEQ),
    _seq2seq("Pegasus", (4, 24), **_SEQ2SEQ),
    _seq2seq("Marian", (4, 24), suffix="MTModel", **_SEQ2SEQ),
    _seq2seq("M2M100", (4, 16), **{**_SEQ2SEQ, "vocab_size": 64000}),
    _seq2seq("Blenderbot", (4, 24), max_position_embeddings=256, **_SEQ2SEQ),
    _seq2seq("MT5", (2, 12), vocab_size=96000, d_model=384, num_heads=6, **_T5),
    _seq2seq(
        "LongT5",
        (2, 12),
        512,
        vocab_size=_VOCABULARY,
        d_model=512,
        num_heads=8,
        encoder_attention_type="local",
        **_T5,
    ),
    _seq2seq("UMT5", (2, 12), vocab_size=64000, d_model=384, num_heads=6, **_T5),
    _seq2seq(
        "ProphetNet",
        (4, 16),
        128,
        vocab_size=_VOCABULARY,
        hidden_size=512,
        encoder_ffn_dim=2048,
        decoder_ffn_dim=2048,
        num_encoder_layers=2,
        num_decoder_layers=2,
        num_encoder_attention_heads=8,
        num_decoder_attention_heads=8,
    ),
)

ENTRIES: Final = (*_DECODERS, *_ENCODERS, *_SEQ2SEQS)
