"""Models that both a machine without a GPU and one with it compile; factories for ``warm`` too.

Each is small, and has what a kind of model has: matrix products, reductions that loop, convolutions,
attention in plain operations and PyTorch's own, a library's BERT, and a Llama's layers. Imports torch only.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Inputs = dict[str, torch.Tensor]


class Mlp(nn.Module):
    """Norms, GELU and a softmax between matrix products."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.enter = nn.Linear(width, 4 * width)
        self.norm = nn.LayerNorm(4 * width)
        self.leave = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.leave(functional.gelu(self.norm(self.enter(x)))), -1)


class LongRows(nn.Module):
    """Reductions over rows that no block holds, so that their kernels loop; and a reduction over columns."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scaled = torch.nn.functional.layer_norm(x * torch.sigmoid(y) + torch.tanh(y), (x.shape[-1],))
        return torch.log_softmax(scaled, -1).sum(-1), (x * y).sum(0)


class Attention(nn.Module):
    """One layer of attention. ``fused``: by PyTorch's own operator; else in plain operations."""

    def __init__(self, fused: bool, width: int = 256, heads: int = 4) -> None:
        super().__init__()
        self.fused, self.heads = fused, heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.fused:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mixed = torch.softmax(q @ k.transpose(-1, -2) / (q.shape[-1] ** 0.5), -1) @ v
        return x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Convolutions(nn.Module):
    """Three convolutions with batch norms, as a ResNet has them."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 32, 64, 64)
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        self.layers, self.head = nn.Sequential(*layers, nn.MaxPool2d(2)), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x).mean((-1, -2)))


class LlamaLayers(nn.Module):
    """Layers of a Llama without its library: RMS norms, rotary positions, SwiGLU, attention as asked."""

    def __init__(self, fused: bool, layers: int = 4, width: int = 512, heads: int = 8) -> None:
        super().__init__()
        self.fused, self.heads = fused, heads
        self.embed = nn.Embedding(1000, width)
        names = ("q", "k", "v", "o", "gate", "up", "down")
        sizes = {"gate": (width, 3 * width), "up": (width, 3 * width), "down": (3 * width, width)}
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {name: nn.Linear(*sizes.get(name, (width, width)), bias=False) for name in names}
                | {"before": nn.RMSNorm(width), "after": nn.RMSNorm(width)}
            )
            for _ in range(layers)
        )
        half = width // heads // 2
        angles = torch.arange(2048)[:, None] * 10000.0 ** (-torch.arange(half) / half)
        self.register_buffer("cos", angles.cos().repeat(1, 2))
        self.register_buffer("sin", angles.sin().repeat(1, 2))
        self.head = nn.Linear(width, 1000, bias=False)

    def _rotate(self, x: torch.Tensor) -> torch.Tensor:
        left, right = x.chunk(2, -1)
        length = x.shape[-2]
        turned = torch.cat((-right, left), -1)
        return x * self.cos[:length].to(x.dtype) + turned * self.sin[:length].to(x.dtype)

    def _attend(self, layer: Any, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            layer[name](x).view(batch, length, self.heads, -1).transpose(1, 2) for name in ("q", "k", "v")
        )
        q, k = self._rotate(q), self._rotate(k)
        if self.fused:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            hidden = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            scores = (q @ k.transpose(-1, -2) / (q.shape[-1] ** 0.5)).masked_fill(hidden, float("-inf"))
            mixed = torch.softmax(scores.float(), -1).to(v.dtype) @ v
        return layer["o"](mixed.transpose(1, 2).reshape(batch, length, width))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = x + self._attend(layer, layer["before"](x))
            inner = layer["after"](x)
            x = x + layer["down"](functional.silu(layer["gate"](inner)) * layer["up"](inner))
        return self.head(x)


def mlp() -> tuple[nn.Module, Inputs]:
    """Return a float32 model."""
    return Mlp(), {"x": torch.randn(64, 512)}


def mlp_half() -> tuple[nn.Module, Inputs]:
    """Return the same in bfloat16."""
    return Mlp().bfloat16(), {"x": torch.randn(64, 512).bfloat16()}


def long_rows() -> tuple[nn.Module, Inputs]:
    """Return reductions of 65,536 columns and of 4,096 rows."""
    return LongRows(), {"x": torch.randn(4096, 65536), "y": torch.randn(4096, 65536)}


def attention_plain() -> tuple[nn.Module, Inputs]:
    """Return attention in plain operations."""
    return Attention(False).bfloat16(), {"x": torch.randn(2, 128, 256).bfloat16()}


def attention_fused() -> tuple[nn.Module, Inputs]:
    """Return attention by PyTorch's operator, whose kernel depends on the device."""
    return Attention(True).bfloat16(), {"x": torch.randn(2, 128, 256).bfloat16()}


def convolutions() -> tuple[nn.Module, Inputs]:
    """Return convolutions in float32."""
    return Convolutions(), {"x": torch.randn(8, 3, 64, 64)}


def llama_plain() -> tuple[nn.Module, Inputs]:
    """Return four layers of a Llama with attention in plain operations."""
    return LlamaLayers(False).bfloat16(), {"ids": torch.arange(512).reshape(2, 256) % 1000}


def llama_fused() -> tuple[nn.Module, Inputs]:
    """Return four layers of a Llama with PyTorch's attention."""
    return LlamaLayers(True).bfloat16(), {"ids": torch.arange(512).reshape(2, 256) % 1000}


def dropout() -> tuple[nn.Module, Inputs]:
    """Return a model that asks for random numbers on the device."""

    class Noise(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.dropout(x, 0.5, training=True) + torch.rand_like(x)

    return Noise(), {"x": torch.randn(64, 512)}


def graph_break() -> tuple[nn.Module, Inputs]:
    """Return a model in two graphs."""

    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.softmax(x * 2, -1)
            torch._dynamo.graph_break()
            return y.cumsum(-1) + x

    return Broken(), {"x": torch.randn(64, 512)}


def attention_math() -> tuple[nn.Module, Inputs]:
    """Return attention by PyTorch's operator, of which only the plain kernel is allowed."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    class Plain(Attention):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with sdpa_kernel(SDPBackend.MATH):
                return super().forward(x)

    return Plain(True).bfloat16(), {"x": torch.randn(2, 128, 256).bfloat16()}


def bert_plain() -> tuple[nn.Module, Inputs]:
    """Return BERT with attention in plain operations."""
    return bert("eager")


def bert(attention: str = "sdpa") -> tuple[nn.Module, Inputs]:
    """Return two layers of transformers' BERT. Raises ``ImportError`` without transformers."""
    from transformers import BertConfig, BertModel

    config = BertConfig(num_hidden_layers=2, hidden_size=256, num_attention_heads=4, intermediate_size=1024)
    config._attn_implementation = attention
    return BertModel(config), {"input_ids": torch.arange(256).reshape(2, 128) % 1000}


ROWS: dict[str, tuple[str, dict[str, Any], str]] = {
    "mlp": ("mlp", {}, "no_grad"),
    "mlp_half": ("mlp_half", {}, "inference_mode"),
    "long_rows": ("long_rows", {}, "no_grad"),
    "attention_plain": ("attention_plain", {}, "no_grad"),
    "attention_fused": ("attention_fused", {}, "no_grad"),
    "convolutions": ("convolutions", {}, "no_grad"),
    "llama_plain": ("llama_plain", {}, "no_grad"),
    "llama_fused": ("llama_fused", {}, "no_grad"),
    "dropout": ("dropout", {}, "no_grad"),
    "graph_break": ("graph_break", {}, "no_grad"),
    "bert": ("bert", {}, "no_grad"),
    "bert_plain": ("bert_plain", {}, "no_grad"),
    "attention_math": ("attention_math", {}, "no_grad"),
    "mlp_dynamic": ("mlp", {"dynamic": True}, "no_grad"),
    "mlp_reduce_overhead": ("mlp", {"mode": "reduce-overhead"}, "no_grad"),
    "mlp_max_autotune": ("mlp_half", {"mode": "max-autotune-no-cudagraphs"}, "no_grad"),
    "mlp_descent": ("mlp", {"options": {"coordinate_descent_tuning": True}}, "no_grad"),
    "mlp_training": ("mlp", {}, "grad"),
}
"""For each row: the factory, the arguments of ``torch.compile``, the grad mode of the call."""
