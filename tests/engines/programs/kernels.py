"""Compile TileLang kernels for the CPU, run them, and print JSON: digests of the results and the report.

Arguments are NAME=VALUE. ``publish``: publish afterwards, under this name. ``change``: one of `CHANGES`, made
to each kernel. ``kernels``: how many kernels, 2 unless given. ``target``: a target of TileLang's."""

import hashlib
import json
import sys

CHANGES = {
    "dtype": {"dtype": "float64"},
    "tile": {"tile": 32},
    "shape": {"size": 96},
    "body": {"factor": 3},
    "layout": {"transposed": True},
}


def matmul(T, size=64, tile=16, dtype="float32", factor=1, transposed=False):
    """Return a kernel that multiplies two square matrices, and the result by ``factor``."""

    @T.prim_func
    def main(
        A: T.Tensor((size, size), dtype), B: T.Tensor((size, size), dtype), C: T.Tensor((size, size), dtype)
    ):
        with T.Kernel(T.ceildiv(size, tile), T.ceildiv(size, tile)) as (bx, by):
            block = T.alloc_local((tile, tile), dtype)
            T.clear(block)
            for ko in range(size // tile):
                for i, j, k in T.grid(tile, tile, tile):
                    if transposed:
                        block[i, j] += A[by * tile + i, ko * tile + k] * B[bx * tile + j, ko * tile + k]
                    else:
                        block[i, j] += A[by * tile + i, ko * tile + k] * B[ko * tile + k, bx * tile + j]
            for i, j in T.grid(tile, tile):
                C[by * tile + i, bx * tile + j] = block[i, j] * factor

    return main


def result(torch, kernel, size, dtype):
    generator = torch.Generator().manual_seed(size)
    operands = [torch.rand(size, size, generator=generator, dtype=dtype) for _ in range(2)]
    product = kernel(*operands)
    return hashlib.sha256(product.numpy().tobytes()).hexdigest(), product, operands


def main():
    options = dict(argument.split("=", 1) for argument in sys.argv[1:])
    import tilelang
    import tilelang.language as T
    import torch

    settings = {**CHANGES.get(options.get("change", ""), {})}
    compile_options = json.loads(options.get("compile", "{}"))
    answer = {"results": [], "right": [], "places": [], "version": tilelang.__version__}
    for number in range(int(options.get("kernels", "2"))):
        size = settings.get("size", 64) * (number + 1)
        function = matmul(T, **{**settings, "size": size})
        kernel = tilelang.compile(function, out_idx=-1, target=options.get("target", "c"), **compile_options)
        dtype = getattr(torch, settings.get("dtype", "float32"))
        digest, product, (left, right) = result(torch, kernel, size, dtype)
        expected = left @ (right.T if settings.get("transposed") else right) * settings.get("factor", 1)
        answer["results"].append(digest)
        answer["right"].append(torch.allclose(product, expected, rtol=1e-4))
        answer["places"].append(getattr(kernel, "_tilelang_cache_path", ""))
    import cachesvc_client
    from cachesvc_client.wire.codec import plain

    if "publish" in options:
        cachesvc_client.publish(options["publish"], target="kernels")
    report = plain(cachesvc_client.report())
    kept = ("state", "reasons", "observed", "kinds", "revisions", "seconds", "rejected")
    answer["report"] = {name: report[name] for name in kept}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
