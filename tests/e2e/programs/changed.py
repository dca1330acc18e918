"""Compile under all hooks in a torch that the hooks were not made for, and print the outcome as JSON.

Usage: ``changed.py absent|raises-before|raises-after|parameters``: the hooked names are absent when the hooks
are put in; each hook raises, before or after it has run the original; each hooked function has one more
parameter, and its callers pass it."""

import json
import sys

import short_life

import cachesvc_client
from cachesvc_client.hooks.testing import ChangedHooks
from cachesvc_client.process.process import process

changed = ChangedHooks(sys.argv[1])

session = cachesvc_client.attach("team/x")
import torch  # noqa: E402

session.wait(60)


@torch.library.custom_op("changed::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 4)

    def forward(self, x):
        return torch.sin(twice(self.linear(x))) + 1


torch.manual_seed(0)
model, x = Model(), torch.randn(3, 8)
with torch.no_grad():
    expected = model(x)
    right = [torch.allclose(torch.compile(model)(x), expected, atol=1e-5)]
    torch._dynamo.reset()  # The second call reads PyTorch's own cache.
    right.append(torch.allclose(torch.compile(model)(x), expected, atol=1e-5))
print(
    json.dumps(
        {
            "right": right,
            "names": sorted(changed.names),
            "calls": changed.calls,
            "failures": changed.failures,
            "warnings": changed.warnings,
            "kernels": len(process().kinds["inductor"].used_paths()),
            "missing": sorted(cachesvc_client.report().observed.missing),
        }
    )
)
short_life.end()
