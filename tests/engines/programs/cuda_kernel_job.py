"""Compile TileLang kernels for CUDA, also by ``tilelang.jit``, and print the report as JSON. `cachesvc warm`
runs it as a script target."""

import json

import tilelang
import tilelang.language
from cuda_kernels import TARGET, place, scaled
from kernels import report


@tilelang.jit(out_idx=-1, target=TARGET)
def jitted(factor):
    """Return a kernel."""
    return scaled(tilelang.language, factor)


kernels = tilelang.par_compile(
    [scaled(tilelang.language, block=size) for size in (256, 512)], out_idx=-1, target=TARGET
)
print(
    json.dumps({"places": [str(place(kernel)) for kernel in (*kernels, jitted(4.0))], **report()}), flush=True
)
