"""Compile TileLang kernels for CUDA, or load them, and print JSON: where they lie, digests of their
libraries, and the report. No kernel is launched: there is no GPU.

Arguments are NAME=VALUE. ``publish``: publish afterwards, under this name. ``changed``: change the body of
the first kernel. ``damage``: cut off restored files of this name once the restore is over. ``finds``: name
no target, so that TileLang looks for a toolkit, which is not there, and for a GPU, which PyTorch says is."""

import hashlib
import json
import sys
from pathlib import Path

from kernels import damage, report

TARGET = {"kind": "cuda", "arch": "sm_90a"}


def scaled(language, factor=2.0, block=256, dtype="float32", length=4096):
    """Return a kernel that multiplies a vector."""
    T = language

    @T.prim_func
    def scaled(X: T.Tensor((length,), dtype), Y: T.Tensor((length,), dtype)):
        with T.Kernel(T.ceildiv(length, block), threads=128) as bx:
            for i in T.Parallel(block):
                Y[bx * block + i] = X[bx * block + i] * factor

    return scaled


def matmul(language, size=256, tile=64):
    """Return a kernel that multiplies matrices on the tensor cores, with headers of CUTLASS."""
    T = language

    @T.prim_func
    def matmul(
        A: T.Tensor((size, size), "float16"),
        B: T.Tensor((size, size), "float16"),
        C: T.Tensor((size, size), "float16"),
    ):
        with T.Kernel(size // tile, size // tile, threads=128) as (bx, by):
            left = T.alloc_shared((tile, 32), "float16")
            right = T.alloc_shared((32, tile), "float16")
            total = T.alloc_fragment((tile, tile), "float32")
            T.clear(total)
            for k in T.Pipelined(size // 32, num_stages=2):
                T.copy(A[by * tile, k * 32], left)
                T.copy(B[k * 32, bx * tile], right)
                T.gemm(left, right, total)
            T.copy(total, C[by * tile, bx * tile])

    return matmul


def place(kernel):
    """Return where TileLang's kernel lies."""
    return Path(kernel._tilelang_cache_path)


def find_a_gpu():
    """Have TileLang find what a host with a GPU and without a CUDA toolkit has."""
    import tilelang.contrib.nvcc
    import torch

    tilelang.contrib.nvcc.CUDA_HOME = ""
    torch.cuda.is_available = lambda: True
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_capability = lambda _=None: (9, 0)


def main():
    """Compile or load two kernels."""
    options = dict(argument.split("=", 1) for argument in sys.argv[1:])
    if "damage" in options:
        damage(options["damage"])
    import tilelang
    import tilelang.language

    functions = (
        scaled(tilelang.language, 3.0 if "changed" in options else 2.0),
        matmul(tilelang.language),
    )
    if "finds" in options:
        find_a_gpu()
    target = "auto" if "finds" in options else TARGET
    kernels = [tilelang.compile(function, out_idx=-1, target=target) for function in functions]
    libraries = [(place(kernel) / "executable.so").read_bytes() for kernel in kernels]
    answer = {
        "places": [str(place(kernel)) for kernel in kernels],
        "results": [hashlib.sha256(library).hexdigest() for library in libraries],
        "published": "",
    }
    if "publish" in options:
        import cachesvc_client
        from cachesvc_client.wire.errors import NotWarm

        try:
            answer["published"] = str(cachesvc_client.publish(options["publish"], target="kernels"))
        except NotWarm as error:
            answer["published"] = str(error)
    print(json.dumps({**answer, **report()}), flush=True)


if __name__ == "__main__":
    main()
