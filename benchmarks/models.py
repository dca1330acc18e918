"""Three real architectures with random weights, for the demo and the benchmarks. Nothing is downloaded.

Six layers each: BERT (hidden 384), Llama (hidden 512) and ViT (hidden 384), from Hugging Face's
configurations. Seeded here, so that every process has the same weights whoever builds it.
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")

import torch
import transformers

LAYERS = 6
SEED = 0


def bert(layers: int = LAYERS) -> torch.nn.Module:
    """Takes ``input_ids`` and ``attention_mask``, both [batch, sequence], int64."""
    config = transformers.BertConfig(
        hidden_size=384,
        num_hidden_layers=layers,
        num_attention_heads=6,
        intermediate_size=1536,
        vocab_size=30522,
    )
    return _seeded(transformers.BertModel, config)


def llama(layers: int = LAYERS) -> torch.nn.Module:
    """Takes ``input_ids`` [batch, sequence], int64. Without a key-value cache: one forward pass."""
    config = transformers.LlamaConfig(
        hidden_size=512,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        intermediate_size=1376,
        vocab_size=32000,
        use_cache=False,
    )
    return _seeded(transformers.LlamaForCausalLM, config)


def vit(layers: int = LAYERS) -> torch.nn.Module:
    """Takes ``pixel_values`` [batch, 3, 224, 224]."""
    config = transformers.ViTConfig(
        hidden_size=384, num_hidden_layers=layers, num_attention_heads=6, intermediate_size=1536
    )
    return _seeded(transformers.ViTModel, config)


def inputs(name: str) -> dict[str, torch.Tensor]:
    """One input set of a model by its name, the same in every process: what ``warm.toml`` declares."""
    generator = torch.Generator().manual_seed(SEED)
    if name == "vit":
        return {"pixel_values": torch.randn(1, 3, 224, 224, generator=generator)}
    ids = torch.randint(0, 1000, (1, 128), generator=generator)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)} if name == "bert" else {"input_ids": ids}


MODELS = {"bert": bert, "llama": llama, "vit": vit}


def _seeded(kind: Any, config: Any) -> torch.nn.Module:
    """Random weights in evaluation mode; the caller's random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model: torch.nn.Module = kind(config)
    return model.eval()
