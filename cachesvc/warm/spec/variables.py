"""Choose the variables that model code inherits: what compilers, PyTorch and the system need, nothing secret.

The code of a model runs in the fresh processes of `warm`, and a CI job has secrets in its environment: the
signing key, tokens of the CI system and of the cloud. So a variable is passed on because it is listed here,
or because the spec names it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from .. import kinds_used

_NAMES = frozenset(
    """
    PATH LANG LANGUAGE TZ TERM USER LOGNAME SHELL HOSTNAME NO_COLOR VIRTUAL_ENV CONDA_PREFIX
    LD_LIBRARY_PATH LD_PRELOAD LIBRARY_PATH CPATH C_INCLUDE_PATH CPLUS_INCLUDE_PATH COMPILER_PATH
    GCC_EXEC_PREFIX CC CXX CPP LD AR AS CFLAGS CXXFLAGS CPPFLAGS LDFLAGS PKG_CONFIG_PATH CCACHE_DIR
    CCACHE_DISABLE SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE
    GLIBC_TUNABLES XDG_CACHE_HOME XDG_DATA_DIRS
    CACHESVC_KINDS
    HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY http_proxy https_proxy no_proxy all_proxy
    NVIDIA_VISIBLE_DEVICES NVIDIA_DRIVER_CAPABILITIES NVIDIA_TF32_OVERRIDE NVIDIA_REQUIRE_CUDA
    NVIDIA_DISABLE_REQUIRE
    HF_HOME HF_ENDPOINT HF_HUB_CACHE HF_ASSETS_CACHE HF_XET_CACHE HF_MODULES_CACHE HF_DATASETS_CACHE
    HF_HUB_OFFLINE HF_DATASETS_OFFLINE HF_EVALUATE_OFFLINE HF_HUB_ENABLE_HF_TRANSFER HF_HUB_DISABLE_XET
    HF_HUB_DISABLE_TELEMETRY HF_HUB_DISABLE_PROGRESS_BARS HF_HUB_DOWNLOAD_TIMEOUT HF_HUB_ETAG_TIMEOUT
    HUGGINGFACE_HUB_CACHE TRANSFORMERS_CACHE TRANSFORMERS_OFFLINE TRANSFORMERS_VERBOSITY
    TRANSFORMERS_NO_ADVISORY_WARNINGS TOKENIZERS_PARALLELISM DIFFUSERS_VERBOSITY
    """.split()
)
"""Names of variables that pass. Of families in which tools keep a login too, such as ``HF_``, these alone."""
_PREFIXES = (
    *("LC_", "PYTHON", "TORCH", "PYTORCH_", "TRITON_", "INDUCTOR_", "AOT_", "ATEN_", "DNNL_", "ONEDNN_"),
    *("CUDA", "CUDNN", "CUBLAS", "CUTLASS", "NVCC_", "NCCL_", "NVTE_", "GLOO_"),
    "FLASHINFER_",
    *("ROCM", "HIP_", "HSA_", "MIOPEN_", "ROCBLAS_", "HIPBLASLT_", "AMD_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "MALLOC_"),
)
"""Beginnings of names that pass, unless the name says that it is a secret."""
_SECRET = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|APIKEY"
    r"|(?:^|_)(?:KEY|AUTH|PAT|PASS|PWD|PIN|CRED|JWT|BEARER|COOKIE|SESSION|LOGIN|DSN)S?\d*(?:_|$)",
    re.IGNORECASE,
)
"""Matches what such a name says then."""
_SECRET_VALUE = re.compile(
    r"//\S*@|^(?:hf_|gh[a-z]_|github_pat_|glpat-|nvapi-|sk-|xox|AKIA|ASIA|eyJ|ed25519-|-----BEGIN)"
)
"""Matches an address with a login in it, and the texts that are known to be secrets."""
_CACHE_FOLDERS = frozenset({*kinds_used.CACHE_VARIABLES, "TRITON_HOME"})
"""Names of variables that name the builder's cache folders."""


def choose_variables(base: Mapping[str, str], pass_env: Collection[str] = ()) -> dict[str, str]:
    """Return the variables of ``base`` that a fresh process gets: those of this module, and ``pass_env``.

    A variable whose name or value says that it is a secret, such as a proxy's address with a password, passes
    only in ``pass_env``. The builder's cache folders never pass. ``CI`` passes only in ``pass_env`` too: it
    changes AOTAutograd's keys, and it is set where `warm` runs but not where the service does.
    """
    return {
        name: value
        for name, value in base.items()
        if name not in _CACHE_FOLDERS and (name in pass_env or _passes(name, value))
    }


def _passes(name: str, value: str) -> bool:
    is_known = name in _NAMES or (name.startswith(_PREFIXES) and not _SECRET.search(name))
    has_login = name.lower().endswith("_proxy") and "@" in value
    return is_known and not has_login and not _SECRET_VALUE.search(value)
