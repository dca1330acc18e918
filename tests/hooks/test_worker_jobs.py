"""Test that a job of a compile worker counts as a compilation only if the worker compiled its kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

JOBS = """\
import time, types
from pathlib import Path
from torch._inductor.runtime.runtime_utils import triton_cache_dir, triton_hash_to_path_key

def kernel(digests, compiles):
    folders = [Path(triton_cache_dir(0), triton_hash_to_path_key(digest)) for digest in digests]
    time.sleep(0.1)  # the clock of a file system is a few milliseconds late
    for folder in folders[:compiles]:
        folder.mkdir(parents=True, exist_ok=True)
        Path(folder, "new").write_bytes(b"")
        Path(folder, "new").rename(folder / "kernel.cubin")
    results = [types.SimpleNamespace(kernel=types.SimpleNamespace(hash=digest)) for digest in digests]
    return types.SimpleNamespace(triton_meta={"device": 0}, compile_results=results), 1

def fails():
    raise ValueError("no kernel")
"""
"""Jobs with answers as PyTorch's own jobs give them, of which a worker reads or writes Triton's folder."""
PROGRAM = """\
import json, sys, time
from cachesvc_client.hooks import counters
observer = counters.start()
from torch._inductor.compile_worker.subproc_pool import SubprocPool
import jobs

FIRST, SECOND, THIRD = ("ab" * 32, "cd" * 32, "ef" * 32)
jobs.kernel([FIRST, SECOND], 2)
time.sleep(0.1)
pool = SubprocPool(1)
counted = []
for job, *arguments in (
    (jobs.kernel, [FIRST, SECOND], 0), (jobs.kernel, [THIRD], 1), (jobs.kernel, [THIRD], 0),
    (jobs.kernel, [FIRST, SECOND], 1), (jobs.kernel, [], 0), (jobs.fails,), (len, "no kernel"),
):
    future = pool.submit(job, *arguments)
    future.exception(100)
    time.sleep(0.1)
    counted.append(observer.snapshot().compilations)
pool.shutdown()
print(json.dumps(counted))
"""


@pytest.mark.compiles
def test_a_kernel_that_the_worker_found_is_no_compilation(tmp_path: Path) -> None:
    """Read, compiled, read; one of two compiled again; then answers that name no kernel that was there."""
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "program.py").write_text(PROGRAM)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("CACHESVC_")}
    result = subprocess.run(
        [sys.executable, "program.py"],
        env={**environ, "HOME": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path / "kernels")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout.splitlines()[-1]) == [0, 1, 1, 2, 3, 4, 5]
