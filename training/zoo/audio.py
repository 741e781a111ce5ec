"""Speech and audio models: encoders on waveforms and spectrograms, and a speech encoder-decoder."""

from __future__ import annotations

from typing import Final

from peakcast.training.zoo import feeds
from peakcast.training.zoo.entry import Entry
from peakcast.training.zoo.sources import transformers_model

_SPEECH_TO_TEXT: Final = {
    "d_model": 256,
    "encoder_layers": 3,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 1024,
    "decoder_ffn_dim": 1024,
}

ENTRIES: Final = (
    Entry(
        "ast_small",
        "ASTForAudioClassification",
        "audio",
        transformers_model(
            "ASTForAudioClassification",
            "ASTConfig",
            hidden_size=384,
            num_hidden_layers=4,
            num_attention_heads=6,
            intermediate_size=1536,
            max_length=512,
            num_labels=feeds.CLASSES,
        ),
        feeds.features("input_values", 512, 128),
        (4, 32),
    ),
    Entry(
        "whisper_micro",
        "WhisperForConditionalGeneration",
        "audio",
        transformers_model(
            "WhisperForConditionalGeneration",
            "WhisperConfig",
            vocab_size=20000,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
            **_SPEECH_TO_TEXT,
        ),
        feeds.speech_to_text(80, 3000, 128, 20000),
        (2, 16),
    ),
    Entry(
        "moonshine_small",
        "MoonshineForConditionalGeneration",
        "audio",
        transformers_model(
            "MoonshineForConditionalGeneration",
            "MoonshineConfig",
            hidden_size=288,
            encoder_num_hidden_layers=3,
            decoder_num_hidden_layers=3,
            encoder_num_attention_heads=8,
            decoder_num_attention_heads=8,
            intermediate_size=1152,
            pad_token_id=0,
        ),
        lambda b: (
            {"input_values": feeds.vectors(32000)(b)[0][0], "labels": feeds.tokens(64, 32768)(b)[0][0]},
            None,
        ),
        (4, 24),
    ),
)
