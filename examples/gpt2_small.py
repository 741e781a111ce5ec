"""GPT-2 small in training: batch 8, sequence 512, AdamW, bfloat16 autocast. What `make demo` asks for."""

from __future__ import annotations

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from peakcast import Workload

SEQUENCE = 512


def workload(batch: int = 8) -> Workload:
    """Build the model from its configuration: no weights are fetched, and under capture none are allocated."""
    config = GPT2Config(use_cache=False, attn_implementation="sdpa")
    model = GPT2LMHeadModel(config)
    input_ids = torch.randint(0, config.vocab_size, (batch, SEQUENCE))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    inputs = {"input_ids": input_ids, "labels": input_ids}
    return Workload(model, inputs, optimizer=optimizer, autocast=torch.bfloat16)
