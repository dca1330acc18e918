"""Have FlashInfer load one module again and again, each time with one difference, and print as JSON where
each came from: ``entry`` for a restored library, ``built`` where FlashInfer would have run ninja.

``FLASHINFER_DISABLE_JIT`` is set, so that FlashInfer raises an error in the place of a build. The process is
attached to a name under which the module without a difference is published, and imports a copy of FlashInfer
that it may change. The argument is a folder with another toolkit of CUDA."""

import contextlib
import dataclasses
import json
import sys
from pathlib import Path

import flashinfer
import tvm_ffi
from changed_variables import changed_variables
from flashinfer.jit import activation
from flashinfer.jit import env as jit_env
from flashinfer.jit.core import MissingJITCacheError
from flashinfer_modules import report

FLAGS = {
    "name": {"name": "silu_and_mul2"},
    "flag of C++": {"extra_cflags": ["-std=c++17", "-O2"]},
    "flag of nvcc": {"extra_cuda_cflags": ["-std=c++17", "-O2"]},
    "no fast math": {"without": "-use_fast_math"},
    "definition": {"more": ["-DSOMETHING=1"]},
    "architecture by a flag": {"more": ["-gencode=arch=compute_90a,code=sm_90a"]},
    "options from a file": {"more": ["--options-file=/dev/null"]},
    "library": {"extra_ldflags": ["-lnvrtc"]},
    "unknown library": {"extra_ldflags": ["-lunknown"]},
    "include path": {"extra_include_dirs": [Path("/tmp")]},
    "device linking": {"needs_device_linking": True},
}
VARIABLES = {
    "architecture": {"FLASHINFER_CUDA_ARCH_LIST": "8.0"},
    "two architectures": {"FLASHINFER_CUDA_ARCH_LIST": "8.0 9.0a"},
    "debug": {"FLASHINFER_JIT_DEBUG": "1"},
    "lines": {"FLASHINFER_JIT_LINEINFO": "1"},
    "threads of nvcc": {"FLASHINFER_NVCC_THREADS": "4"},
    "flags of C++ by a variable": {"FLASHINFER_EXTRA_CFLAGS": "-O1"},
    "flags of nvcc by a variable": {"FLASHINFER_EXTRA_CUDAFLAGS": "-G"},
    "flags of the linker by a variable": {"FLASHINFER_EXTRA_LDFLAGS": "-lnvrtc"},
    "nvcc's own variable": {"NVCC_APPEND_FLAGS": "-G"},
    "launcher": {"FLASHINFER_NVCC_LAUNCHER": "env"},
    "include path by a variable": {"CPATH": "/nonexistent"},
    "library path by a variable": {"LIBRARY_PATH": "/nonexistent"},
    "another C++ compiler": {"CXX": sys.executable},
    "another compiler for nvcc": {"CC": sys.executable},
    "another nvcc": {"CUDA_HOME": sys.argv[1]},
}
VERSIONS = {"FlashInfer": flashinfer, "TVM's FFI": tvm_ffi}
FILES = {
    "header of FlashInfer": jit_env.FLASHINFER_INCLUDE_DIR / "flashinfer" / "activation.cuh",
    "header of its sources": jit_env.FLASHINFER_CSRC_DIR / "tvm_ffi_utils.h",
    "a header before FlashInfer's": jit_env.CCCL_INCLUDE_DIRS[0] / "flashinfer" / "activation.cuh",
}


def specification(more=(), without=None, **changes):
    """Return the specification of the module, with changes."""
    spec = activation.gen_act_and_mul_module("silu")
    flags = [flag for flag in spec.extra_cuda_cflags if flag != without]
    return dataclasses.replace(spec, **{"extra_cuda_cflags": [*flags, *more], **changes})


def origin(**changes):
    """Return where the library of a specification comes from."""
    try:
        specification(**changes).build_and_load()
    except MissingJITCacheError:
        return "built"
    return "entry"


@contextlib.contextmanager
def changed(file):
    before = file.read_bytes() if file.exists() else None
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)  # the copy of the package is made of hard links
    file.write_bytes((before or b"") + b"\n// changed\n")
    try:
        yield
    finally:
        file.unlink()
        if before is not None:
            file.write_bytes(before)


@contextlib.contextmanager
def version(module):
    before, module.__version__ = module.__version__, "9.9.9"
    try:
        yield
    finally:
        module.__version__ = before


def source():
    """Return where the module comes from if its source differs."""
    spec = activation.gen_act_and_mul_module("silu")
    file = Path(spec.sources[0])
    before = file.read_text()
    try:
        file.write_text(before + "// changed\n")
        spec.build_and_load()
    except MissingJITCacheError:
        return "built"
    finally:
        file.write_text(before)
    return "entry"


def main():
    """Try each difference."""
    same = {"before": origin()}
    differences = {"source": source()}
    for name, changes in FLAGS.items():
        differences[name] = origin(**changes)
    for name, changes in VARIABLES.items():
        with changed_variables(changes):
            differences[name] = origin()
    for name, module in VERSIONS.items():
        with version(module):
            differences[f"version of {name}"] = origin()
    for name, file in FILES.items():
        with changed(file):
            differences[name] = origin()
    same["after"] = origin()
    print(json.dumps({"same": same, "differences": differences, **report()}), flush=True)


if __name__ == "__main__":
    main()
