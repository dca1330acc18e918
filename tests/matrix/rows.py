"""List the rows of the matrix: one for each difference between builder and consumer, with its outcome.

*hit*: nothing is compiled, tuned or started, and the numbers are right. *refused*: nothing is installed, and
the factor is named first. *compiles*: right numbers, and the factor is named first. *retraced*: PyTorch looks
for another AOTAutograd key and finds the same kernels: nothing is compiled, and the factor is named first.
*invisible*: no key has the difference, and the numbers are right. *told*: an attach by name cannot know the
difference before the compile, so the files are installed, and the factor is named first afterwards.
*uncached*: right numbers, and no factor is asked for: some versions keep such a graph out of their caches.

``group``: rows of one group share one consumer process. ``change``: the difference that the process makes
(`changes`). ``variables`` and ``facts``: how its environment differs. A row without a group has a fingerprint
that asks the registry for the entry ``of`` a machine (*cpu*: the warmed one; *gpu*: one that claims to be of
an H200).
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cachesvc_client.environment import releases
from cachesvc_client.environment.detect import detect

KERNELS: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "golden" / "triton-kernels-1.json").read_text()
)
"""The trace of a program with kernels, as it was built and after each edit (tests/graphs)."""
_RELEASE_HERE = tuple(int(part) for part in (releases.torch()[0] or "0.0").split(".")[:2])
WITHOUT: Any = None
"""A value in ``facts``: the consumer does not know the fact."""


@dataclass(frozen=True)
class Row:
    name: str
    expect: str
    factor: str = ""
    group: str = ""
    change: str = "as_built"
    variables: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    of: str = "cpu"

    @property
    def long(self) -> bool:
        """Whether `make test` leaves the row to `make matrix` and `make test-all`: most rows with their own
        process, and the second process that compiles for each of its rows."""
        return self.group not in ("", "elsewhere", "mtimes", "hits", "first")

    @property
    def expectation(self) -> str:
        return f"{self.expect}: {self.factor}" if self.factor else self.expect


def inside(group: str, expect: str, *changes: str, factor: str = "") -> list[Row]:
    return [Row(name.replace("_", " "), expect, factor, group, name) for name in changes]


def refused(name: str, factor: str, of: str = "cpu", **facts: Any) -> Row:
    return Row(name, "refused", factor, facts=facts, of=of)


def accepted(name: str, of: str = "cpu", **facts: Any) -> Row:
    return Row(name, "installed", facts=facts, of=of)


ELSEWHERE = {
    "USER": "another",
    "LANG": "C",
    "LC_ALL": "C",
    "PYTHONHASHSEED": "7",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
}
"""Variables that differ from the builder's, besides HOME, TMPDIR and the working directory."""


def process(name: str, expect: str, factor: str = "", **variables: str) -> Row:
    return Row(name, expect, factor, name, variables=variables)


def in_keys_since(release: tuple[int, int], name: str, expect: str, **variables: str) -> Row:
    """Return the row of a variable that PyTorch's keys hold from a release on. Before, the process hits, with
    the right numbers."""
    if release > _RELEASE_HERE:
        return process(name, "hit", **variables)
    return process(name, expect, "settings", **variables)


def _own_capability() -> str:
    """Return the value of ATEN_CPU_CAPABILITY that stands for what this machine chooses by itself."""
    isa = str(detect({}).get("cpu_isa", ""))
    return next((name for name in ("avx512", "avx2") if name in isa), "default")


ROWS: list[Row] = [
    # Where the program runs and who runs it: no key holds this.
    *(
        Row(name, "hit", group="elsewhere", variables=ELSEWHERE)
        for name in ("HOME", "USER", "working directory", "TMPDIR", "locale", "hash seed", "compile threads")
    ),
    Row("no C++ compiler in the image", "hit", group="elsewhere", variables=ELSEWHERE),
    Row("path of the virtual environment", "hit", group="venv"),
    Row("cache folder of the user's own", "hit", group="own folder"),
    Row("mtimes of the cache files", "hit", group="mtimes"),
    process("rank variables", "hit", RANK="1", LOCAL_RANK="1", WORLD_SIZE="2"),
    Row("name of the CPU model", "hit", group="cpu model", facts={"cpu_model": "another CPU"}),
    Row("more CPU flags", "hit", group="newer CPU", facts={"more cpu_flags": ["avx99"]}),
    process("ATEN_CPU_CAPABILITY as it is anyway", "hit", ATEN_CPU_CAPABILITY=_own_capability()),
    # What the program is.
    *inside(
        "hits",
        "hit",
        "weights",
        "values",
        "source_moved",
        "class_renamed",
        "fullgraph",
        "mode_default_named",
        "batch_20_of_dynamic_8",
        "compiled_as_function",
        "unused_submodule",
        "dynamo_setting",
        "inference_mode",
    ),
    *inside("hits", "invisible", "custom_op_body"),
    # Values in PyTorch's keys.
    *inside("first", "compiles", "grad_mode", factor="grad"),
    # A row whose name ends with "then" asks for what the row before compiled under another setting.
    *inside("first", "compiles", "autocast", "autocast_to_float16", factor="autocast"),
    *inside("first", "compiles", "product_for_float16", "product_for_bfloat16_then", factor="autocast"),
    *inside("first", "uncached", "autocast_inside", "autocast_inside_for_float16_then"),
    *inside("first", "uncached", "autocast_inside_for_float16", "autocast_inside_for_bfloat16_then"),
    *inside("first", "compiles", "dtype", "bfloat16", factor="dtype"),
    *inside("first", "compiles", "shape", "rank_of_input", factor="shapes"),
    *inside("first", "compiles", "stride", factor="strides"),
    *inside("first", "compiles", "dynamic", "static_of_dynamic", factor="dynamic"),
    *inside("first", "compiles", "mode", "options", factor="options"),
    *inside("first", "compiles", "inductor_config", "inductor_cpp_config", factor="inductor_config"),
    *inside("second", "retraced", "functorch_config", factor="functorch_config"),
    *inside("second", "compiles", "matmul_precision", factor="matmul_precision"),
    *inside("second", "compiles", "deterministic", factor="deterministic"),
    *inside("second", "compiles", "default_dtype", factor="default_dtype"),
    *inside("second", "compiles", "threads_in_code", factor="threads"),
    *inside("second", "compiles", "line_for_float64", factor="default_dtype"),
    *inside("second", "compiles", "line_for_one_thread_then", factor="threads"),
    *inside("second", "compiles", "line_for_float32_and_two_threads_then", factor="operations"),
    *inside("second", "compiles", "width", factor="parameters"),
    *inside("second", "compiles", "layer", factor="modules"),
    *inside("second", "compiles", "activation", "constant_in_forward", "training_flag", factor="operations"),
    *inside("second", "compiles", "traced_operator_body", factor="python_operators"),
    *inside("second", "compiles", "library", factor="libraries"),
    in_keys_since((2, 11), "CI=1", "retraced", CI="1"),
    process("no TORCHINDUCTOR_VEC_ISA_OK", "compiles", "settings", TORCHINDUCTOR_VEC_ISA_OK=""),
    in_keys_since(
        (2, 12), "CPP_CACHE_PRECOMPILE_HEADERS", "compiles", TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS="0"
    ),
    in_keys_since((2, 12), "TORCH_COMPILE_DEBUG=1", "compiles", TORCH_COMPILE_DEBUG="1"),
    process("CXX=path", "compiles", "settings", CXX=os.path.realpath(shutil.which("g++") or "g++")),
    # Differences that make code wrong or unusable: refused before anything is installed.
    refused("OMP_NUM_THREADS", "threads", threads=1),
    accepted("threads not known yet", threads=WITHOUT),
    Row("ATEN_CPU_CAPABILITY", "refused", "cpu_isa", variables={"ATEN_CPU_CAPABILITY": "default"}),
    refused("torch version", "torch", torch="2.12.1+cpu"),
    refused("torch's local version", "torch", torch="2.13.0+cu130"),
    refused("Python ABI", "python_abi", python_abi="cpython-313t"),
    refused("architecture", "platform", platform="linux-aarch64"),
    refused("CPU flags missing", "cpu_flags", cpu_flags=["sse2"]),
    refused("C++ compiler", "cxx", cxx="clang++ 16.0.6"),
    accepted("no C++ compiler known", cxx=WITHOUT),
    refused("older libc", "libc", libc="2.4"),
    accepted("newer libc", libc="9.9"),
    refused("unknown libc", "libc", libc=WITHOUT),
    accepted("host code and a GPU beside it", gpu="NVIDIA H100", compute_capability="9.0"),
    refused("triton version", "triton", "gpu", triton="3.7.0"),
    refused("CUDA version", "cuda", "gpu", cuda="12.8"),
    refused("ROCm instead of CUDA", "cuda", "gpu", cuda="rocm 7.0"),
    refused("GPU name", "gpu", "gpu", gpu="NVIDIA H100 80GB HBM3"),
    refused("compute capability", "compute_capability", "gpu", compute_capability="12.0"),
    refused("no GPU", "gpu", "gpu", gpu=WITHOUT),
    refused("MIG slice", "gpu", "gpu", gpu="NVIDIA H200 MIG 1g.18gb", mig="1g.18gb"),
    accepted("driver", "gpu", driver="999.1"),
    accepted("number of GPUs", "gpu", gpu_count=8),
    Row("device index", "told", "device", facts={"device": ["cuda:1"]}, of="gpu"),
    *(
        Row(f"user's Triton kernel: {edit}", "told", "triton_kernels", facts=KERNELS[edit], of="gpu")
        for edit in ("body", "what it calls", "constant of the module", "configurations")
    ),
    accepted("CPU of a GPU's host", "gpu", cpu_isa="avx2", cpu_flags=["avx2"], cpu_model="another"),
    # Versions of cachesvc itself.
    refused("entry of a newer schema", "schema", "newer"),
    accepted("entry with a factor that this client does not know", "unknown"),
    accepted("client with a factor that the entry does not know", tomorrow="yes"),
    accepted("entry of an older client", "older"),
]
