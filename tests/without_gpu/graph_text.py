"""Print a graph's text as AOTAutograd's key holds it, under the stand-in: ``graph_text.py DESCRIPTION``."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from cachesvc.warm.gpuless import description, stand_in

sys.path.insert(0, str(Path(__file__).parent))

import models


def main() -> None:
    device = stand_in.install(description.read(Path(sys.argv[1])))
    from torch._functorch._aot_autograd import autograd_cache

    dumps = autograd_cache.AOTAutogradCachePickler.dumps

    def spy(pickler: autograd_cache.AOTAutogradCachePickler, value: object) -> bytes:
        if isinstance(value, torch.fx.GraphModule):
            print(value.code)
        return dumps(pickler, value)

    autograd_cache.AOTAutogradCachePickler.dumps = spy
    module, inputs = models.mlp()
    device.place(module.eval())
    inputs = {name: device.move(value) for name, value in inputs.items()}
    with torch.no_grad(), device.calls():
        torch.compile(module)(**inputs)


if __name__ == "__main__":
    main()
