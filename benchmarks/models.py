"""Define real architectures with random weights: nothing is downloaded.

Hugging Face configurations cut to six layers, as measured in 2.13 by the project's notes, and four models of
the GPU's matrix. Each factory builds on the current default device, seeds itself, so that every process has
the same weights and inputs, and answers ``(module, inputs)``.
"""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import nn

Made = tuple[nn.Module, dict[str, Any]]
LIBRARIES = {
    "bert": "bert",
    "llama": "llama",
    "vit": "vit",
    "llama22": "llama",
    "vitl": "vit",
    "resnet101": "resnet",
    "qwen3": "qwen3",
}
"""For each model, the package of transformers that defines it."""


def import_libraries(model: str) -> None:
    """Import the modules that a model's factory takes from libraries, as a service does before it builds."""
    if package := LIBRARIES.get(model):
        importlib.import_module(f"transformers.models.{package}.modeling_{package}")


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


def llama22() -> Made:
    """Build row 1 of the GPU's matrix, a Llama of 22 layers."""
    return _of_row("1")


def qwen3() -> Made:
    """Build row 4 of the GPU's matrix, a Qwen3 of 28 layers."""
    return _of_row("4")


def resnet101() -> Made:
    """Build row 15 of the GPU's matrix."""
    return _of_row("15")


def vitl() -> Made:
    """Build row 16b of the GPU's matrix, a ViT of 24 layers."""
    return _of_row("16b")


def _of_row(ident: str) -> Made:
    """Build a row's model with its first inputs; small where there is no GPU."""
    sys.path.append(str(Path(__file__).parent / "gpu"))
    import rows
    import workloads

    (row,) = (row for row in rows.ROWS if row.id == ident)
    model, sets = workloads.parts(asdict(row if torch.cuda.is_available() else row.reduced()))
    return model, sets[0]


def tiny() -> Made:
    """Build a model that compiles in seconds, for tests of the benchmarks themselves."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.Softmax(-1))
    return model.eval(), {"input": torch.randn(4, 32)}
