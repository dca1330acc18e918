"""What the training programs share: a small model, its data, and the arguments FOLDER [resume].

The builder trains two epochs and leaves a checkpoint of the first in the folder; ``resume`` goes on from it,
so both end with the same weights."""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FOLDER = Path(sys.argv[1])
RESUME = sys.argv[2:] == ["resume"]
EPOCHS = 2
STEPS = 4
"""Steps of one epoch."""
BATCH = 8


class Network(nn.Module):
    """Is a module of its own: `compile` of PyTorch's own `nn.Sequential` compiles nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(nn.functional.gelu(self.norm(self.first(inputs))))


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return Network()


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    number = STEPS * BATCH
    inputs = torch.randn(number, 16, generator=generator)
    return TensorDataset(inputs, torch.randint(0, 4, (number,), generator=generator))


def batches() -> DataLoader:
    return DataLoader(dataset(), batch_size=BATCH)
