"""Compile TileLang kernels on several threads and by ``tilelang.jit``, and print JSON: whether the results
are right, and the report. `cachesvc warm` runs it as a script target."""

import json

import tilelang
import tilelang.language
from kernels import matmul, report, run


@tilelang.jit(out_idx=-1, target="c")
def doubled(size):
    """Return a kernel."""
    return matmul(tilelang.language, size, factor=2)


functions = [matmul(tilelang.language, size) for size in (64, 96, 128)]
kernels = tilelang.par_compile(functions, out_idx=-1, target="c")
right = [run(kernel, size)[1] for kernel, size in zip(kernels, (64, 96, 128), strict=True)]
right.append(run(doubled(64), factor=2)[1])
assert all(right)
print(json.dumps({"right": right, **report()}), flush=True)
