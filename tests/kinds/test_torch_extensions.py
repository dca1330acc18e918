"""Test extensions of ``torch.utils.cpp_extension``: which files travel, what a key holds, and which files a
build read."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cachesvc_client.hooks import imports
from cachesvc_client.kinds.builds.build_folder import read_headers, state_of, written
from cachesvc_client.kinds.builds.dependencies import Dependencies, read_by_build
from cachesvc_client.kinds.builds.flags import Doubt, compiler_words, linked_files
from cachesvc_client.kinds.builds.request import BuildRequest
from cachesvc_client.kinds.kind import KindState, ProcessCallbacks
from cachesvc_client.kinds.libraries import BuiltLibrary, copy_built
from cachesvc_client.kinds.testing import NOT_LOADABLE, Example, KindConformance
from cachesvc_client.kinds.torch_extensions.extensions import _next_version
from cachesvc_client.kinds.torch_extensions.kind import KIND, TorchExtensionsState
from cachesvc_client.kinds.torch_extensions.request import read_request
from cachesvc_client.kinds.torch_extensions.versions import PARAMETERS
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import Corrupt

KEY = "cachesvc/" + "0" * 16 + "/" + "a1" * 32 + "/" + "b2" * 8


class TestConformance(KindConformance):
    kind = KIND
    examples = (
        Example(f"{KEY}/fused_ops.so", b"\x7fELF" + bytes(range(256)), "ours"),
        Example(f"{KEY}/depends.json", b'{"compilers":{},"files":[],"format":1}', "ours", last=True),
    )
    others = (
        *("fused_ops/fused_ops.so", "fused_ops/build.ninja", "fused_ops/.ninja_deps", "fused_ops/main.o"),
        *("cachesvc/cachesvc.so", f"{KEY}/lock", f"{KEY}/../depends.json", f"{KEY}/.so"),
        *(f"../{KEY}/fused_ops.so", f"/{KEY}/fused_ops.so", f"{KEY}/sub/fused_ops.so"),
    )

    def use(self, state: KindState, root: Path) -> set[str]:
        assert isinstance(state, TorchExtensionsState)
        state._extensions.loaded[f"{KEY}/fused_ops.so"] = root / KEY / "fused_ops.so"
        return {f"{KEY}/fused_ops.so", f"{KEY}/depends.json"}

    def allowed(self, state: KindState) -> list[Path]:
        assert isinstance(state, TorchExtensionsState)
        return state._extensions._accepted.all()


# Flags ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flag",
    [
        *("@flags.txt", "-isystem /opt/x", "-B/opt/x", "-specs=x", "-fplugin=x.so", "-fprofile-use=x"),
        *("-MF x.d", "-imacros x.h", "-ccbin g++", "-DX=$HOME", "-DX=`date`", "--sysroot=/x"),
    ],
)
def test_a_flag_that_makes_the_compiler_read_unlisted_files_is_a_doubt(flag: str) -> None:
    with pytest.raises(Doubt):
        compiler_words(["-O3", flag])


def test_flags_are_split_into_words_as_a_shell_does() -> None:
    assert compiler_words(["-O3 -mavx2", "-DNAME='a b'"]) == ["-O3", "-mavx2", "-DNAME=a b"]


def test_linked_libraries_of_the_user_are_read_and_other_libraries_are_known_or_a_doubt(
    tmp_path: Path,
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for file in (first / "libmine.a", second / "libmine.so", second / "libother.so", tmp_path / "part.o"):
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"code")
    flags = [f"-L{first} -L {second}", "-lmine", "-lother", "-lm", "-Wl,-rpath,$ORIGIN".replace("$", "")]
    files = linked_files([*flags, str(tmp_path / "part.o")])
    assert files == [tmp_path / "part.o", first / "libmine.a", second / "libother.so"]
    for unknown in ("-lunknown", "-Wl,--version-script=x", "-T script", "-Lrelative", "part.o"):
        with pytest.raises(Doubt):
            linked_files([unknown])


# Requests and keys ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def module() -> Any:
    from torch.utils import cpp_extension

    return cpp_extension


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CXX", "CC", "CPATH", "CFLAGS", "LIBRARY_PATH", "TORCH_CUDA_ARCH_LIST"):
        monkeypatch.delenv(name, raising=False)
    return _project(tmp_path / "project")


def _project(folder: Path) -> Path:
    for file, text in (("ext.cpp", "int x;"), ("include/a.h", "#define A 1"), ("second/b.h", "#define B 1")):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
    return folder


def _arguments(folder: Path, **changes: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "name": "fused",
        "sources": [str(folder / "ext.cpp")],
        "extra_cflags": ["-O2"],
        "extra_cuda_cflags": None,
        "extra_sycl_cflags": None,
        "extra_ldflags": None,
        "extra_include_paths": [str(folder / "include"), str(folder / "second")],
        "build_directory": str(folder / "build"),
        "verbose": False,
        "with_cuda": None,
        "with_sycl": None,
        "is_python_module": True,
        "is_standalone": False,
    }
    return arguments | changes


def _key(module: Any, folder: Path, **changes: Any) -> str:
    return read_request(module, _arguments(folder, **changes)).key("fused")


def test_the_parameters_of_this_torch_are_known(module: Any) -> None:
    assert set(inspect.signature(module._jit_compile).parameters) <= PARAMETERS


def test_a_key_is_the_same_in_another_folder(module: Any, project: Path, tmp_path: Path) -> None:
    elsewhere = _project(tmp_path / "elsewhere" / "deeper")
    assert _key(module, elsewhere) == _key(module, project)
    assert _key(module, project, verbose=True, build_directory="/other") == _key(module, project)


def test_a_key_differs_with_everything_that_decides_the_library(
    module: Any, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = read_request(module, _arguments(project))
    changed: list[dict[str, Any]] = [
        {"extra_cflags": ["-O3"]},
        {"extra_cflags": None},
        {"extra_ldflags": ["-lm"]},
        {"extra_include_paths": [str(project / "include")]},
        {"is_python_module": False},
        {"sources": [str(project / "ext.cpp"), str(project / "include" / "a.h")]},
    ]
    keys = [plain.key("fused"), plain.key("fused_v1"), *(_key(module, project, **one) for one in changed)]
    monkeypatch.setenv("CXX", "clang++")
    keys.append(_key(module, project))
    monkeypatch.delenv("CXX")
    (project / "ext.cpp").write_text("int y;")
    keys.append(_key(module, project))
    assert len(set(keys)) == len(keys)


def test_flags_that_pytorch_added_to_the_users_list_do_not_count_as_the_users(
    module: Any, project: Path
) -> None:
    flags = ["-lm"]
    first = _key(module, project, extra_ldflags=flags)
    nothing = dict.fromkeys(inspect.signature(module._prepare_ldflags).parameters, False)
    module._prepare_ldflags(**{**nothing, "extra_ldflags": flags})
    assert len(flags) > 1 and _key(module, project, extra_ldflags=flags) == first


def test_a_build_for_the_gpu_has_the_architectures_in_its_key(
    module: Any, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "ext.cu").write_text("__global__ void f() {}")
    monkeypatch.setattr(module, "CUDA_HOME", str(tmp_path / "cuda"))
    keys = []
    for architectures in ("9.0", "8.0", "8.0+PTX"):
        monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", architectures)
        arguments = _arguments(project, sources=[str(project / "ext.cu")])
        request = read_request(module, arguments)
        assert request.with_cuda
        keys.append(request.key("fused"))
    keys.append(_key(module, project, sources=[str(project / "ext.cu")], extra_cuda_cflags=["-O3"]))
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("changes", "variable"),
    [
        ({"with_sycl": True}, ""),
        ({"sources": ["kernel.sycl"]}, ""),
        ({"optimise": 3}, ""),
        ({"name": "../fused"}, ""),
        ({"name": "a b"}, ""),
        ({}, "CPATH"),
        ({}, "CPLUS_INCLUDE_PATH"),
    ],
)
def test_an_unknown_argument_is_a_doubt(
    module: Any, project: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], variable: str
) -> None:
    if variable:
        monkeypatch.setenv(variable, "/opt/include")
    with pytest.raises(Doubt):
        read_request(module, _arguments(project, **changes))


def test_a_source_that_includes_the_bytes_of_a_file_is_a_doubt(module: Any, project: Path) -> None:
    (project / "ext.cpp").write_text('asm(".incbin \\"weights.bin\\"");')
    with pytest.raises(Doubt, match=r"ext\.cpp"):
        read_request(module, _arguments(project))


# What a build read ----------------------------------------------------------------------------


def _request(module: Any, folder: Path, **changes: Any) -> BuildRequest:
    return read_request(module, _arguments(folder, **changes))


def _read(module: Any, folder: Path) -> Dependencies:
    """Return the files that a build of the project read, as a compiler lists them: its source, and headers of
    others."""
    system = [Path("/usr/include/stdio.h"), Path(module.__file__).parents[1] / "include" / "torch" / "all.h"]
    paths = [folder / "ext.cpp", folder / "include" / "a.h", folder / "second" / "b.h", *system]
    return read_by_build(_request(module, folder), module, paths)


def test_the_files_that_a_build_read_are_the_same_in_another_folder(
    module: Any, project: Path, tmp_path: Path
) -> None:
    depends = _read(module, project)
    assert [(file.base, file.path) for file in depends.files] == [("include:0", "a.h"), ("include:1", "b.h")]
    assert depends == Dependencies.decode(depends.encode())
    elsewhere = _project(tmp_path / "elsewhere")
    assert depends.difference(_request(module, elsewhere), module) == ""
    assert str(project).encode() not in depends.encode()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda folder: (folder / "include/a.h").write_text("#define A 2"), "a.h differs"),
        (lambda folder: (folder / "second/b.h").unlink(), "b.h differs"),
        (lambda folder: (folder / "include/b.h").write_text("#define B 2"), "b.h differs"),
        (lambda folder: (folder / "b.h").write_text("#define B 2"), "b.h differs"),
    ],
)
def test_another_header_is_a_difference(
    module: Any, project: Path, change: Callable[[Path], Any], reason: str
) -> None:
    depends = _read(module, project)
    change(project)
    assert depends.difference(_request(module, project), module) == reason


def test_another_compiler_is_a_difference_and_a_missing_compiler_is_not(
    module: Any, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    depends = _read(module, project)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert depends.difference(_request(module, project), module) == ""
    other = tmp_path / "bin" / "c++"
    other.write_text("#!/bin/sh\nexit 0\n")
    other.chmod(0o755)
    assert depends.difference(_request(module, project), module).startswith("c++ is ")


def test_linked_libraries_count_as_files_that_the_build_read(module: Any, project: Path) -> None:
    library = project / "libmine.so"
    library.write_bytes(b"one")
    request = _request(module, project, extra_ldflags=[f"-L{project}", "-lmine"])
    depends = read_by_build(request, module, [])
    assert depends.difference(request, module) == ""
    library.write_bytes(b"two")
    assert depends.difference(request, module) == f"{library} differs"


def test_an_unknown_compiler_is_a_doubt(
    module: Any, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Doubt, match=r"c\+\+"):
        read_by_build(_request(module, project), module, [])


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"format":2}', b'{"format":1,"files":[[1]]}', b"\xff"])
def test_a_list_of_another_form_is_refused(data: bytes) -> None:
    with pytest.raises((ValueError, TypeError, KeyError, AttributeError)):
        Dependencies.decode(data)


# The hook -------------------------------------------------------------------------------------


def _call(module: Any, folder: Path, **changes: Any) -> imports.Call:
    @functools.wraps(module._jit_compile)
    def original(*_: Any, **__: Any) -> str:
        return "built"

    return imports.Call(original, (), _arguments(folder, **changes))


def _nothing_to_wait_for() -> None: ...


def _waiting(wait: Callable[[], None]) -> ProcessCallbacks:
    return ProcessCallbacks(before_compile=wait, launched=lambda _: None)


def test_a_library_that_does_not_load_is_built(module: Any, project: Path, tmp_path: Path) -> None:
    root, key = tmp_path / "root", _request(module, project).key("fused")
    folder = f"cachesvc/{'0' * 16}/{key}/{'b2' * 8}"
    (root / folder).mkdir(parents=True)
    (root / folder / "fused.so").write_bytes(NOT_LOADABLE)
    (root / folder / "depends.json").write_bytes(_read(module, project).encode())
    state = TorchExtensionsState()
    state.accept(root, [f"{folder}/fused.so", f"{folder}/depends.json"])
    version = _next_version(_request(module, project), _call(module, project))
    assert version is not None
    assert state._extensions._find(_request(module, project), version) == root / folder, (
        "otherwise PyTorch would take the library"
    )
    assert state._extensions.jit_compile(_waiting(_nothing_to_wait_for), _call(module, project)) == "built"
    assert "fused" not in module.JIT_EXTENSION_VERSIONER.entries, (
        "PyTorch builds an extension that it has not loaded"
    )
    assert not state.used_paths()


def test_an_error_of_a_strict_restore_reaches_the_caller(module: Any, project: Path) -> None:
    def fail() -> None:
        raise Corrupt("the bundle is damaged")

    with pytest.raises(Corrupt):
        TorchExtensionsState()._extensions.jit_compile(_waiting(fail), _call(module, project))


def test_a_standalone_program_is_left_to_pytorch(module: Any, project: Path) -> None:
    call = _call(module, project, is_standalone=True, is_python_module=False)
    assert TorchExtensionsState()._extensions.jit_compile(_waiting(pytest.fail), call) == "built"


# The folder of a build ------------------------------------------------------------------------

NINJA = """#!/bin/sh
echo "main.o: #deps 2, deps mtime 17 (VALID)"; echo "    /p/ext.cpp"; echo "    ../a.h"; echo
echo "old.o: #deps 1, deps mtime 17 (STALE)"; echo "    /p/old.h"; echo
"""


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder as a build leaves it, and a ninja that prints its records in the form of ninja 1.13."""
    folder = tmp_path / "build"
    folder.mkdir()
    (folder / "build.ninja").write_text(
        "rule compile\nbuild main.o: compile /p/ext.cpp\nbuild x.so: link main.o\n"
    )
    ninja = tmp_path / "ninja"
    ninja.write_text(NINJA)
    ninja.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return folder


def test_headers_are_those_of_ninjas_records(build: Path) -> None:
    assert read_headers(build, frozenset({"main.o", "x.so"}), 1) == {Path("/p/ext.cpp"), build.parent / "a.h"}


def test_an_output_that_ninja_did_not_build_now_is_a_doubt(build: Path) -> None:
    with pytest.raises(Doubt, match="earlier"):
        read_headers(build, frozenset({"x.so"}), 1)
    with pytest.raises(Doubt, match="earlier"):
        read_headers(build, frozenset({"main.o", "x.so"}), 2)
    (build / "build.ninja").write_text("build old.o: compile /p/ext.cpp\n")
    with pytest.raises(Doubt, match="no list"):
        read_headers(build, frozenset({"old.o"}), 1)


def test_files_that_a_build_wrote_are_new_or_changed(tmp_path: Path) -> None:
    for name in ("same", "changed"):
        (tmp_path / name).write_text("1")
    before = state_of(tmp_path)
    (tmp_path / "changed").write_text("22")
    (tmp_path / "new").touch()
    assert written(before, state_of(tmp_path)) == {"changed", "new"}
    assert state_of(tmp_path / "absent") == {}


def test_a_library_is_copied_whole_and_over_the_file_that_lies_there(tmp_path: Path) -> None:
    file, folder = tmp_path / "fused.so", tmp_path / "folder"
    file.write_bytes(b"built here")
    library = BuiltLibrary(file, Digest.of(b"built here").hex, b"{}")
    folder.mkdir()
    (folder / "fused.so").write_bytes(b"planted")
    (folder / "depends.json").write_bytes(b"{}")
    assert copy_built(library, folder, "fused.so")
    assert (folder / "fused.so").read_bytes() == b"built here"
    file.unlink()
    assert copy_built(library, folder, "fused.so"), "the library is in its place"
    (folder / "fused.so").write_bytes(b"planted")
    assert not copy_built(library, folder, "fused.so")
