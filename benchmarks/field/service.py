"""Compile a model, answer once, and print what that took: ``service CACHE PLACE [--building]``."""

# isort: skip_file
from __future__ import annotations

import cachesvc_client.auto  # noqa: F401  This import comes first: it does nothing unless CACHESVC_NAME is set.

import json
import sys
import time
from typing import Any


def build() -> tuple[Any, dict[str, Any]]:
    """Build two blocks of a transformer with random weights, and their input."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.mixed, self.out = nn.LayerNorm(64), nn.Linear(64, 192), nn.Linear(64, 64)
            self.feed = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.mixed(self.norm(x)).chunk(3, -1)
            x = x + self.out(torch.softmax(q @ k.transpose(-1, -2) / 8, -1) @ v)
            return x + self.feed(x)

    torch.manual_seed(0)
    return nn.Sequential(Block(), Block()).eval(), {"input": torch.randn(2, 32, 64)}


def main() -> None:
    """Load, compile, answer, save."""
    from benchmarks.field import caches
    from cachesvc_client.hooks import counters

    cache, place = caches.named(sys.argv[1]), caches.Place.read(sys.argv[2])
    observer = counters.start()
    import torch

    model, inputs = build()
    begin = time.monotonic()
    cache.load(place, "model")
    compiled = torch.compile(model)
    with torch.no_grad():
        output = compiled(**inputs)
        seconds = time.monotonic() - begin
        seen = observer.snapshot()
        eager = model(**inputs)
    if "--building" in sys.argv:
        cache.save(place, "model")
    work = {name: getattr(seen, name) for name in ("compilations", "tuning_runs", "compiler_processes")}
    right = bool(torch.allclose(output, eager, rtol=1e-3, atol=1e-4))
    print(json.dumps({"seconds": round(seconds, 3), "right": right, **work}))


if __name__ == "__main__":
    main()
