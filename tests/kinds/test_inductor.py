"""Keys of host kernels: the same in every process, another one for whatever decides the machine code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from torch._inductor import config
from torch._inductor.codecache import CppCodeCache, CppPythonBindingsCodeCache
from cachesvc_client.kinds.inductor import kernel_key
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
