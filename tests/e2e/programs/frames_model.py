"""Define a model of which a trace sees a function of its module, a global, a graph break and two sizes."""

import torch
from torch import nn

SCALE = 2.0
SIZES = {"times": 2}


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * SCALE


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, twice: bool = False) -> torch.Tensor:
        hidden = scaled(self.first(x)).tanh()
        torch._dynamo.graph_break()
        hidden = nn.functional.dropout(self.second(hidden), 0.9, self.training).softmax(-1)
        return hidden * 2 if twice else hidden


def make(seed: int) -> Model:
    torch.manual_seed(seed)
    return Model().eval()
