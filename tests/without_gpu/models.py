"""Models of the tests: what compiles without a GPU, and what does not."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

Model = tuple[nn.Module, dict[str, Any]]


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.norm, self.leave = nn.Linear(64, 128), nn.LayerNorm(128), nn.Linear(128, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.leave(functional.gelu(self.norm(self.enter(x)))), -1)


class Turned(nn.Module):
    """Attention in plain operations, whose copies have several candidates of kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(256, 768)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).view(2, 128, 3, 4, 64).permute(2, 0, 3, 1, 4)
        return (torch.softmax(q @ k.transpose(-1, -2) / 8, -1) @ v).transpose(1, 2).reshape(2, 128, 256)


class Attention(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(x, x, x)


class Seen(nn.Module):
    """Asks PyTorch's attention in a part that Dynamo would leave out of the graph."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            return functional.scaled_dot_product_attention(x, x, x)
        except RuntimeError:
            return x


class Constant(nn.Module):
    """Works out a constant on the device whose last bit may be another on a CPU."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.full((1,), 0.3, device=x.device).exp()


def mlp() -> Model:
    return Mlp(), {"x": torch.randn(32, 64)}


def turned() -> Model:
    return Turned().bfloat16(), {"x": torch.randn(2, 128, 256).bfloat16()}


def attention() -> Model:
    return Attention(), {"x": torch.randn(2, 4, 32, 64).bfloat16()}


def seen() -> Model:
    return Seen(), {"x": torch.randn(2, 4, 32, 64).bfloat16()}


def constant() -> Model:
    return Constant(), {"x": torch.randn(32, 64)}
