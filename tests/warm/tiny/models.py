"""Factories for the end-to-end tests: as small as still makes the compiler generate code."""

from __future__ import annotations

import torch


class Tiny(torch.nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = torch.nn.Linear(width, width)
        self.second = torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> dict[str, torch.Tensor]:
        return {"y": self.second(torch.nn.functional.gelu(self.first(x) * scale)).tanh()}


def tiny(width: int = 8) -> Tiny:
    return Tiny(width)
