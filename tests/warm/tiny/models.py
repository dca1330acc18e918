"""Define factories for the end-to-end tests: small, but large enough to make the compiler generate code."""

from __future__ import annotations

import os
import pathlib
import time

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


class Breaking(Tiny):
    """Has a graph break between the layers, and dropout in training."""

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:  # type: ignore[override]
        hidden = torch.nn.functional.dropout(self.first(x).relu(), 0.5, self.training)
        torch._dynamo.graph_break()
        return self.second(hidden) * scale


def breaking() -> tuple[Breaking, tuple[torch.Tensor]]:
    return Breaking(), (torch.ones(4, 8),)


def raising() -> None:
    raise ValueError("no checkpoint\nand a second line")


def number() -> int:
    return 3


def reading() -> None:
    pathlib.Path("weights.bin").read_bytes()


def unseeded() -> torch.nn.Module:
    model = Tiny()
    torch.nn.init.normal_(model.first.weight, generator=torch.Generator().manual_seed(torch.seed() % 2**31))
    return model


def dying() -> None:
    os.kill(os.getpid(), 11)


def sleeping() -> None:
    """Never end, start a child that never ends, and print both process ids."""
    child = os.fork()
    if child:
        pathlib.Path(os.environ["TINY_PIDS"]).write_text(f"{os.getpid()} {child}")
    time.sleep(3600)


def wrong(width: int = 8) -> torch.nn.Module:
    """Compute other numbers when compiled, to test the tolerance."""

    class Wrong(Tiny):
        def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:  # type: ignore[override]
            return self.first(x) * scale + (1.0 if torch.compiler.is_compiling() else 0.0)

    return Wrong(width)


def compiled() -> object:
    return torch.compile(Tiny())


def mode() -> object:
    """Print the mode in which the model is called."""

    def function(x: torch.Tensor) -> torch.Tensor:
        del x
        return torch.tensor([torch.is_grad_enabled(), torch.is_inference_mode_enabled()])

    return function


def made_inputs() -> tuple[tuple[torch.Tensor], dict[str, float]]:
    return (torch.ones(2, 8),), {"scale": 3.0}
