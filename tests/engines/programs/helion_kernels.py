"""Run kernels of Helion, and print JSON: digests of the results, and the report.

Arguments are NAME=VALUE. ``publish``: publish afterwards, under this name. ``changed``: change the function
that the first kernel calls. ``device``: where the kernels run, ``cpu`` by default. Helion searches among few
configurations."""

import hashlib
import json
import sys

import helion
import helion.language as hl
import torch
from helion._utils import counters as helions_own
from helion.autotuner import LocalAutotuneCache, RandomSearch

OPTIONS = dict(argument.split("=", 1) for argument in sys.argv[1:])
FACTOR = 3.0 if "changed" in OPTIONS else 2.0
COUNT = int(OPTIONS.get("count", "3"))


def search(kernel, args, **_):
    """Return a search among `COUNT` configurations, with Helion's own cache."""

    def make():
        return RandomSearch(kernel, args, COUNT)

    return LocalAutotuneCache(make(), autotuner_factory=make)


def scaled(value):
    """Return a part of a kernel, which Helion's key does not have."""
    return torch.sin(value) * FACTOR


@helion.kernel(static_shapes=True, autotuner_fn=search)
def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Add a scaled sine."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = scaled(x[tile]) + y[tile]
    return out


def main():
    """Run the kernel for two shapes."""
    answer = {"results": [], "right": []}
    device = OPTIONS.get("device", "cpu")
    for size in (128, 256):
        generator = torch.Generator().manual_seed(size)
        x, y = (torch.rand(8, size, generator=generator).to(device) for _ in range(2))
        result = add(x, y)
        answer["right"].append(torch.allclose(result, torch.sin(x) * FACTOR + y, rtol=1e-5, atol=1e-5))
        answer["results"].append(hashlib.sha256(result.cpu().numpy().tobytes()).hexdigest())
    import cachesvc_client
    from cachesvc_client.wire.codec import plain

    if "publish" in OPTIONS:
        cachesvc_client.publish(OPTIONS["publish"], target="kernels")
    whole = plain(cachesvc_client.report())
    answer |= {name: whole[name] for name in ("state", "reasons", "observed", "kinds", "compared")}
    print(json.dumps({**answer, "helion": dict(helions_own["autotune"])}), flush=True)


if __name__ == "__main__":
    main()
