"""Test modules of FlashInfer's without FlashInfer: which files travel, what a key holds, what the hooks do.

A stand-in has the functions of FlashInfer's form that the kind uses; it compiles a line of C with ninja and
the C compiler, under the name of nvcc. `tests/engines` has the real package and the real nvcc."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cachesvc_client.hooks import counters, imports
from cachesvc_client.kinds.builds.flags import Doubt
from cachesvc_client.kinds.flashinfer.kind import KIND, FlashInferState
from cachesvc_client.kinds.flashinfer.request import Toolkit, read_spec
from cachesvc_client.kinds.kind import KindState, ProcessCallbacks, RestoredFacts
from cachesvc_client.kinds.testing import NOT_LOADABLE, Example, KindConformance
from cachesvc_client.wire.errors import Corrupt

FOLDER = f"cachesvc/{'0' * 16}/{'a1' * 32}/{'b2' * 8}"
MODULE = "single_decode_with_kv_cache_dtype_q_f16_dtype_kv_f16_dtype_o_f16_head_dim_qk_128_posenc_0"


class TestConformance(KindConformance):
    kind = KIND
    examples = (
        Example(f"{FOLDER}/{MODULE}.so", b"\x7fELF" + bytes(range(256)), "ours"),
        Example(f"{FOLDER}/depends.json", b'{"compilers":{},"files":[],"format":1}', "ours", last=True),
    )
    others = (
        *(f"0.6.14/90a/cached_ops/{MODULE}/{MODULE}.so", f"0.6.14/90a/cached_ops/{MODULE}/build.ninja"),
        *(f"0.6.14/90a/generated/{MODULE}.cu", f"{FOLDER}/kernel.cubin", f"{FOLDER}/{MODULE}.o"),
        *(f"{FOLDER}/.so", f"{FOLDER}/../depends.json", f"{FOLDER}/sub/{MODULE}.so", "cachesvc/cachesvc.so"),
        *(f"../{FOLDER}/{MODULE}.so", f"/{FOLDER}/{MODULE}.so", f"{FOLDER}/{'x' * 251}.so"),
    )

    def use(self, state: KindState, root: Path) -> set[str]:
        assert isinstance(state, FlashInferState)
        state._modules.loaded[f"{FOLDER}/{MODULE}.so"] = root / FOLDER / f"{MODULE}.so"
        return {f"{FOLDER}/{MODULE}.so", f"{FOLDER}/depends.json"}

    def allowed(self, state: KindState) -> list[Path]:
        assert isinstance(state, FlashInferState)
        return state._modules._accepted.all()


# A stand-in for FlashInfer --------------------------------------------------------------------


@dataclasses.dataclass
class Spec:
    """Has the fields and functions of FlashInfer's specification of a module."""

    name: str
    sources: list[Path]
    extra_cflags: list[str] | None = None
    extra_cuda_cflags: list[str] | None = None
    extra_ldflags: list[str] | None = None
    extra_include_dirs: list[Path] | None = None
    is_class: bool = False
    needs_device_linking: bool = False
    post_load_adapter: Any = None
    embedded_cubin_factory: Any = None
    extra_cuda_cflags_by_source: Any = None
    is_aot: dataclasses.InitVar[bool] = False
    """No field of the specification, as FlashInfer's property is none."""

    def __post_init__(self, is_aot: bool) -> None:
        self.is_aot = is_aot

    @property
    def build_dir(self) -> Path:
        return Path(os.environ["HOME"]) / "cached_ops" / self.name

    def load(self, so_path: Path) -> int:
        """Load a library, under another path each time, since the loader keeps what it has loaded. Return its
        number."""
        copy = so_path.parent / f"{time.monotonic_ns()}.copy"
        shutil.copy(so_path, copy)
        try:
            return int(ctypes.CDLL(str(copy)).value())
        finally:
            copy.unlink()


class Package:
    """Has the parts of an installed FlashInfer that the kind uses, in ``folder``.

    ``runs``: how often ninja was started."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.runs = folder, 0
        self.architectures = {(9, "0a")}
        for name, text in (
            ("data/include/flashinfer/value.h", "#define VALUE 7\n"),
            ("data/cccl/cub/cub/cub.h", "#define CUB 1\n"),
            ("generated/decode.cu", "#include <flashinfer/value.h>\nint value(void) { return VALUE; }\n"),
        ):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)

    def spec(self, **changes: Any) -> Spec:
        fields = {"name": "decode", "sources": [self.folder / "generated" / "decode.cu"]}
        fields |= {"extra_cflags": ["-O3"], "extra_cuda_cflags": ["-O3", "-use_fast_math"]}
        return Spec(**fields | changes)

    def build_common_cflags(self, cuda_home: str, extra: list[Path] | None = None) -> list[str]:
        own = [f"-I{path}" for path in extra or ()]
        package = [f"-I{self.folder / 'data/cccl/cub'}", f"-isystem {self.folder / 'data/include'}"]
        return ["-DPy_LIMITED_API=0x03090000", *own, *package, f"-isystem {cuda_home}/include"]

    def run_ninja(self, workdir: Path, ninja_file: Path, verbose: bool) -> None:
        del verbose
        self.runs += 1
        command = ["ninja", "-C", str(workdir), "-f", str(ninja_file)]
        subprocess.run(command, check=True, capture_output=True)

    def build_and_load(self, state: FlashInferState, spec: Any, wait: Any = lambda: None) -> Any:
        """Call the hooked function of a specification, whose build calls the other one."""

        def original(spec: Any) -> Any:
            spec.build_dir.mkdir(parents=True, exist_ok=True)
            file = spec.build_dir / "build.ninja"
            text = self.ninja_file(spec)
            if not file.exists() or file.read_text() != text:
                file.write_text(text)
            state._modules.run_ninja(imports.Call(self.run_ninja, (spec.build_dir, file), {"verbose": False}))
            return spec.load(spec.build_dir / f"{spec.name}.so")

        return state._modules.build_and_load(
            ProcessCallbacks(wait, lambda _: None), imports.Call(original, (spec,), {})
        )

    def ninja_file(self, spec: Any) -> str:
        """Return a file for ninja in the form of ``cpp_ext.generate_ninja_build_for_op``."""
        folder = spec.build_dir.resolve()
        home = os.environ["CUDA_HOME"]
        flags = " ".join(self.build_common_cflags(home, spec.extra_include_dirs)).replace(
            "-use_fast_math", ""
        )
        lines = [
            "rule cuda_compile",
            # nvcc's own list has the headers behind -isystem.
            f"  command = {home}/bin/nvcc -x c -fPIC -MD -MF $out.d {flags} -c $in -o $out",
            *("  depfile = $out.d", "  deps = gcc", "rule compile"),
            f"  command = c++ -MMD -MF $out.d {flags} -fPIC -c $in -o $out",
            *("  depfile = $out.d", "  deps = gcc", "rule link", "  command = c++ -shared $in -o $out"),
        ]
        objects = [folder / f"generated_{source.name}.o" for source in spec.sources]
        for source, target in zip(spec.sources, objects, strict=True):
            rule = "cuda_compile" if source.suffix == ".cu" else "compile"
            lines.append(f"build {target}: {rule} {source.resolve()}")
        lines.append(f"build {folder / spec.name}.so: link {' '.join(map(str, objects))}")
        return "\n".join([*lines, f"default {folder / spec.name}.so", ""])


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    """Make a stand-in of FlashInfer, a toolkit of CUDA whose nvcc is the C compiler, and an empty home."""
    for name in list(os.environ):
        if name.startswith(("FLASHINFER_", "NVCC_", "CUDA_")) or name in (
            "CXX",
            "CC",
            "CPATH",
            "LIBRARY_PATH",
        ):
            monkeypatch.delenv(name, raising=False)
    package = Package(tmp_path / "site" / "flashinfer")
    cuda = tmp_path / "cuda"
    (cuda / "bin").mkdir(parents=True)
    (cuda / "include").mkdir()
    (cuda / "include" / "cuda_runtime.h").touch()
    (cuda / "bin" / "nvcc").symlink_to(shutil.which("cc") or "cc")
    modules = {
        "flashinfer": {"__version__": "0.6.14"},
        "tvm_ffi": {"__version__": "0.1.10"},
        "flashinfer.compilation_context": {
            "CompilationContext": lambda: SimpleNamespace(TARGET_CUDA_ARCHS=package.architectures)
        },
        "flashinfer.jit.cpp_ext": {"build_common_cflags": package.build_common_cflags},
    }
    for name, members in modules.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("CUDA_HOME", str(cuda))
    _home(tmp_path / "home", monkeypatch)
    return package


def _home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    monkeypatch.setenv("HOME", str(folder))


def _state() -> FlashInferState:
    state = FlashInferState()
    state.set_environment({"cpu_isa": "avx2"})
    return state


def _key(spec: Any) -> str:
    return read_spec(spec).key(spec.name)


# Keys -----------------------------------------------------------------------------------------


def test_a_key_is_the_same_where_package_and_home_lie_elsewhere(
    package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = _key(package.spec())
    elsewhere = Package(tmp_path / "image" / "lib" / "flashinfer")
    monkeypatch.setattr(
        sys.modules["flashinfer.jit.cpp_ext"], "build_common_cflags", elsewhere.build_common_cflags
    )
    _home(tmp_path / "home2", monkeypatch)
    monkeypatch.setenv("CUDA_HOME", "/nonexistent")
    assert _key(elsewhere.spec()) == first


def test_a_key_differs_with_everything_that_decides_the_library(
    package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = package.spec().sources[0]
    keys = [
        _key(package.spec(**changes))
        for changes in (
            {},
            {"name": "decode2"},
            {"extra_cflags": ["-O2"]},
            {"extra_cuda_cflags": ["-O3"]},
            {"extra_cuda_cflags": ["-O3", "-use_fast_math", "-gencode=arch=compute_90a,code=sm_90a"]},
            {"extra_cuda_cflags_by_source": {source: ["-O1"]}},
            {"extra_ldflags": ["-lcublas"]},
            {"extra_include_dirs": [tmp_path]},
            {"needs_device_linking": True},
            {"sources": [source, source]},
        )
    ]
    for variable, value in (
        *(("FLASHINFER_EXTRA_CFLAGS", "-O1"), ("FLASHINFER_EXTRA_CUDAFLAGS", "-lineinfo")),
        *(("FLASHINFER_EXTRA_LDFLAGS", "-lnvrtc"), ("NVCC_APPEND_FLAGS", "-G"), ("CC", "clang")),
        *(("CXX", "clang++"), ("FLASHINFER_NVCC_LAUNCHER", "ccache"), ("LIBRARY_PATH", "/opt/lib")),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            keys.append(_key(package.spec()))
    for module, version in (("flashinfer", "0.6.15"), ("tvm_ffi", "0.1.11")):
        with monkeypatch.context() as patch:
            patch.setattr(sys.modules[module], "__version__", version)
            keys.append(_key(package.spec()))
    for architectures in ({(8, "0")}, {(9, "0a"), (8, "0")}):
        package.architectures = architectures
        keys.append(_key(package.spec()))
    package.architectures = {(9, "0a")}
    source.write_text("int value(void) { return 8; }\n")
    keys.append(_key(package.spec()))
    assert len(set(keys)) == len(keys) == 23


def test_a_field_that_changes_only_the_loaded_module_is_not_in_the_key(package: Package) -> None:
    assert _key(package.spec(post_load_adapter=print, is_class=True)) == _key(package.spec())


@pytest.mark.parametrize(
    ("changes", "variables", "reason"),
    [
        ({"embedded_cubin_factory": dict}, {}, "machine code that FlashInfer makes elsewhere"),
        ({"name": "../decode"}, {}, "its name"),
        ({"extra_cuda_cflags": ["@flags"]}, {}, "@flags"),
        ({"extra_cflags": ["-include x.h", "-isystem /opt"]}, {}, "-isystem"),
        ({"extra_ldflags": ["-lunknown"]}, {}, "unknown"),
        ({}, {"CPATH": "/opt/include"}, "CPATH"),
        ({}, {"NVCC_APPEND_FLAGS": "--options-file x"}, "--options-file"),
        ({}, {"FLASHINFER_EXTRA_CUDAFLAGS": "-ccbin /opt/g++"}, "-ccbin"),
    ],
)
def test_what_cannot_be_told_is_a_doubt(
    package: Package,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    variables: dict[str, str],
    reason: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Doubt, match=reason):
        read_spec(package.spec(**changes))


def test_architectures_that_nobody_can_tell_are_a_doubt(package: Package) -> None:
    package.architectures = set()
    with pytest.raises(Doubt, match="no architecture"):
        read_spec(package.spec())
    package.architectures = {(10, "7a")}
    with pytest.raises(Doubt, match="depends on nvcc"):
        read_spec(package.spec())


def test_a_source_that_includes_the_bytes_of_a_file_is_a_doubt(package: Package) -> None:
    package.spec().sources[0].write_text('asm(".incbin \\"weights\\"");')
    with pytest.raises(Doubt, match=r"decode\.cu"):
        read_spec(package.spec())


@pytest.mark.usefixtures("package")
def test_a_field_of_a_later_release_is_a_doubt() -> None:
    later = dataclasses.make_dataclass("Later", [("optimise", int, 3)], bases=(Spec,))
    with pytest.raises(Doubt, match="optimise"):
        read_spec(later(name="decode", sources=[]))


def test_flags_of_a_later_release_are_a_doubt(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    for flag in ("-imacros /x.h", "-isystem include"):
        monkeypatch.setattr(
            sys.modules["flashinfer.jit.cpp_ext"], "build_common_cflags", lambda *_, flag=flag: [flag]
        )
        with pytest.raises(Doubt):
            read_spec(package.spec())


# The toolkit ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("package")
def test_the_compiler_is_nvcc_behind_a_script_and_the_programs_that_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, home = tmp_path / "cuda-13.0", tmp_path / "usr" / "local"
    for folder in (real / "bin", real / "include", home / "bin", home / "include"):
        folder.mkdir(parents=True)
    (real / "include" / "cuda_runtime.h").touch()
    for name in ("nvcc", "ptxas"):
        (real / "bin" / name).write_text(f"#!/bin/sh\nexit 0 # {name}\n")
        (real / "bin" / name).chmod(0o755)
    script = home / "bin" / "nvcc"
    script.write_text(f'#!/bin/sh\nexec {real}/bin/nvcc "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(real))
    first = Toolkit.here().compilers()["nvcc"]
    monkeypatch.delenv("CUDA_HOME")
    monkeypatch.setenv("PATH", f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}")
    toolkit = Toolkit.here()
    assert toolkit.compilers()["nvcc"] == first is not None
    assert real / "include" in toolkit.brought()
    assert not {home, home / "include"} & set(toolkit.brought()), "others have headers there"
    (real / "bin" / "ptxas").write_bytes(b"#!/bin/sh\nexit 0 # another ptxas")
    assert Toolkit.here().compilers()["nvcc"] != first
    monkeypatch.setenv("FLASHINFER_NVCC", "$cuda_home/bin/none")
    assert Toolkit.here().compilers()["nvcc"] is None


# Hooks ----------------------------------------------------------------------------------------


def _reasons(state: FlashInferState) -> list[str]:
    return list(state.explain(RestoredFacts({}, [{}])))


@pytest.fixture
def restored(package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Build a module in another process, capture its files, and remove all that this process had. Return the
    folder of the files."""
    root, state = tmp_path / "root", _state()
    before = counters.counts["flashinfer.builds"]
    assert package.build_and_load(state, package.spec()) == 7
    assert counters.counts["flashinfer.builds"] - before == 1 and package.runs == 1
    assert state.activity().opened and state.has_host_code() and len(state.used_files(root)) == 2
    assert _reasons(state) == [
        "FlashInfer's decode was not taken from an entry: "
        "no restored entry has it with these sources, flags and versions"
    ]
    shutil.rmtree(tmp_path / "home")
    _home(tmp_path / "another" / "home", monkeypatch)
    package.runs = 0
    return root


def _accepting(root: Path) -> FlashInferState:
    state = _state()
    state.accept(root, [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()])
    return state


def test_a_module_of_an_entry_is_loaded_without_ninja_and_without_a_compiler(
    restored: Path, package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("CUDA_HOME", "/nonexistent")
    state, waits = _accepting(restored), []
    assert package.build_and_load(state, package.spec(), lambda: waits.append(1)) == 7
    assert package.runs == 0 and waits == [1] and _reasons(state) == []
    [library] = state.used_paths()
    assert library.endswith("/decode.so") and state.used_files(restored) == {
        library,
        f"{library.rpartition('/')[0]}/depends.json",
    }
    state.forget({library}, set())
    assert package.runs == 0 and not state.used_paths()


def test_a_file_that_no_verified_revision_accounts_for_is_not_loaded(
    restored: Path, package: Package
) -> None:
    state = _state()
    state.use_folder(restored)
    assert package.build_and_load(state, package.spec()) == 7
    assert package.runs == 1 and len(state.used_paths()) == 1
    state = _accepting(restored)
    state.leave_folder()
    package.build_and_load(state, package.spec())
    assert package.runs == 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda package: _write(package, "data/include/flashinfer/value.h", "#define VALUE 8"),
            "value.h differs",
        ),
        (
            lambda package: _write(package, "data/cccl/cub/flashinfer/value.h", "#define VALUE 8"),
            "value.h differs",
        ),
        (
            lambda package: _write(package, "generated/flashinfer/value.h", "#define VALUE 8"),
            "value.h differs",
        ),
        (lambda package: _another_nvcc(package), "nvcc is "),
    ],
)
def test_what_the_key_leaves_out_is_compared_and_a_difference_is_built(
    restored: Path, package: Package, change: Callable[[Package], object], reason: str
) -> None:
    change(package)
    state = _accepting(restored)
    assert package.build_and_load(state, package.spec()) in (7, 8)
    assert package.runs == 1 and not state._modules.loaded
    [line] = _reasons(state)
    assert reason in line


def _write(package: Package, name: str, text: str) -> None:
    (package.folder / name).parent.mkdir(parents=True, exist_ok=True)
    (package.folder / name).write_text(text)


def _another_nvcc(package: Package) -> None:
    nvcc = package.folder.parents[1] / "cuda" / "bin" / "nvcc"
    nvcc.unlink()
    nvcc.write_text('#!/bin/sh\nexec cc "$@"\n')
    nvcc.chmod(0o755)


def test_headers_of_a_c_plus_plus_source_count_although_its_list_leaves_them_out(
    package: Package, tmp_path: Path
) -> None:
    """Its ``-MMD`` leaves out what lies behind ``-isystem``: most of FlashInfer."""
    _write(package, "data/include/flash infer/host.h", "#define HOST 1")
    source = package.folder / "csrc" / "host.cpp"
    _write(
        package, "csrc/host.cpp", '#include <flash infer/host.h>\nextern "C" int host() { return HOST; }\n'
    )
    spec = package.spec(sources=[*package.spec().sources, source])
    root, state = tmp_path / "root", _state()
    assert package.build_and_load(state, spec) == 7
    [depends] = [path for path in state.used_files(root) if path.endswith("depends.json")]
    assert "flash infer/host.h" in (root / depends).read_text()
    _write(package, "data/include/flash infer/host.h", "#define HOST 2")
    shutil.rmtree(spec.build_dir)
    state = _accepting(root)
    package.build_and_load(state, spec)
    assert "host.h differs" in _reasons(state)[0]


def test_a_library_that_does_not_load_is_built(restored: Path, package: Package) -> None:
    [library] = restored.rglob("decode.so")
    library.write_bytes(NOT_LOADABLE)
    state = _accepting(restored)
    assert package.build_and_load(state, package.spec()) == 7
    assert package.runs == 1 and _reasons(state) == [
        "FlashInfer's decode was not taken from an entry: the library of the entry does not load"
    ]


def test_a_list_of_dependencies_of_another_form_is_no_hit(restored: Path, package: Package) -> None:
    [depends] = restored.rglob("depends.json")
    for data in (b"", b"[]", b'{"format":2}'):
        depends.write_bytes(data)
        assert package.build_and_load(_accepting(restored), package.spec()) == 7
    assert package.runs == 3


def test_what_ninja_finds_up_to_date_is_neither_counted_nor_kept(package: Package, tmp_path: Path) -> None:
    """Nobody knows with what an earlier process made it."""
    assert package.build_and_load(_state(), package.spec()) == 7
    state, before = _state(), counters.counts["flashinfer.builds"]
    assert package.build_and_load(state, package.spec()) == 7
    assert package.runs == 2 and counters.counts["flashinfer.builds"] == before
    assert not state.activity().opened and state.used_files(tmp_path) == set()


def test_a_header_that_changed_during_the_build_is_not_kept(package: Package, tmp_path: Path) -> None:
    later = time.time() + 60
    os.utime(package.folder / "data" / "include" / "flashinfer" / "value.h", (later, later))
    state = _state()
    assert package.build_and_load(state, package.spec()) == 7
    assert state.used_files(tmp_path) == set()


def test_modules_that_are_built_together_are_counted(package: Package, tmp_path: Path) -> None:
    """``build_jit_specs`` runs ninja once, in the folder above those of the modules."""
    state, lines = FlashInferState(), []
    for name in ("one", "two"):
        spec = package.spec(name=name)
        spec.build_dir.mkdir(parents=True)
        (spec.build_dir / "build.ninja").write_text(package.ninja_file(spec))
        lines.append(f"subninja {spec.build_dir / 'build.ninja'}")
    file = tmp_path / "all.ninja"
    file.write_text("\n".join([*lines, ""]))
    before = counters.counts["flashinfer.builds"]
    call = imports.Call(package.run_ninja, (spec.build_dir.parent, file), {"verbose": False})
    state._modules.run_ninja(call)
    assert counters.counts["flashinfer.builds"] - before == 2


def test_other_specifications_are_left_to_flashinfer_and_wait_for_nothing(package: Package) -> None:
    def original(spec: Any) -> str:
        del spec
        return "FlashInfer's"

    for spec in (package.spec(is_aot=True), SimpleNamespace(name="of another compiler")):
        modules = _state()._modules
        call = imports.Call(original, (spec,), {})
        assert modules.build_and_load(ProcessCallbacks(pytest.fail, lambda _: None), call) == "FlashInfer's"


def test_an_error_of_a_strict_restore_reaches_the_caller_and_an_error_of_the_build_too(
    package: Package,
) -> None:
    def fail() -> None:
        raise Corrupt("the bundle is damaged")

    with pytest.raises(Corrupt):
        package.build_and_load(_state(), package.spec(), fail)
    package.spec().sources[0].write_text("no C")
    with pytest.raises(subprocess.CalledProcessError):
        package.build_and_load(_state(), package.spec())
