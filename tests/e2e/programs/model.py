"""Define small real models for the end-to-end tests; any working directory can import them."""

import torch
from torch import nn


class Block(nn.Module):
    """Has the operations that make Inductor write C++ (norms, softmax, gelu), and no attention."""

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
