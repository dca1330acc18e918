"""Run a script target, which compiles by itself and prints how it ended."""

import sys

import torch


@torch.compile
def step(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * 2 + 1


with torch.no_grad():
    step(torch.ones(int(sys.argv[1])))
sys.exit(int(sys.argv[2]))
