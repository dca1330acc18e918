"""What TileLang's releases do differently in their kernel cache, in one place.

Read in the wheels of 0.1.9, 0.1.12, 0.1.14 and 0.1.15; run on 0.1.15. What a hook finds decides, and not the
number of the release: before 0.1.15 the parameters of a kernel are a pickle, and before 0.1.14 there is no
manifest. Kernels of those releases are neither kept nor restored.
"""

from __future__ import annotations

from typing import NamedTuple

TESTED = ("0.1.15",)
"""Releases on which the tests of `tests/engines` were run, on a CPU."""


class Backend(NamedTuple):
    """A target of kernels, with the execution backend that runs them.

    ``library``: the name of the file with the machine code. ``sources``: those that a compiler gets.
    ``headers``: the folder of TileLang's own headers for it, below ``src/tl_templates``. ``postprocessors``:
    names of functions that a program may register, and that change the source after the key was made.
    """

    target: str
    execution: str
    library: str
    sources: tuple[str, ...]
    headers: str
    postprocessors: tuple[str, ...]


CPU = Backend(
    "c",
    "cython",
    "kernel_lib.so",
    ("host_kernel.cu",),
    "cpp",
    ("tilelang_callback_c_host_postproc", "tilelang_callback_c_postproc"),
)
"""0.1.15 has no other pair that works on a CPU."""
CUDA = Backend(
    "cuda",
    "tvm_ffi",
    "executable.so",
    ("device_kernel.cu", "host_kernel.cu"),
    "cuda",
    ("tilelang_callback_cuda_postproc", "tilelang_callback_c_host_postproc", "tilelang_callback_c_postproc"),
)
"""What TileLang takes for NVIDIA's GPUs unless a program names another execution backend."""
BACKENDS = (CPU, CUDA)

CUDA_CALLBACKS = ("tilelang_callback_cuda_compile", "tilelang_callback_cuda_validate")
"""Names of functions that TileLang registers for CUDA, and that a program may replace."""

PREFIXES = ("TILELANG_", "TL_", "TVM_")
"""Beginnings of the names of TileLang's variables."""

IN_KEY_OR_IDLE = frozenset(
    {
        *("TILELANG_DEFAULT_TARGET", "TILELANG_EXECUTION_BACKEND", "TILELANG_LAYOUT_COST_MODEL"),
        *("TILELANG_CACHE_DIR", "TILELANG_DISABLE_CACHE", "TILELANG_KERNEL_CACHE_USE_LIB_STAMP"),
        *("TILELANG_VERBOSE", "TILELANG_PRINT_ON_COMPILATION", "TILELANG_JIT_DIAGNOSTICS"),
        *("TILELANG_CLEANUP_TEMP_FILES", "TILELANG_COMPILE_TIMEOUT_SECONDS"),
        *("TILELANG_PASS_DIFF", "TILELANG_PASS_DIFF_OUTPUT", "TL_LOWER_TRACE", "TL_LOWER_TRACE_DIR"),
        *("TILELANG_PASS_PROFILE", "TILELANG_PASS_PROFILE_THRESHOLD_MS"),
        *("TILELANG_AUTO_TUNING_DISABLE_CACHE", "TILELANG_AUTO_TUNING_CPU_UTILITIES"),
        *("TILELANG_AUTO_TUNING_CPU_COUNTS", "TILELANG_AUTO_TUNING_MAX_CPU_COUNT"),
        *("TVM_FFI_DISABLE_TORCH_C_DLPACK", "TVM_FFI_SKIP_DLPACK_C_EXCHANGE_API", "TL_CUTLASS_PATH"),
    }
)
"""Variables of TileLang's that its key has, or that change no code for a CPU."""

OF_THE_PACKAGE = ("TL_TEMPLATE_PATH", "TVM_LIBRARY_PATH", "TVM_IMPORT_PYTHON_PATH")
"""Variables that name parts of TileLang. TileLang sets them itself, to folders of its own package."""

OF_OTHER_PLATFORMS = frozenset({"Metal/Metal.h", "Foundation/Foundation.h", "torch/mps.h"})
"""Headers that each source of a host names for macOS alone (``#ifdef __OBJC__``)."""

CUDA_HEADERS = frozenset(
    {"cuda", "cuda_fp16", "cuda_bf16", "cuda_fp8", "cuda_fp4", "cuda_runtime", "math_constants"}
)
"""Headers of the CUDA toolkit, without ``.h``, which the identity of nvcc stands for."""

STANDARD_HEADERS = frozenset(
    {
        *("assert", "complex", "ctype", "errno", "fenv", "float", "inttypes", "limits", "math", "setjmp"),
        *("stdalign", "stdarg", "stdatomic", "stdbool", "stddef", "stdint", "stdio", "stdlib", "string"),
        *("time", "wchar", "immintrin", "x86intrin", "arm_neon", "arm_sve"),
    }
)
"""Headers, without ``.h``, of the C library and the compiler, which factors of the fingerprint stand for."""
STANDARD_CXX_HEADERS = frozenset(
    {
        *(f"c{name}" for name in ("assert", "ctype", "errno", "float", "inttypes", "limits", "math")),
        *(f"c{name}" for name in ("stdarg", "stddef", "stdint", "stdio", "stdlib", "string", "time")),
        *("algorithm", "array", "atomic", "bit", "complex", "functional", "initializer_list", "iostream"),
        *("limits", "memory", "new", "numeric", "string", "tuple", "type_traits", "utility", "vector"),
    }
)
"""Those of the C++ library."""
