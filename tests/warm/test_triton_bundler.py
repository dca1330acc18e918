"""Test that kernels travel once, and that files which PyTorch writes out of an entry are not new.

The tests use PyTorch's own bundler, without a GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cachesvc.warm.worker import triton_bundler as kernels
from cachesvc.warm.worker.triton_bundler import KernelFiles

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "triton-3.6-sm90.json").read_text())
KEY = GOLDEN["group_path"].split("/")[0]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    return tmp_path / "triton"


@pytest.fixture
def kernel_files(monkeypatch: pytest.MonkeyPatch) -> KernelFiles:
    """Load PyTorch's classes with all hooks of the module, which are removed afterwards."""
    from torch._inductor import triton_bundler
    from torch._inductor.runtime import triton_heuristics

    for owner, name in (
        (triton_bundler.TritonBundler, "read_and_emit"),
        (triton_bundler.TritonBundler, "collect"),
        (triton_heuristics.StaticTritonCompileResult, "reload_cubin_path"),
    ):
        monkeypatch.setattr(owner, name, vars(owner)[name])
    files = KernelFiles()
    kernels.record_files(files)
    kernels.leave_out_copies()
    return files


def _compiled(folder: Path) -> set[Path]:
    """Make a kernel folder as Triton 3.6 left it. The contents of the files do not matter here."""
    (folder / KEY).mkdir(parents=True)
    for path in GOLDEN["files"]:
        (folder / path).write_text(f"{folder}/{path}" if path.endswith(".json") else path)
    (folder / GOLDEN["group_path"]).write_text(json.dumps(GOLDEN["group"]))
    return set((folder / KEY).iterdir())


def _bundle() -> Any:
    """Return the bundle that an FX entry gets in a compilation that used the kernel."""
    from torch._inductor.triton_bundler import TritonBundler

    TritonBundler.begin_compile()
    try:
        TritonBundler.put(KEY, 0)
        return TritonBundler.collect()[0]
    finally:
        TritonBundler.end_compile()


def test_pytorch_puts_every_file_of_a_kernel_into_the_entry(folder: Path) -> None:
    """This test shows that the hooks have something to change."""
    files = _compiled(folder)
    (kernel,) = _bundle().kernel_artifacts
    assert {file.filename for file in kernel.artifacts} == {path.name for path in files}


@pytest.mark.usefixtures("kernel_files")
def test_an_entry_of_cachesvc_holds_no_copy_of_a_kernel(folder: Path) -> None:
    _compiled(folder)
    bundle = _bundle()
    assert bundle.kernel_artifacts == []
    assert bundle.static_autotuners == []


@pytest.mark.usefixtures("kernel_files")
def test_autotuners_stay_in_the_entry(folder: Path) -> None:
    from torch._inductor.triton_bundler import StaticallyLaunchedAutotuner, TritonBundler

    _compiled(folder)
    TritonBundler.begin_compile()
    autotuner = StaticallyLaunchedAutotuner("key", "kernel", None)
    TritonBundler._static_autotuners.append(autotuner)
    try:
        assert TritonBundler.collect()[0].static_autotuners == [autotuner]
    finally:
        TritonBundler.end_compile()


def test_files_written_out_of_an_entry_are_not_new(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another builder made the entry, which holds copies. Files that it writes are emitted; files from before
    are not."""
    from torch._inductor import triton_bundler

    emit = vars(triton_bundler.TritonBundler)["read_and_emit"]
    names = {path.name for path in _compiled(folder)}
    bundle = _bundle()
    files = KernelFiles()
    monkeypatch.setattr(triton_bundler.TritonBundler, "read_and_emit", emit)
    kernels._EMIT.install_now(triton_bundler, partial(kernels._emit, files))

    triton_bundler.TritonBundler.read_and_emit(bundle)
    assert files.emitted == set()

    service = tmp_path / "service"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(service))
    triton_bundler.TritonBundler.read_and_emit(bundle)
    assert files.emitted == {service / KEY / name for name in names}
    assert all(path.is_file() for path in files.emitted)


PROGRAM = """
import json, sys
from pathlib import Path
from cachesvc.warm.worker.triton_bundler import KernelFiles, leave_out_copies, record_files
key, copies = sys.argv[1], sys.argv[2] == "with copies"
files = KernelFiles()
record_files(files)
if not copies:
    leave_out_copies()
import torch
from torch._inductor.graph import GraphLowering
from torch._inductor.triton_bundler import TritonBundler
codegen = GraphLowering.codegen
def codegen_with_a_kernel(self):
    TritonBundler.put(key, 0)  # as a GPU kernel of this graph does when it is compiled
    return codegen(self)
GraphLowering.codegen = codegen_with_a_kernel
with torch.no_grad():
    torch.compile(lambda x: torch.mm(x, x))(torch.ones(3, 3))  # no C++ kernel: quick
hits = torch._dynamo.utils.counters["inductor"]["fxgraph_cache_hit"]
print(json.dumps([hits, sorted(path.name for path in files.emitted)]))
"""


@pytest.mark.compiles
@pytest.mark.parametrize("entries", ["without copies", "with copies"])
def test_a_real_entry_hits_with_and_without_copies(tmp_path: Path, entries: str) -> None:
    """Two processes have two Triton folders and one FX cache: only the builder's kernel folder has the
    files."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    names = sorted(path.name for path in _compiled(tmp_path / "builder"))

    def run(place: str) -> list[Any]:
        env = {
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "TRITON_CACHE_DIR": str(tmp_path / place),
        }
        command = [sys.executable, str(program), KEY, entries]
        process = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert process.returncode == 0, process.stderr[-3000:]
        return json.loads(process.stdout.splitlines()[-1])

    assert run("builder") == [0, []]
    assert run("service") == [1, names if entries == "with copies" else []]
    assert (tmp_path / "service" / KEY).exists() == (entries == "with copies")


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="the path of a binary is Triton's")
def test_a_binary_that_only_has_to_exist_is_recorded(folder: Path, kernel_files: KernelFiles) -> None:
    """PyTorch asks for the binary of every candidate of an autotuner, and reads only the winner's."""
    from torch._inductor.runtime.runtime_utils import triton_hash_to_path_key
    from torch._inductor.runtime.triton_heuristics import StaticTritonCompileResult

    result = StaticTritonCompileResult.__new__(StaticTritonCompileResult)
    result.compile_meta = {"device": 0, "device_type": "cuda"}
    result.kernel = SimpleNamespace(hash="ab" * 32, name="kernel", cubin_raw=None, cubin_path=None)
    with pytest.raises(RuntimeError):
        result.reload_cubin_path()
    assert kernel_files.required == set()
    binary = folder / triton_hash_to_path_key("ab" * 32) / "kernel.cubin"
    binary.parent.mkdir(parents=True)
    binary.write_bytes(b"")
    result.reload_cubin_path()
    assert kernel_files.required == {binary}


def test_a_bundle_from_before_torch_2_8_stays_as_it_is() -> None:
    """Such a bundle is a list of kernels, and holds no autotuners that could stay in it alone."""

    class TritonBundler:
        @classmethod
        def collect(cls) -> Any:
            return ["kernel"], None

    module: Any = SimpleNamespace(TritonBundler=TritonBundler, __name__="triton_bundler")
    kernels._COLLECT.install_now(module, kernels._collect)
    assert TritonBundler.collect() == (["kernel"], None)
