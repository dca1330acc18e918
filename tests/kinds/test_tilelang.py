"""Test kernels of TileLang without TileLang: which files travel, what decides a fit, and what the hooks do to
functions of TileLang's form. `tests/engines` has the real package."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cachesvc_client.hooks import imports
from cachesvc_client.kinds.builds.flags import Doubt
from cachesvc_client.kinds.kind import KindState, ProcessCallbacks, RestoredFacts
from cachesvc_client.kinds.testing import Example, KindConformance
from cachesvc_client.kinds.tilelang import provenance
from cachesvc_client.kinds.tilelang.kernels import Kernels
from cachesvc_client.kinds.tilelang.kind import KIND, TileLangState
from cachesvc_client.kinds.tilelang.provenance import (
    Provenance,
    check_flags,
    check_source,
    compilers_here,
    facts_here,
)
from cachesvc_client.kinds.tilelang.versions import CPU, CUDA
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import CacheSvcError

KEY, HOST = "a1" * 32, "0" * 16
FOLDER = f"cachesvc/{HOST}/{KEY}/{'b2' * 8}"
OWN = f"0.1.15/linux-x86_64/kernels/{KEY}"
NAMES = ("params.json", "device_kernel.cu", "host_kernel.cu", "kernel_lib.so", "manifest.json", "made.json")
MADE = b'{"compilers":{"the compiler":"g++ 12.2.0"},"facts":{},"format":2}'
COMPILER = "the compiler"


class TestConformance(KindConformance):
    kind = KIND
    examples = tuple(
        Example(
            f"{FOLDER}/{name}",
            MADE if name == "made.json" else b"\x7fELF" + name.encode(),
            "ours",
            name == "made.json",
        )
        for name in NAMES
    )
    others = (
        *(f"{OWN}/{name}" for name in NAMES),
        *(f"{FOLDER}/params.pkl", f"{FOLDER}/kernel.py", f"{FOLDER}/kernel.cubin"),
        *(f"{FOLDER}/.manifest.json.1_2.tmp", f"0.1.15/linux-x86_64/.staging/{KEY}_1_2/params.json"),
        *(f"../{FOLDER}/kernel_lib.so", f"/{FOLDER}/kernel_lib.so", f"{FOLDER}/sub/kernel_lib.so"),
        *(f"{FOLDER}/../made.json", f"autotuner/{KEY}/best_config.json", f"{FOLDER}/kernel_libXso"),
    )  # fmt: skip

    def use(self, state: KindState, root: Path) -> set[str]:
        assert isinstance(state, TileLangState)
        assert (root / FOLDER).is_dir()
        state._kernels.loaded[FOLDER] = CPU
        return {f"{FOLDER}/{name}" for name in NAMES}

    def allowed(self, state: KindState) -> list[Path]:
        assert isinstance(state, TileLangState)
        return state._kernels.allowed


# What decides a fit ---------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the parts of an installed TileLang that the kind reads, and no compiler on the PATH."""
    folder = tmp_path / "site" / "tilelang"
    (folder / "lib").mkdir(parents=True)
    (folder / "src" / "tl_templates" / "cpp").mkdir(parents=True)
    for name in ("libtilelang.so", "libtvm_compiler.so", "libtvm_runtime.so"):
        (folder / "lib" / name).write_bytes(b"library")
    (folder / "src" / "tl_templates" / "cpp" / "common.h").write_text("#define X")
    modules = {"tilelang": ModuleType("tilelang"), "tvm_ffi": ModuleType("tvm_ffi")}
    vars(modules["tilelang"]).update(__version__="0.1.15", __file__=str(folder / "__init__.py"))
    vars(modules["tvm_ffi"]).update(__version__="0.1.12", get_global_func=lambda _, **__: None)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    (tmp_path / "bin").mkdir()
    for name in ("CXX", "CC", "CPATH", "LIBRARY_PATH", *os.environ):
        if name in ("CXX", "CC") or name.startswith(("TILELANG_", "TL_", "TVM_", "CPATH", "LIBRARY_")):
            monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return folder


def _compiler(
    tmp_path: Path, name: str = "g++", content: bytes = b"#!/bin/sh\nexit 0 # one compiler"
) -> None:
    (tmp_path / "bin" / name).write_bytes(content)
    (tmp_path / "bin" / name).chmod(0o755)


def test_versions_libraries_headers_and_variables_differ(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Provenance({COMPILER: "g++ 12.2.0"}, facts_here(CPU, {}))
    assert made.difference(facts_here(CPU, {}), {COMPILER: None}) == "", (
        "a host without a compiler differs in nothing"
    )
    assert made.difference(facts_here(CPU, {}), {COMPILER: "g++ 12.2.0"}) == ""
    reasons = [made.difference(facts_here(CPU, {}), {COMPILER: "clang++ 16.0.6"})]
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["tilelang"], "__version__", "0.1.16")
        reasons.append(made.difference(facts_here(CPU, {}), {COMPILER: None}))
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["tvm_ffi"], "__version__", "0.1.11")
        reasons.append(made.difference(facts_here(CPU, {}), {COMPILER: None}))
    with monkeypatch.context() as patch:
        patch.setenv("TILELANG_OF_A_LATER_RELEASE", "hunter2")
        reasons.append(made.difference(facts_here(CPU, {}), {COMPILER: None}))
    for file in ("lib/libtilelang.so", "src/tl_templates/cpp/common.h"):
        before = (package / file).read_bytes()
        (package / file).write_bytes(before + b"changed")
        reasons.append(made.difference(facts_here(CPU, {}), {COMPILER: None}))
        (package / file).write_bytes(before)
    assert all(reasons) and len(set(reasons)) == len(reasons) == 6
    assert "hunter2" not in "".join(reasons), "the value of a variable is not kept"
    assert made.difference(facts_here(CPU, {}), {COMPILER: None}) == ""


def test_variables_that_change_no_code_are_no_difference(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = facts_here(CPU, {})
    monkeypatch.setenv("TILELANG_CACHE_DIR", "/elsewhere")
    monkeypatch.setenv("TILELANG_VERBOSE", "1")
    monkeypatch.setenv("TL_TEMPLATE_PATH", str(package / "3rdparty" / ".." / "src"))
    assert facts_here(CPU, {}) == before


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("variable", "value"),
    [
        *(("CPATH", "/opt/include"), ("CPLUS_INCLUDE_PATH", "/opt/include"), ("LIBRARY_PATH", "/opt/lib")),
        *(("TL_TEMPLATE_PATH", "/opt/templates"), ("TVM_LIBRARY_PATH", "/opt/tvm")),
    ],
)
def test_a_variable_that_names_other_files_is_a_doubt(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(Doubt, match=variable):
        facts_here(CPU, {})


@pytest.mark.usefixtures("package")
def test_a_program_that_changes_sources_is_a_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["tvm_ffi"], "get_global_func", lambda _, **__: object())
    with pytest.raises(Doubt, match="changes the source"):
        facts_here(CPU, {})


@pytest.mark.usefixtures("package")
def test_the_compiler_is_the_one_that_tilelang_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compilers_here(CPU)[COMPILER] is None
    _compiler(tmp_path, "c++", b"#!/bin/sh\nexit 0 # c++")
    first = compilers_here(CPU)[COMPILER]
    _compiler(tmp_path, "g++", b"#!/bin/sh\nexit 0 # g++")
    second = compilers_here(CPU)[COMPILER]
    monkeypatch.setenv("CC", str(tmp_path / "bin" / "c++"))
    assert first is not None and second is not None and first != second
    assert compilers_here(CPU)[COMPILER] == first


def test_flags_that_read_a_file_are_a_doubt() -> None:
    check_flags(["-O3 -march=native", "-DNAME=1", "-ffast-math", "-std=c++20", "-Wall"])
    for flag in (
        "-I/opt/x",
        "-include x.h",
        "-isystem /x",
        "-L/x",
        "-lm",
        "-Wl,-rpath,/x",
        "x.o",
        "@x",
        "-D X",
    ):
        with pytest.raises(Doubt):
            check_flags(["-O2", flag])


@pytest.mark.usefixtures("package")
def test_a_source_that_includes_the_users_files_is_a_doubt() -> None:
    check_source(b"#include <tl_templates/cpp/common.h>\n  # include <math.h>\n#include <cmath>\nint x;")
    for line in (
        *(b'#include "x.h"', b"#include <x.h>", b"#include HEADER", b"#include <tl_templates/cpp/other.h>"),
        *(b"#include <tl_templates/../x.h>", b'asm(".incbin \\"x\\"");', b'asm(".include \\"x\\"");'),
    ):
        with pytest.raises(Doubt):
            check_source(b"int x;\n" + line + b"\n")


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"format":1}', b'{"format":2}', b"\xff", b"1"])
def test_a_file_of_another_form_is_refused(data: bytes) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        Provenance.decode(data)


def test_what_a_kernel_was_made_with_survives_its_file() -> None:
    made = Provenance({COMPILER: "g++ 12.2.0"}, {"TileLang": "0.1.15"})
    assert Provenance.decode(made.encode()) == made


# For a GPU -------------------------------------------------------------------------------------


class Registered:
    """Is TVM's registry of functions."""

    def __init__(self) -> None:
        self.functions: dict[str, object] = {}

    def __call__(self, name: str, **_: Any) -> object:
        return self.functions.get(name)


@pytest.fixture
def toolkit(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registered:
    """Make what the kind reads of TileLang for CUDA, a CUDA toolkit, and a compiler. Return the registry,
    with TileLang's own functions."""
    for name in ("src/tl_templates/cuda/gemm.h", "3rdparty/cutlass/include/cute.hpp"):
        (package / name).parent.mkdir(parents=True)
        (package / name).write_text("#define X")
    (package / "3rdparty/tvm/include/tvm/runtime").mkdir(parents=True)
    (package / "3rdparty/tvm/include/tvm/runtime/base.h").write_text("")
    (tmp_path / "cuda" / "bin").mkdir(parents=True)
    _compiler(tmp_path)
    (tmp_path / "cuda" / "bin" / "nvcc").write_bytes(b"#!/bin/sh\nexit 0 # nvcc")
    (tmp_path / "cuda" / "bin" / "nvcc").chmod(0o755)
    environment = ModuleType("tilelang.env")
    environment.CUDA_HOME = str(tmp_path / "cuda")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tilelang.env", environment)
    registered = Registered()
    registered.functions = {
        "tilelang_callback_cuda_compile": object(),
        "tilelang_callback_cuda_validate": object(),
    }
    monkeypatch.setattr(sys.modules["tvm_ffi"], "get_global_func", registered)
    for name in ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "TL_CUTLASS_PATH"):
        monkeypatch.delenv(name, raising=False)
    return registered


def test_a_compiler_a_toolkit_or_headers_that_differ_are_a_difference(
    toolkit: Registered, package: Path, tmp_path: Path
) -> None:
    callbacks = dict(toolkit.functions)
    made = Provenance(
        {name: str(one) for name, one in compilers_here(CUDA).items()}, facts_here(CUDA, callbacks)
    )

    def difference() -> str:
        provenance._sizes.cache_clear()
        return made.difference(facts_here(CUDA, callbacks), compilers_here(CUDA))

    assert len(made.compilers) == 3 and difference() == ""
    reasons = []
    for file in (
        *(tmp_path / "cuda" / "bin" / "nvcc", tmp_path / "bin" / "g++"),
        *(package / "src/tl_templates/cuda/gemm.h", package / "3rdparty/cutlass/include/cute.hpp"),
    ):
        before = file.read_bytes()
        file.write_bytes(before + b"changed")
        reasons.append(difference())
        file.write_bytes(before)
    assert all(reasons) and len(set(reasons)) == 4 and difference() == ""
    (tmp_path / "cuda" / "bin" / "nvcc").unlink()
    (tmp_path / "bin" / "g++").write_bytes(b"#!/bin/sh\nexit 0 # another one")
    assert difference() == "", "a host without nvcc compiles nothing, whatever else it has"


def test_variables_may_name_folders_of_the_toolkit_and_no_others(
    toolkit: Registered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVIDIA's images set LIBRARY_PATH so: on the first H100 no kernel was kept."""
    callbacks = dict(toolkit.functions)
    monkeypatch.setenv("LIBRARY_PATH", str(tmp_path / "cuda" / "lib64" / "stubs"))
    facts_here(CUDA, callbacks)
    for name, value in (("LIBRARY_PATH", "/opt/lib"), ("CPATH", "."), ("NVCC_APPEND_FLAGS", "-g")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            with pytest.raises(Doubt, match=name):
                facts_here(CUDA, callbacks)
    monkeypatch.setenv("LIBRARY_PATH", "/opt/lib")
    (tmp_path / "cuda" / "bin" / "nvcc").unlink()
    facts_here(CUDA, callbacks)
    monkeypatch.setenv("TL_CUTLASS_PATH", "/opt/cutlass")
    with pytest.raises(Doubt, match="TL_CUTLASS_PATH"):
        facts_here(CUDA, callbacks)


def test_a_program_that_compiles_in_another_way_is_a_doubt(toolkit: Registered, state: TileLangState) -> None:
    with pytest.raises(Doubt, match="cuda_compile"):
        facts_here(CUDA, {})
    state._kernels.note_callbacks(None)
    callbacks = state._kernels._callbacks
    facts_here(CUDA, callbacks)
    toolkit.functions["tilelang_callback_cuda_compile"] = object()
    with pytest.raises(Doubt, match="cuda_compile"):
        facts_here(CUDA, callbacks)
    toolkit.functions |= callbacks | {"tilelang_callback_cuda_postproc": object()}
    with pytest.raises(Doubt, match="cuda_postproc"):
        facts_here(CUDA, callbacks)


@pytest.mark.usefixtures("toolkit")
def test_sources_for_a_gpu_include_the_toolkits_headers_and_tvms() -> None:
    check_source(b'#include <cuda.h>\n#include <tl_templates/cuda/gemm.h>\n#include "tvm/runtime/base.h"\n')
    check_source(b'#ifdef __OBJC__\n#include <Metal/Metal.h>\n#endif\n#include "tvm/ffi/c_api.h"\n')
    check_flags(["--use_fast_math", "-lineinfo", "--ptxas-options=--register-usage-level=5"])
    for line in (
        b'#include "tvm/own.h"',
        b'#include "tvm/../x.h"',
        b"#include <mine.cuh>",
        b'#include "cuda.h"',
    ):
        with pytest.raises(Doubt):
            check_source(line + b"\n")
    for flag in ("-Xcompiler -include", "--options-file=x", "-I/opt"):
        with pytest.raises(Doubt):
            check_flags([flag])


@pytest.mark.usefixtures("toolkit")
@pytest.mark.parametrize(
    ("source", "options", "code", "kept"),
    [
        (f"{NAMES[1]} of this process", ["-std=c++20", "-I{package}/src"], b"executable.so of", True),
        ("another source", [], b"executable.so of", False),
        (f"{NAMES[1]} of this process", ["-I/opt/include"], b"executable.so of", False),
        (f"{NAMES[1]} of this process", ["--options-file=x"], b"executable.so of", False),
        (f"{NAMES[1]} of this process", [], b"code that is not in the library", False),
        (None, [], b"", False),
    ],
)
def test_a_kernel_for_a_gpu_is_kept_if_nvcc_compiled_its_source_here(
    package: Path,
    tmp_path: Path,
    cache: Cache,
    state: TileLangState,
    source: str | None,
    options: list[str],
    code: bytes,
    kept: bool,
) -> None:
    def compile_cuda(code: str, target_format: str = "ptx", arch: Any = None, options: Any = None) -> bytes:
        del code, target_format, arch, options
        return made

    made = code
    state._kernels.note_callbacks(None)
    cache.library = "executable.so"
    _compile(state, ON_GPU)
    if source is not None:
        words = {"options": [option.format(package=package) for option in options]}
        assert state._kernels.compile_for_gpu(imports.Call(compile_cuda, (source, "cubin"), words)) == code
    cache.save(_kernel(**vars(ON_GPU)))
    names = {path.rpartition("/")[2] for path in state.used_files(tmp_path / "root")}
    assert names == (({*NAMES, "executable.so"} - {"kernel_lib.so"}) if kept else set())
    assert not state.has_host_code() and kept == state.activity().opened


def test_llvm_for_the_hosts_part_is_left_to_tilelang(cache: Cache) -> None:
    host = SimpleNamespace(kind=SimpleNamespace(name="llvm"))
    assert cache.look_up(SimpleNamespace(**{**vars(ON_GPU), "target_host": host}), pytest.fail) is None


def test_a_process_that_attaches_after_tilelang_takes_nothing_for_a_gpu(
    toolkit: Registered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program may have put its own functions in the place of TileLang's before."""
    monkeypatch.setitem(sys.modules, "tilelang.cuda.backend", ModuleType("tilelang.cuda.backend"))
    late = TileLangState()
    late.install_hooks(SimpleNamespace(before_compile=lambda: None, noting=lambda body: body))  # type: ignore[arg-type]
    assert toolkit.functions and not late._kernels._callbacks
    imports.disarm()


# Hooks ----------------------------------------------------------------------------------------

CONTEXT = SimpleNamespace(target=SimpleNamespace(kind=SimpleNamespace(name="c")), execution_backend="cython")
ON_GPU = SimpleNamespace(
    target=SimpleNamespace(kind=SimpleNamespace(name="cuda")),
    target_host=SimpleNamespace(kind=SimpleNamespace(name="c")),
    execution_backend="tvm_ffi",
)


class Cache:
    """Has functions of the form of TileLang's ``KernelCache``, over a folder, through the hooks of a state.

    ``loads``: whether a folder with all files is loaded. ``faster``: has another process put its files there
    first."""

    def __init__(self, root: Path, kernels: Kernels) -> None:
        self.root, self.kernels = root, kernels
        self.loads, self.faster, self.library = True, False, "kernel_lib.so"
        self.folders: list[Path] = []
        self.on_load: Callable[[], object] = lambda: None

    def path(self, key: str) -> str:
        call = imports.Call(lambda key: str(self.root / OWN / ".." / key), (key,), {})
        return str(Path(os.path.normpath(self.kernels.folder_of(call))))

    _get_cache_path = path

    def original(
        self,
        key: str,
        backend_context: Any,
        out_idx: Any = None,
        pass_configs: Any = None,
        compile_flags: Any = None,
    ) -> Any:
        del backend_context, out_idx, pass_configs, compile_flags
        folder = Path(self.path(key))
        self.folders.append(folder)
        self.on_load()
        whole = all((folder / name).is_file() for name in NAMES[:5])
        return f"loaded {folder.name}" if whole and (self.loads or folder.is_relative_to(self.root)) else None

    def look_up(self, context: Any = CONTEXT, wait: Any = lambda: None, **options: Any) -> Any:
        return self.kernels.look_up(
            ProcessCallbacks(wait, lambda _: None), imports.Call(self.original, (KEY, context), options)
        )

    def save(self, kernel: Any) -> None:
        def write_manifest(cache_path: str) -> None:
            files = [path for path in Path(cache_path).iterdir() if path.name != "manifest.json"]
            entries = {path.name: {"sha256": Digest.of(path.read_bytes()).hex} for path in files}
            (Path(cache_path) / "manifest.json").write_text(json.dumps({"files": entries}))

        def save(self: Cache, key: str, kernel: Any) -> None:
            del kernel
            staging = self.root / "staging"
            staging.mkdir(parents=True)
            for name in (*NAMES[:3], self.library):
                (staging / name).write_bytes(f"{name} of this process".encode())
            self.kernels.write_manifest(imports.Call(write_manifest, (str(staging),), {}))
            if self.faster:
                (staging / "kernel_lib.so").write_bytes(b"of another process")
                write_manifest(str(staging))
            shutil.copytree(staging, self.path(key))

        self.kernels.save(imports.Call(save, (self, KEY, kernel), {}))


@pytest.fixture
def state() -> TileLangState:
    state = TileLangState()
    state.set_environment({"cpu_isa": "avx2"})
    return state


@pytest.fixture
def cache(tmp_path: Path, state: TileLangState) -> Cache:
    return Cache(tmp_path / "tilelang", state._kernels)


@pytest.fixture
def restored(package: Path, tmp_path: Path, state: TileLangState) -> Path:
    """Install an entry's kernel that fits this process, and accept it."""
    assert package.is_dir()
    root = tmp_path / "root"
    (root / FOLDER).mkdir(parents=True)
    for name in NAMES:
        (root / FOLDER / name).write_bytes(b"of the entry")
    (root / FOLDER / "made.json").write_bytes(
        Provenance({COMPILER: "g++ 12.2.0"}, facts_here(CPU, {})).encode()
    )
    state.accept(root, [f"{FOLDER}/{name}" for name in NAMES])
    return root


def _kernel(**changes: Any) -> SimpleNamespace:
    attributes = {**vars(CONTEXT), "compile_flags": None, "pass_configs": {}, **changes}
    return SimpleNamespace(**attributes)


def _compile(state: TileLangState, kernel: Any = CONTEXT) -> tuple[int, list[str]]:
    """Compile a kernel. Return how much was counted, and the reasons of a report."""
    from cachesvc_client.hooks import counters

    def original(self: Any, tilelang_func: Any) -> str:
        del self, tilelang_func
        return "compiled"

    before = counters.counts["tilelang.compilations"]
    function = SimpleNamespace(attrs={"global_symbol": "main"})
    answer = state._kernels.compile_kernel(imports.Call(original, (kernel, function), {}))
    assert answer == "compiled"
    return counters.counts["tilelang.compilations"] - before, list(state.explain(RestoredFacts({}, [{}])))


def test_tilelang_loads_the_folder_of_an_entry_and_the_use_is_counted(
    restored: Path, cache: Cache, state: TileLangState
) -> None:
    waits: list[int] = []
    assert cache.look_up(wait=lambda: waits.append(1)) is not None
    assert cache.folders == [restored / FOLDER] and waits == [1]
    assert state.used_paths() == {f"{FOLDER}/kernel_lib.so"} and state.has_host_code()
    assert state.used_files(restored) == {f"{FOLDER}/{name}" for name in NAMES}
    assert list(state.explain(RestoredFacts({}, [{}]))) == []
    assert cache.path(KEY) == str(cache.root / OWN), "only a look-up is led to the entry"


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("backend", ["nvrtc", "cutedsl", "cython"])
def test_other_backends_for_a_gpu_are_left_to_tilelang_and_wait_for_nothing(
    cache: Cache, state: TileLangState, backend: str
) -> None:
    context = SimpleNamespace(**{**vars(ON_GPU), "execution_backend": backend})
    assert cache.look_up(context, pytest.fail) is None
    assert cache.folders == [cache.root / OWN] and _compile(state, context) == (0, [])


@pytest.mark.usefixtures("restored")
def test_a_kernel_that_fits_nothing_is_compiled_and_the_report_says_why(
    tmp_path: Path, cache: Cache, state: TileLangState, monkeypatch: pytest.MonkeyPatch
) -> None:
    _compiler(tmp_path)
    assert cache.look_up() is None and cache.folders == [cache.root / OWN]
    count, [reason] = _compile(state)
    assert count == 1 and "the compiler is g++ sha256:" in reason and "g++ 12.2.0 there" in reason
    (tmp_path / "bin" / "g++").unlink()
    monkeypatch.setenv("CPATH", "/opt/include")
    cache.look_up()
    assert "CPATH" in _compile(state)[1][-1]
    monkeypatch.delenv("CPATH")
    cache.look_up(compile_flags=["-I/opt/include"])
    assert "-I/opt/include" in _compile(state)[1][-1]
    assert list(state.explain(RestoredFacts({}, []))) == [], "without a restore there is nothing to explain"


def test_a_compile_without_a_look_up_is_reported(state: TileLangState) -> None:
    assert _compile(state) == (1, ["TileLang compiled main: it did not look into its cache"])


@pytest.mark.usefixtures("restored")
def test_a_kernel_that_does_not_load_is_looked_for_in_tilelangs_own_folder(
    cache: Cache, state: TileLangState
) -> None:
    cache.loads = False
    assert cache.look_up() is None
    assert cache.folders[-1] == cache.root / OWN and state.used_paths() == set()
    assert "did not load the files of the entry" in _compile(state)[1][0]
    shutil.copytree(cache.folders[0], cache.root / OWN)
    assert cache.look_up() is not None and state.used_paths() == set()


def test_an_error_of_a_strict_restore_reaches_tilelang(cache: Cache) -> None:
    def fail() -> None:
        raise CacheSvcError("not restored")

    with pytest.raises(CacheSvcError):
        cache.look_up(wait=fail)


@pytest.mark.usefixtures("restored")
def test_tilelang_asks_for_no_compiler_while_it_loads_a_kernel_of_an_entry(
    cache: Cache, state: TileLangState
) -> None:
    def compiler() -> str | None:
        answer: str | None = state._kernels.compiler(imports.Call(lambda: None, (), {}))
        return answer

    cache.on_load = lambda: answers.append(compiler())
    answers = [compiler()]
    assert cache.look_up() is not None
    assert [*answers, compiler()] == [None, "c++", None]


@pytest.mark.usefixtures("package")
def test_a_kernel_that_was_compiled_here_is_kept(tmp_path: Path, cache: Cache, state: TileLangState) -> None:
    _compiler(tmp_path)
    root = tmp_path / "root"
    cache.save(_kernel())
    assert state.used_files(root, left=True) == set()
    paths = state.used_files(root)
    assert {path.rpartition("/")[2] for path in paths} == set(NAMES) and paths == KIND.rules.files_in(root)
    assert {path.split("/")[2] for path in paths} == {KEY}
    assert state.used_paths() == set(), "a use is a kernel that was loaded"
    [made] = [Provenance.decode((root / path).read_bytes()) for path in paths if path.endswith("made.json")]
    assert made.compilers[COMPILER].startswith("g++ sha256:") and made.facts["TileLang"] == "0.1.15"
    shutil.rmtree(cache.root)
    assert state.used_files(root) == paths, "the copy is whole without TileLang's own folder"
    library = root / next(path for path in paths if path.endswith(".so"))
    library.write_bytes(b"planted")
    assert state.used_files(root) == set()


@pytest.mark.usefixtures("package")
def test_files_that_another_process_wrote_are_not_kept(
    tmp_path: Path, cache: Cache, state: TileLangState
) -> None:
    _compiler(tmp_path)
    cache.faster = True
    cache.save(_kernel())
    assert state.used_files(tmp_path / "root") == set()


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    "change", [{"compile_flags": ["-I/opt/x"]}, {"target": ON_GPU.target}, {"compiler": False}]
)
def test_a_kernel_that_nobody_can_tell_is_not_kept(
    tmp_path: Path, cache: Cache, state: TileLangState, change: dict[str, Any]
) -> None:
    if change.pop("compiler", True):
        _compiler(tmp_path)
    cache.save(_kernel(**change))
    assert state.used_files(tmp_path / "root") == set()


def test_a_wrong_kernel_is_forgotten_and_loaded_no_more(
    restored: Path, cache: Cache, state: TileLangState
) -> None:
    assert cache.look_up() is not None
    state.forget([f"{FOLDER}/kernel_lib.so"], set())
    assert state.used_files(restored) == set() and cache.look_up() is None
