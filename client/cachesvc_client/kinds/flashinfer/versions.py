"""What FlashInfer's releases do differently in their JIT, in one place.

Read in the wheels of 0.6.14 and 0.7.2.post1. What a hook finds decides, and not the number of the release: a
specification with a field that is not here has no key, and is built.
"""

from __future__ import annotations

TESTED = ("0.6.14",)
"""Releases on which the tests of `tests/engines` were run."""

FIELDS = frozenset(
    {
        *("name", "sources", "extra_cflags", "extra_cuda_cflags", "extra_ldflags", "extra_include_dirs"),
        *("is_class", "needs_device_linking", "post_load_adapter", "embedded_cubin_factory"),
        "extra_cuda_cflags_by_source",
    }
)
"""Fields of a specification of nvcc's, which is ``JitSpec`` in 0.6 and ``JitSpecNvcc`` in 0.7. The last three
are new there; ``post_load_adapter`` changes what is done with a loaded library, and not the library."""

FLAGS_OF_VARIABLES = ("FLASHINFER_EXTRA_CFLAGS", "FLASHINFER_EXTRA_CUDAFLAGS", "FLASHINFER_EXTRA_LDFLAGS")
"""Variables with flags that FlashInfer adds in every build (``cpp_ext.py``)."""

OF_TOOLS = (
    *("CXX", "CC", "FLASHINFER_CXX_LAUNCHER", "FLASHINFER_NVCC_LAUNCHER", "NVCC_PREPEND_FLAGS"),
    *("NVCC_APPEND_FLAGS", "NVCC_CCBIN", "LIBRARY_PATH", "SOURCE_DATE_EPOCH"),
)
"""Variables that FlashInfer, a compiler or a linker reads in every build."""
