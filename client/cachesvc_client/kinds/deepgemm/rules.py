"""The files of the kind `deepgemm`.

DeepGEMM compiles a kernel in C++ when it is first called, and looks for it in the folder that
``DG_JIT_CACHE_DIR`` names when the first kernel is called (``csrc/jit/compiler.hpp``, read in 2.6.1)::

    cache/kernel.<name>.<digest>/kernel.cu      the source
    cache/kernel.<name>.<digest>/kernel.cubin   the machine code; both are there, or the process ends

``<digest>`` is over the name, nvcc's release (13.0), the flags with the absolute path of DeepGEMM's headers,
and the source with the contents of DeepGEMM's own headers. It leaves out nvcc's patch release, CUTLASS,
CUDA's headers and the variables of nvcc. cachesvc keeps kernels under a key that has these, see `toolchain`::

    cachesvc/<key>/kernel.<name>.<digest>/...   what travels
    jit/<key>/cache/...                         the folder that DeepGEMM gets
"""

from __future__ import annotations

from ..rules import FileRule, KindRules

VARIABLE = "DG_JIT_CACHE_DIR"
"""The variable that names DeepGEMM's folder."""
FOLDER = "cachesvc"
"""The folder in the kind's folder that holds one folder for each key."""
SOURCE, CUBIN = "kernel.cu", "kernel.cubin"
KERNEL = r"kernel\.[A-Za-z0-9_]{1,200}\.[0-9a-f]{16,64}"
"""Matches the name of a kernel's folder."""
_PREFIX = FOLDER + r"/[0-9a-f]{32}/" + KERNEL

RULES = KindRules(
    "deepgemm",
    (
        FileRule(_PREFIX + r"/kernel\.cu", write="ours"),
        # Last: a kernel is only looked at where this file is.
        FileRule(_PREFIX + r"/kernel\.cubin", write="ours", last=True),
    ),
)
