"""Test kernels of DeepGEMM without DeepGEMM and without a GPU: which files travel, what decides a fit, and in
which folder DeepGEMM finds them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from cachesvc_client.hooks import counters, imports, kind_counts
from cachesvc_client.kinds.builds.flags import Doubt
from cachesvc_client.kinds.deepgemm.kernels import Kernels
from cachesvc_client.kinds.deepgemm.kind import KIND, DeepGemmState
from cachesvc_client.kinds.deepgemm.toolchain import key_of
from cachesvc_client.kinds.folders import Folders
from cachesvc_client.kinds.kind import KindState, ProcessCallbacks, RestoredFacts
from cachesvc_client.kinds.testing import Example, KindConformance

KEY = "a1" * 16
NAME = f"kernel.sm90_fp8_gemm_1d2d.{'b2' * 16}"
OTHER = f"kernel.smxx_layout.{'c3' * 16}"


class TestConformance(KindConformance):
    kind = KIND
    examples = (
        Example(f"cachesvc/{KEY}/{NAME}/kernel.cu", b"// Includes' hash value: 12", "ours"),
        Example(f"cachesvc/{KEY}/{NAME}/kernel.cubin", b"\x7fELF" + bytes(range(256)), "ours", last=True),
    )
    others = (
        *(
            f"cache/{NAME}/kernel.cu",
            f"jit/{KEY}/cache/{NAME}/kernel.cubin",
            f"cachesvc/{KEY}/{NAME}/kernel.ptx",
        ),
        *(
            f"cachesvc/{KEY[:-1]}/{NAME}/kernel.cu",
            f"cachesvc/{KEY}/kernel.x/kernel.cu",
            "tmp/12-ab/kernel.cu",
        ),
        f"cachesvc/{KEY}/../{KEY}/{NAME}/kernel.cu",
    )

    def use(self, state: KindState, root: Path) -> set[str]:
        assert isinstance(state, DeepGemmState)
        paths = {example.path for example in self.examples}
        state.use_folder(root)
        state.accept(root, paths)
        kernels = state._kernels
        kernels._key, kernels._folder, kernels._package = KEY, root / "jit" / KEY, root
        for name in ("cache", "tmp"):
            (kernels._folder / name).mkdir(parents=True)
        kernels._give()
        return paths

    def allowed(self, state: KindState) -> list[Path]:
        assert isinstance(state, DeepGemmState)
        return state._kernels.allowed


def program(text: str) -> str:
    """Return a program that runs, with a text in its bytes."""
    return f"#!/bin/sh\nexit 0 # {text}\n"


class Host:
    """A machine with DeepGEMM's package and a program that stands for nvcc, where a process has the hooks."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place, self.monkeypatch = place, monkeypatch
        self.package, self.root = place / "site" / "deep_gemm", place / "root"
        self.write("site/deep_gemm/include/deep_gemm/impls/gemm.cuh", "#include <cute/tensor.hpp>")
        self.write("site/deep_gemm/include/cute/tensor.hpp", "// CUTLASS")
        self.nvcc = self.write("cuda/bin/nvcc", program("release 13.0, V13.0.88"))
        self.ptxas = self.write("cuda/bin/ptxas", program("ptxas"))
        self.root.mkdir()
        for name in ("DG_JIT_CACHE_DIR", "SGLANG_DG_CACHE_DIR", "DG_JIT_USE_NVRTC", "NVCC_CCBIN"):
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)
        monkeypatch.setenv("CUDA_HOME", str(place / "cuda"))
        self.state = DeepGemmState()
        self.waits = 0
        # The process of another host has counted nothing.
        counters.counted_elsewhere.clear()
        counters.counts.pop("deepgemm.compilations", None)
        monkeypatch.setitem(kind_counts.declared, KIND.name, KIND.counts)

    def write(self, name: str, text: str) -> Path:
        path = self.place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def wait(self) -> None:
        self.waits += 1

    def import_package(self) -> None:
        """Attach, and import the package as a program does."""
        callbacks = ProcessCallbacks(lambda: None, lambda _: None, restored=self.wait)
        self.state.install_hooks(callbacks)
        self.state.use_folder(self.root)
        module = ModuleType("deep_gemm")
        module.__file__ = str(self.package / "__init__.py")
        [callback] = imports._waiting["deep_gemm"]
        callback(module)

    @property
    def folder(self) -> Path | None:
        """The folder in which DeepGEMM would look now; ``None`` for its own."""
        named = os.environ.get("DG_JIT_CACHE_DIR")
        return Path(named) if named else None

    def compile(self, name: str = NAME, cubin: bytes = b"cubin") -> None:
        """Leave what DeepGEMM leaves."""
        assert self.folder is not None
        kernel = self.folder / "cache" / name
        kernel.mkdir(parents=True)
        (kernel / "kernel.cu").write_text("source")
        (kernel / "kernel.cubin").write_bytes(cubin)

    def found(self, name: str = NAME) -> bytes | None:
        """The machine code that DeepGEMM would load without nvcc."""
        kernel = Path(str(self.folder), "cache", name)
        assert sorted(os.listdir(kernel)) == ["kernel.cu", "kernel.cubin"] if kernel.exists() else True
        return (kernel / "kernel.cubin").read_bytes() if kernel.exists() else None


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(counters, "counted_elsewhere", {})
    imports.disarm()
    return Host(tmp_path / "host", monkeypatch)


def _entry(host: Host, root: Path) -> set[str]:
    """Compile a kernel on a host and return its files, which lie in ``root``."""
    host.import_package()
    host.compile()
    paths = host.state.used_files(root)
    assert {path.rpartition("/")[2] for path in paths} == {"kernel.cu", "kernel.cubin"}
    return paths


def _restored(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Host, set[str]]:
    """Return another host, in another place, to which the entry of the first was restored."""
    paths = _entry(host, tmp_path / "entry")
    imports.disarm()
    other = Host(tmp_path / "other", monkeypatch)
    for path in paths:
        other.write(f"root/{path}", "")
        (other.root / path).write_bytes((tmp_path / "entry" / path).read_bytes())
    return other, paths


def test_a_kernel_is_found_on_another_host_in_another_folder(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, paths = _restored(host, tmp_path, monkeypatch)
    other.state.accept(other.root, paths)
    other.import_package()
    assert other.waits == 1 and other.state.used_files(tmp_path / "early") == paths
    assert other.state.used_paths() == set(), "nobody has looked yet"
    assert other.found() == b"cubin"
    assert other.state.used_paths() == {path for path in paths if path.endswith(".cubin")}
    assert other.state.activity() == (1, 0) and list(other.state.explain(RestoredFacts({}, [{}]))) == []
    assert other.state.used_files(tmp_path / "again") == paths, "a replay has all files of the entry"


def test_what_comes_after_the_import_is_found_too(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, paths = _restored(host, tmp_path, monkeypatch)
    other.import_package()
    assert other.found() is None
    other.state.accept(other.root, paths)
    assert other.found() == b"cubin"
    other.state.forget(paths, set())
    assert other.found() is None and other.state.used_files(tmp_path / "again") == set()


def test_a_kernel_that_is_compiled_here_is_counted_and_the_report_says_so(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, paths = _restored(host, tmp_path, monkeypatch)
    other.state.accept(other.root, paths)
    observer = counters.Observer()
    other.import_package()
    assert observer.snapshot().compilations == 0
    other.compile(OTHER)
    (Path(str(other.folder)) / "cache" / "kernel.half.00112233445566778899").mkdir()
    observed = observer.snapshot()
    assert (
        observed.counts == {"deepgemm": {"compilations": 1}}
        and observed.compilations == 1
        and other.state.activity() == (0, 1)
    )
    assert counters.Observer().snapshot().compilations == 0, "a later observer counts what comes later"
    [reason] = other.state.explain(RestoredFacts({}, [{}]))
    assert reason.startswith("DeepGEMM compiled 1 kernel: ")
    assert {path.split("/")[2] for path in other.state.used_files(tmp_path / "new")} == {NAME, OTHER}


DIFFERENCES: dict[str, Callable[[Host], object]] = {
    "another patch of nvcc": lambda host: host.write("cuda/bin/nvcc", program("release 13.0, V13.0.89")),
    "another ptxas": lambda host: host.write("cuda/bin/ptxas", program("another ptxas")),
    "CUTLASS patched": lambda host: host.write("site/deep_gemm/include/cute/tensor.hpp", "// patched"),
    "a header more": lambda host: host.write("site/deep_gemm/include/cutlass/x.h", ""),
    "a header renamed": lambda host: (host.package / "include/cute/tensor.hpp").rename(
        host.package / "include/cute/tensor2.hpp"
    ),
    "flags of nvcc": lambda host: host.monkeypatch.setenv("NVCC_APPEND_FLAGS", "-use_fast_math"),
    "another compiler of the host": lambda host: host.monkeypatch.setenv("NVCC_CCBIN", "/nowhere/g++"),
}


@pytest.mark.parametrize("what", DIFFERENCES)
def test_what_deepgemms_own_digest_leaves_out_decides(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    other, paths = _restored(host, tmp_path, monkeypatch)
    DIFFERENCES[what](other)
    other.state.accept(other.root, paths)
    other.import_package()
    assert other.folder is not None and other.found() is None


DOUBTS: dict[str, tuple[Callable[[Host], object], str]] = {
    "NVRTC": (lambda host: host.monkeypatch.setenv("DG_JIT_USE_NVRTC", "1"), "NVRTC compiles its kernels"),
    "a folder of headers": (lambda host: host.monkeypatch.setenv("CPATH", "/opt"), "the variable CPATH"),
    "options from a file": (
        lambda host: host.monkeypatch.setenv("NVCC_APPEND_FLAGS", "--options-file x"),
        "options-file",
    ),
    "no nvcc": (lambda host: host.nvcc.unlink(), "there is no nvcc"),
    "no headers": (
        lambda host: [path.unlink() for path in (host.package / "include").rglob("*.*")],
        "has no headers",
    ),
    "a folder of the user's": (
        lambda host: host.monkeypatch.setenv("DG_JIT_CACHE_DIR", "/mine"),
        "DG_JIT_CACHE_DIR names a folder of yours",
    ),
    "a folder of the user's for SGLang": (
        lambda host: host.monkeypatch.setenv("SGLANG_DG_CACHE_DIR", "/mine"),
        "SGLANG_DG_CACHE_DIR names a folder of yours",
    ),
}


@pytest.mark.parametrize("what", DOUBTS)
def test_in_doubt_deepgemm_keeps_its_own_folder_and_the_report_says_why(host: Host, what: str) -> None:
    change, words = DOUBTS[what]
    change(host)
    before = host.folder
    host.import_package()
    assert host.folder == before and not host.state.has_opened()
    [reason] = host.state.explain(RestoredFacts({}, [{}]))
    assert reason.startswith("DeepGEMM finds no kernels of an entry: ") and words in reason


def test_a_folder_that_vllm_chose_is_not_the_users(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM sets the variable before it imports DeepGEMM, its own or the one that is installed."""
    module = ModuleType("vllm.third_party.deep_gemm")
    module.__file__ = str(host.package / "__init__.py")
    wrapper = ModuleType("vllm.utils.deep_gemm")
    vars(wrapper)["_import_deep_gemm"] = lambda: module
    for name in ("vllm", "vllm.utils"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "vllm.utils.deep_gemm", wrapper)
    host.state.install_hooks(ProcessCallbacks(lambda: None, lambda _: None, restored=host.wait))
    host.state.use_folder(host.root)
    monkeypatch.setenv("DG_JIT_CACHE_DIR", "/root/.cache/vllm/deep_gemm")
    assert wrapper._import_deep_gemm() is module
    assert wrapper._import_deep_gemm() is module
    assert host.waits == 1 and host.folder is not None and host.folder.is_relative_to(host.root)
    vars(wrapper)["_import_deep_gemm"] = None


def test_without_a_restore_deepgemm_is_left_alone(host: Host) -> None:
    """As where the node store cannot be opened: then no folder was decided."""
    Kernels("", None).open(ModuleType("deep_gemm"))
    assert host.folder is None


def test_nothing_is_kept_that_was_compiled_while_the_toolchain_changed(host: Host, tmp_path: Path) -> None:
    host.import_package()
    host.compile()
    host.write("cuda/bin/nvcc", program("release 13.0, V13.0.89"))
    assert host.state.used_files(tmp_path / "entry") == set()


def test_kernels_of_another_process_that_shares_the_folder_are_not_counted(
    host: Host, tmp_path: Path
) -> None:
    host.import_package()
    host.compile()
    imports.disarm()
    host.monkeypatch.delenv("DG_JIT_CACHE_DIR")
    host.state = DeepGemmState()
    host.import_package()
    assert host.found() == b"cubin" and host.state.activity() == (0, 0)
    assert len(host.state.used_files(tmp_path / "entry")) == 2


def test_a_child_process_does_not_inherit_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private = tmp_path / "v1" / "folders" / ("0a" * 32) / "inductor" / "deepgemm" / "jit" / KEY
    monkeypatch.setenv("DG_JIT_CACHE_DIR", str(private))
    Folders([KIND])
    assert "DG_JIT_CACHE_DIR" not in os.environ


def test_the_key_is_of_content_and_not_of_places(host: Host, tmp_path: Path) -> None:
    first = key_of(host.package)
    assert key_of(Host(tmp_path / "elsewhere", host.monkeypatch).package) == first
    with pytest.raises(Doubt, match="has no headers"):
        key_of(tmp_path)
