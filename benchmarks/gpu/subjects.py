"""Models of the GPU rows: real architectures with random weights, seeded, nothing downloaded.

``cachesvc warm`` imports the factories by name, the measured processes too. A factory answers the module,
an input function the keyword arguments, both on the CPU.
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import nn


def llama(layers: int = 4, width: int = 1024) -> nn.Module:
    """A decoder with grouped attention, without a cache of keys."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=8,
        intermediate_size=width * 11 // 4,
        vocab_size=32000,
        use_cache=False,
    )
    return LlamaForCausalLM(config).eval()


def bert(layers: int = 4, width: int = 512) -> nn.Module:
    """An encoder."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=8, intermediate_size=4 * width
    )
    return BertModel(config).eval()


def resnet(depth: int = 3) -> nn.Module:
    """A residual network of bottleneck blocks, ``depth`` in each of four stages."""
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    return ResNetForImageClassification(ResNetConfig(depths=[depth] * 4)).eval()


def tokens(length: int = 128) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    return {"input_ids": torch.randint(0, 30000, (2, length), generator=generator)}


def tokens_128() -> dict[str, Any]:
    return tokens(128)


def tokens_200() -> dict[str, Any]:
    return tokens(200)


def images_bf16() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    return {"pixel_values": torch.randn(4, 3, 224, 224, generator=generator).bfloat16()}
