"""Compile one TileLang kernel for CUDA again and again, each time with one difference, and print as JSON
where each came from: ``entry`` for a restored one, ``compiled`` for one that was compiled here.

The process is attached to a name under which the kernel without a difference is published. TileLang's own
caches are emptied before each. The argument is a folder of CUDA with another nvcc."""

import contextlib
import json
import shutil
import sys
from pathlib import Path

import tilelang
import tilelang.cache
import tilelang.contrib.nvcc
import tilelang.language
import tvm_ffi
from changed_variables import changed_variables
from cuda_kernels import TARGET, scaled
from kernel_differences import attribute, postprocessor, try_all
from kernels import report

COMPILES = "tilelang_callback_cuda_compile"
BODIES = {
    "body": {"factor": 3.0},
    "tile": {"block": 512},
    "dtype": {"dtype": "float16"},
    "shape": {"length": 8192},
}
OPTIONS = {
    "outputs": {"out_idx": None},
    "architecture": {"target": {"kind": "cuda", "arch": "sm_80"}},
    "architecture without its extensions": {"target": {"kind": "cuda", "arch": "sm_90"}},
    "flag": {"compile_flags": ["--use_fast_math"]},
    "definition": {"compile_flags": ["-DSOMETHING=1"]},
    "include path": {"compile_flags": ["-I/nonexistent"]},
    "flags of a pass": {"pass_configs": {"tl.device_compile_flags": ["--maxrregcount=64"]}},
    "fast math": {"pass_configs": {"tl.enable_fast_math": True}},
    "registers": {"pass_configs": {"tl.ptxas_register_usage_level": 5}},
}
VARIABLES = {
    "flags of nvcc by a variable": {"NVCC_APPEND_FLAGS": "-lineinfo"},
    "flags of ptxas by a variable": {"PTXAS_FLAGS": "-v"},
    "include path of nvcc by a variable": {"INCLUDES": "-I/nonexistent"},
    "include path by a variable": {"CPATH": "/nonexistent"},
    "CUTLASS elsewhere": {"TL_CUTLASS_PATH": "/nonexistent"},
    "a variable of a later TileLang": {"TILELANG_OF_A_LATER_RELEASE": "1"},
}


@contextlib.contextmanager
def another_nvcc():
    home = sys.argv[1]
    with (
        attribute(tilelang.contrib.nvcc, "CUDA_HOME", home),
        attribute(sys.modules["tilelang.env"], "CUDA_HOME", home),
    ):
        yield


def compile_itself():
    """Have the program compile for CUDA, with the rest of TileLang's function. It stays so."""
    original = sys.modules["tilelang.cuda.backend"].tilelang_callback_cuda_compile
    tvm_ffi.register_global_func(COMPILES, lambda *given: original(*given), override=True)
    return contextlib.nullcontext()


OTHERS = {
    "another nvcc": another_nvcc,
    "the version of TVM's FFI": lambda: attribute(tvm_ffi, "__version__", "0.1.11"),
    "a program that changes device sources": lambda: postprocessor("tilelang_callback_cuda_postproc"),
    "a program that changes host sources": lambda: postprocessor("tilelang_callback_c_host_postproc"),
}
LAST = {"a program that compiles itself": compile_itself}


def source(body=None, options=None):
    """Compile the kernel with these differences. Return where it came from."""
    tilelang.cache._dispatch_map["tvm_ffi"].clear_cache()
    shutil.rmtree(Path(sys.modules["tilelang.env"].env.TILELANG_CACHE_DIR, "0.1.15", "cuda-binaries"), True)
    options = {"out_idx": -1, "target": TARGET, **(options or {})}
    kernel = tilelang.compile(scaled(tilelang.language, **(body or {})), **options)
    return "entry" if "/tilelang/cachesvc/" in kernel._tilelang_cache_path else "compiled"


def main():
    answer = {"same": {"first": source()}, "differences": {}, "refused": {}}
    try_all(answer, source, BODIES, OPTIONS, VARIABLES, OTHERS)
    with changed_variables({"NVCC_CCBIN": "/nonexistent", "TILELANG_VERBOSE": "0", "SOME_OTHER": "1"}):
        answer["same"]["variables that change no code"] = source()
    answer["same"]["last"] = source()
    try_all(answer, source, others=LAST)
    print(json.dumps({**answer, **report()}), flush=True)


if __name__ == "__main__":
    main()
