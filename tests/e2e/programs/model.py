"""Small real models for the end-to-end tests; importable from any working directory."""

import torch
from torch import nn


class Block(nn.Module):
    """Attention-free, but with the things that make Inductor write C++: norms, softmax, gelu."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x)))).softmax(-1)


def make(width: int = 32, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(Block(width), Block(width)).eval()


def inputs(batch: int = 4, width: int = 32) -> torch.Tensor:
    return torch.arange(batch * width, dtype=torch.float32).reshape(batch, width) / 100
