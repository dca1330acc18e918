"""Define the models that the matrix warms: small, but large enough for host kernels, with a custom
operator."""

import torch
from torch import nn


@torch.library.custom_op("matrix::shift", mutates_args=())
def shift(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@shift.register_fake
def _(x):
    return torch.empty_like(x)


shift.register_autograd(lambda _, gradient: gradient)


@torch.library.triton_op("matrix::traced", mutates_args=())
def traced(x: torch.Tensor) -> torch.Tensor:
    """Compute an operator that AOTAutograd traces, and whose name alone is in AOTAutograd's key."""
    return x * SLOPE


SLOPE = 1.5


class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.first = nn.Linear(width, 16)

    def forward(self, x):
        return shift(nn.functional.gelu(self.first(x))).softmax(-1) * 2.5


class Wave(nn.Module):
    def forward(self, x):
        return x.sin() * 2 + traced(x).cos()


def net(width=8, seed=0):
    torch.manual_seed(seed)
    return Net(width).eval()


def wave():
    return Wave()
