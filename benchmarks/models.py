"""Define real architectures with random weights: nothing is downloaded.

Hugging Face configurations cut to six layers, as measured in 2.13 by the project's notes. Each factory
seeds itself, so that every process has the same weights and inputs, and answers ``(module, inputs)``.
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import nn

Made = tuple[nn.Module, dict[str, Any]]


def bert(layers: int = 6) -> Made:
    """Build an encoder of width 384, with one sequence of 128 tokens."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=384, num_hidden_layers=layers, num_attention_heads=6, intermediate_size=1536
    )
    model = BertModel(config).eval()
    return model, {"input_ids": torch.randint(0, config.vocab_size, (1, 128))}


def llama(layers: int = 6) -> Made:
    """Build a decoder of width 512 with grouped attention, with one prompt of 64 tokens and no cache of
    keys."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=512,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        intermediate_size=1408,
        vocab_size=32000,
        use_cache=False,
    )
    model = LlamaForCausalLM(config).eval()
    return model, {"input_ids": torch.randint(0, config.vocab_size, (1, 64))}


def vit(layers: int = 6) -> Made:
    """Build a vision transformer of width 384, with one image of 224 x 224."""
    from transformers import ViTConfig, ViTModel

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=384, num_hidden_layers=layers, num_attention_heads=6, intermediate_size=1536
    )
    model = ViTModel(config).eval()
    return model, {"pixel_values": torch.randn(1, 3, 224, 224)}


def tiny() -> Made:
    """Build a model that compiles in seconds, for tests of the benchmarks themselves."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.Softmax(-1))
    return model.eval(), {"input": torch.randn(4, 32)}
