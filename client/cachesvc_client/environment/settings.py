"""Lists the environment variables that change PyTorch's or Triton's cache keys."""

from __future__ import annotations

import re
from collections.abc import Mapping

_SETTING_PREFIXES = (
    "TORCHINDUCTOR_",
    "TORCH_COMPILE_",
    "TORCHDYNAMO_",
    "TORCH_INDUCTOR_",
    "INDUCTOR_",
    "TRITON_",
)
"""Prefixes of variables that may change the keys."""
_SETTING_NAMES_TEXT = """
CI CXX CC TORCH_CACHING_PRECOMPILE
TORCH_FLOAT32_MATMUL_PRECISION
TORCH_ALLOW_TF32_CUBLAS_OVERRIDE NVIDIA_TF32_OVERRIDE CUBLAS_WORKSPACE_CONFIG TORCH_BLAS_PREFER_CUBLASLT
PYTORCH_NVML_BASED_CUDA_CHECK TORCH_DETERMINISTIC
"""
_SETTING_NAMES = frozenset(_SETTING_NAMES_TEXT.split())
"""Names of other variables that may change the keys."""
_NEUTRAL_TEXT = """
TORCHINDUCTOR_COMPILE_THREADS TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE
TORCHINDUCTOR_WORKER_START TORCHINDUCTOR_WORKER_LOGPATH TRITON_CACHE_MANAGER TRITON_REMOTE_CACHE_BACKEND
"""
_NEUTRAL = frozenset(_NEUTRAL_TEXT.split())
"""Names that begin with such a prefix and change no key."""
_PRIVATE = re.compile(
    r"(?:^|_)(?:DIR|PATH|ROOT|HOME|FOLDER|FILE|URL|HOST|PORT|REDIS|TOKEN|SECRET|PASSWORD|PASSWD)(?:_|$)"
)
"""Matches names of variables that have a folder, an address or a secret."""


def settings(environ: Mapping[str, str]) -> list[str] | None:
    """Returns the variables that are set and may change PyTorch's or Triton's keys, as ``NAME=value``,
    sorted.

    Returns neither folders, addresses nor secrets: a variable whose name says that it has one, or whose
    value is an absolute path (except CXX and CC, which are in the key as they are), is omitted. So are
    OMP_NUM_THREADS and MKL_NUM_THREADS: the key holds their outcome, which is the factor ``threads``; and
    ATEN_CPU_CAPABILITY, whose outcome is the factor ``cpu_isa``: where that is equal, so is the code. Which
    variables change keys was measured on torch 2.13; a prefix includes those that newer versions add.
    """
    assignments = [
        f"{name}={value[:200]}"
        for name, value in environ.items()
        if (name.startswith(_SETTING_PREFIXES) or name in _SETTING_NAMES)
        and name not in _NEUTRAL
        and not _PRIVATE.search(name)
        and (name in ("CXX", "CC") or not value.startswith("/"))
    ]
    return sorted(assignments) or None
