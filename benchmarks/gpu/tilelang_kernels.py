"""Compile TileLang kernels for a GPU, run them where there is one, and print JSON: digests and the report.

Arguments are NAME=VALUE. ``publish``: publish afterwards, under this name. ``tile``: of the matrix product.
``target``: that of TileLang, ``sm_90a`` by default."""

import hashlib
import json
import os
import sys
import time


def matmul(T, size, tile):
    """Return a kernel that multiplies two square matrices of float16, by the tensor cores."""

    @T.prim_func
    def matmul(
        A: T.Tensor((size, size), "float16"),
        B: T.Tensor((size, size), "float16"),
        C: T.Tensor((size, size), "float16"),
    ):
        with T.Kernel(T.ceildiv(size, tile), T.ceildiv(size, tile), threads=128) as (bx, by):
            left = T.alloc_shared((tile, 32), "float16")
            right = T.alloc_shared((32, tile), "float16")
            block = T.alloc_fragment((tile, tile), "float32")
            T.clear(block)
            for k in T.Pipelined(T.ceildiv(size, 32), num_stages=2):
                T.copy(A[by * tile, k * 32], left)
                T.copy(B[k * 32, bx * tile], right)
                T.gemm(left, right, block)
            T.copy(block, C[by * tile, bx * tile])

    return matmul


def softmax(T, rows, columns):
    """Return a kernel that makes a softmax of each row."""

    @T.prim_func
    def softmax(A: T.Tensor((rows, columns), "float32"), B: T.Tensor((rows, columns), "float32")):
        with T.Kernel(rows, threads=128) as row:
            values = T.alloc_fragment((1, columns), "float32")
            most = T.alloc_fragment((1,), "float32")
            total = T.alloc_fragment((1,), "float32")
            T.copy(A[row, 0], values)
            T.reduce_max(values, most, dim=1)
            for i, j in T.Parallel(1, columns):
                values[i, j] = T.exp(values[i, j] - most[i])
            T.reduce_sum(values, total, dim=1)
            for i, j in T.Parallel(1, columns):
                values[i, j] = values[i, j] / total[i]
            T.copy(values, B[row, 0])

    return softmax


def kernels(T, tile):
    """Return the functions: name -> (function, shape of the inputs, their type, what PyTorch calls it)."""
    import torch

    return {
        "matmul": (matmul(T, 512, tile), 2, (512, 512), torch.float16, lambda a, b: a.float() @ b.float()),
        "softmax": (softmax(T, 256, 512), 1, (256, 512), torch.float32, lambda a: torch.softmax(a, -1)),
    }


def report():
    """Return the report of this process."""
    import cachesvc_client
    from cachesvc_client.wire.codec import plain

    whole = plain(cachesvc_client.report())
    return {name: whole[name] for name in ("state", "reasons", "observed", "kinds", "compared")}


def main():
    """Compile each kernel, and run it where there is a GPU."""
    options = dict(argument.split("=", 1) for argument in sys.argv[1:])
    if os.environ.get("CACHESVC_NAME"):
        import cachesvc_client

        cachesvc_client.attach()  # of no effect where the client is installed, and has attached
    import tilelang
    import tilelang.language
    import torch

    named = options.get("target", "sm_90a")
    target = named if named in ("auto", "cuda") else {"kind": "cuda", "arch": named}
    answer = {"results": {}, "right": {}, "seconds": {}, "places": {}, "published": False}
    answer["gpu"] = torch.cuda.is_available()
    if answer["gpu"]:
        torch.zeros(1, device="cuda")
    for name, (function, inputs, shape, dtype, expected) in kernels(
        tilelang.language, int(options.get("tile", 64))
    ).items():
        begin = time.perf_counter()
        kernel = tilelang.compile(function, out_idx=-1, target=target)
        answer["places"][name] = getattr(kernel, "_tilelang_cache_path", "")
        if answer["gpu"]:
            generator = torch.Generator("cuda").manual_seed(7)
            making = {"generator": generator, "device": "cuda", "dtype": dtype}
            given = [torch.randn(*shape, **making) for _ in range(inputs)]
            result = kernel(*given)
            torch.cuda.synchronize()
        answer["seconds"][name] = round(time.perf_counter() - begin, 3)
        if answer["gpu"]:
            answer["results"][name] = hashlib.sha256(result.cpu().numpy().tobytes()).hexdigest()
            close = torch.allclose(result.float(), expected(*given), rtol=1e-2, atol=5e-2)
            answer["right"][name] = bool(close)
    if "publish" in options:
        import cachesvc_client
        from cachesvc_client.wire.errors import CacheSvcError

        try:
            cachesvc_client.publish(options["publish"], target="kernels")
            answer["published"] = True
        except CacheSvcError as error:
            answer["published"], answer["why"] = False, str(error)
    print(json.dumps({**answer, **report()}), flush=True)


if __name__ == "__main__":
    main()
