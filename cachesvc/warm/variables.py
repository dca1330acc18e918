"""Choose the variables that model code inherits: what compilers, PyTorch and the system need, nothing secret.

The code of a model runs in the fresh processes of `warm`, and a CI job has secrets in its environment: the
signing key, tokens of the CI system and of the cloud. So a variable is passed on because it is listed here,
or because the spec names it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from . import kinds_used

_NAMES = frozenset(
    """
    PATH LANG LANGUAGE TZ TERM USER LOGNAME SHELL HOSTNAME NO_COLOR VIRTUAL_ENV CONDA_PREFIX
    LD_LIBRARY_PATH LD_PRELOAD LIBRARY_PATH CPATH C_INCLUDE_PATH CPLUS_INCLUDE_PATH COMPILER_PATH
    GCC_EXEC_PREFIX CC CXX CPP LD AR AS CFLAGS CXXFLAGS CPPFLAGS LDFLAGS PKG_CONFIG_PATH CCACHE_DIR
    CCACHE_DISABLE SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE
    GLIBC_TUNABLES XDG_CACHE_HOME XDG_DATA_DIRS
    CACHESVC_EXPERIMENTAL
    HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY http_proxy https_proxy no_proxy all_proxy
    """.split()
)
"""Names of variables that pass."""
_PREFIXES = (
    *("LC_", "PYTHON", "TORCH", "PYTORCH_", "TRITON_", "INDUCTOR_", "AOT_", "ATEN_", "DNNL_", "ONEDNN_"),
    *("CUDA", "CUDNN", "CUBLAS", "CUTLASS", "NVIDIA_", "NVCC_", "NCCL_", "NVTE_", "GLOO_"),
    "FLASHINFER_",
    *("ROCM", "HIP_", "HSA_", "MIOPEN_", "ROCBLAS_", "HIPBLASLT_", "AMD_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "MALLOC_"),
    *("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "TOKENIZERS_", "DIFFUSERS_"),
)
"""Beginnings of names that pass, unless the name says that it is a secret."""
_SECRET = re.compile(
    r"(?:^|_)(?:API)?(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|AUTH)S?(?:_|$)", re.IGNORECASE
)
_CACHE_FOLDERS = frozenset({*kinds_used.CACHE_VARIABLES, "TRITON_HOME"})
"""Names of variables that name the builder's cache folders."""


def choose_variables(base: Mapping[str, str], pass_env: Collection[str] = ()) -> dict[str, str]:
    """Return the variables of ``base`` that a fresh process gets: those of this module, and ``pass_env``.

    A variable whose name says that it is a secret passes only in ``pass_env``. The builder's cache folders
    never pass. ``CI`` passes only in ``pass_env`` too: it changes AOTAutograd's keys, and it is set where
    `warm` runs but not where the service does.
    """
    return {
        name: value
        for name, value in base.items()
        if name not in _CACHE_FOLDERS and (name in pass_env or _passes(name))
    }


def _passes(name: str) -> bool:
    return (name in _NAMES or name.startswith(_PREFIXES)) and not _SECRET.search(name)
