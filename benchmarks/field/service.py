"""Compile a model, answer once, and print what that took: ``service CACHE PLACE [--building]``."""

# isort: skip_file
from __future__ import annotations

import cachesvc_client.auto  # noqa: F401  This import comes first: it does nothing unless CACHESVC_NAME is set.

import json
import sys
import time


def main() -> None:
    """Load, compile, answer, save."""
    from benchmarks.field import caches
    from cachesvc_client.hooks import counters

    cache, place = caches.named(sys.argv[1]), caches.Place.read(sys.argv[2])
    observer = counters.start()
    import torch

    from benchmarks import models

    model, inputs = models.tiny()
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
