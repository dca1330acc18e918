"""Keys of host kernels: the same in every process, another one for whatever decides the machine code."""

from __future__ import annotations

import enum
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cachesvc_client.hooks import imports
from cachesvc_client.kinds.inductor.host_kernels import HostKernels, kernel_key
from cachesvc_client.kinds.inductor.used_files import UsedFiles

PROGRAM = """
from torch._inductor import config
from torch._inductor.codecache import CppCodeCache, CppPythonBindingsCodeCache
from cachesvc_client.kinds.inductor.host_kernels import kernel_key
code = "extern void kernel(float* out) { *out = 1; }"
def key(cls=CppCodeCache, *args, **kwargs):
    return kernel_key(cls, args, kwargs)
plain = key(CppCodeCache, code)
print(plain)
others = [
    key(CppCodeCache, code + " "),
    key(CppPythonBindingsCodeCache, code),
    key(CppCodeCache, code, "cuda"),
    key(CppCodeCache, code, extra_flags=("-O0",)),
    key(CppCodeCache, code, optimized_code="int x;"),
]
with config.patch("cpp.enable_unsafe_math_opt_flag", True):
    others.append(key(CppCodeCache, code))
assert len({plain, *others}) == 1 + len(others), others
assert key(CppCodeCache, code, submit_fn=print) == plain == key(CppCodeCache, main_code=code)
"""


@pytest.mark.compiles
def test_a_key_is_stable_across_processes_and_tells_kernels_apart(tmp_path: Path) -> None:
    running = []
    for seed in ("1", "2"):
        place = tmp_path / seed
        place.mkdir()
        env = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "HOME": str(place),
            "TORCHINDUCTOR_CACHE_DIR": str(place),
        }
        command = [sys.executable, "-c", PROGRAM]
        running.append(subprocess.Popen(command, env=env, cwd=place, stdout=-1, stderr=-1, text=True))
    keys = set()
    for process in running:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err[-3000:]
        keys.add(out.strip())
    assert len(keys) == 1 and len(keys.pop()) == 64


def test_a_parameter_that_is_not_known_makes_no_key() -> None:
    """It may decide the machine code; PyTorch builds then, as ever."""

    class Later:
        @classmethod
        def load_async(cls, main_code: str, device_type: str = "cpu", tuning: str = "") -> str:
            return f"built {main_code} {device_type} {tuning}"

    module: Any = SimpleNamespace(CppCodeCache=Later, __name__="codecache")
    assert imports.hook(module, "CppCodeCache.load_async", HostKernels(UsedFiles()).load_async)
    assert Later.load_async("code", "cpu", "fast") == "built code cpu fast"
    with pytest.raises(ValueError, match="tuning"):
        kernel_key(Later, ("code", "cpu", "fast"), {})


def test_a_record_of_another_type_is_passed_on() -> None:
    """Until torch 2.7 the kind is an enumeration."""
    Kind = enum.Enum("Kind", "INDUCTOR")
    seen: list[Any] = []

    class CacheArtifactManager:
        @classmethod
        def record_artifact(cls, artifact_type: Any, key: str, content: Any, more: int = 0) -> None:
            seen.append((artifact_type, key, content, more))

    recorded = UsedFiles()
    module = cast(Any, SimpleNamespace(CacheArtifactManager=CacheArtifactManager))
    assert imports.hook(module, "CacheArtifactManager.record_artifact", recorded.record_artifact)
    CacheArtifactManager.record_artifact(Kind.INDUCTOR, "fkey", b"graph")
    assert len(recorded) == 0
    CacheArtifactManager.record_artifact("inductor", "fkey", b"graph", more=1)
    assert seen == [(Kind.INDUCTOR, "fkey", b"graph", 0), ("inductor", "fkey", b"graph", 1)]
    assert recorded.keys() == {"fkey"}
