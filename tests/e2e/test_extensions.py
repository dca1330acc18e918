"""Test extensions of ``torch.utils.cpp_extension``: a restored process starts neither ninja nor a compiler,
and builds whatever differs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cachesvc_client.bundle.seal import SigningKey

from .harness import ProgramResult, environment, run

SOURCE = """
#include <Python.h>
#include "scale.h"
static PyObject* factor(PyObject*, PyObject*) { return PyLong_FromLong(SCALE); }
static PyMethodDef methods[] = {{"factor", factor, METH_NOARGS, ""}, {nullptr, nullptr, 0, nullptr}};
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
#define INIT_(x) PyInit_##x
#define INIT(x) INIT_(x)
static PyModuleDef module = {PyModuleDef_HEAD_INIT, TEXT(TORCH_EXTENSION_NAME), "", -1, methods};
PyMODINIT_FUNC INIT(TORCH_EXTENSION_NAME)() { return PyModule_Create(&module); }
"""
"""A module that the compiler makes in a second: torch's own headers take half a minute."""
PATH = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
"""The PATH with the ninja of this environment."""


def project(folder: Path, scale: int = 3) -> Path:
    (folder / "include").mkdir(parents=True)
    (folder / "ext.cpp").write_text(SOURCE)
    (folder / "other.cpp").write_text(SOURCE.replace("SCALE)", "SCALE + 100)"))
    (folder / "include" / "scale.h").write_text(f"#define SCALE {scale}\n")
    return folder


@dataclass
class BuiltExtensions:
    """Holds the outcome of a builder, and the public key that signed its bundle."""

    bundle: Path
    trusted: str
    answer: dict[str, Any]


def build(place: Path, *options: str, **variables: str) -> BuiltExtensions:
    """Build the extensions of a project in an empty environment, and pack them."""
    key, bundle = SigningKey.generate(), place / "one.cachesvc"
    place.mkdir(parents=True, exist_ok=True)
    key.save(place / "key")
    arguments = (str(project(place / "project")), "-", str(place / "key"), str(bundle), *options)
    result = run("extension.py", *arguments, place=place, PATH=PATH, **variables)
    return BuiltExtensions(bundle, str(key.public), result.answer)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuiltExtensions:
    return build(tmp_path_factory.mktemp("builder"), "--changed")


def start(
    place: Path, built: BuiltExtensions, folder: Path, *options: str, compilers: bool = True, **variables: str
) -> ProgramResult:
    """Start a process on a fresh host that restores the bundle and loads the project in ``folder``."""
    path = {"PATH": PATH} if compilers else {}
    variables = {"CACHESVC_TRUSTED_KEYS": built.trusted, **path, **variables}
    arguments = (str(folder), str(built.bundle), *options)
    return run("extension.py", *arguments, place=place, compilers=compilers, **variables)


def test_a_builder_keeps_each_version_with_the_files_that_it_read(built: BuiltExtensions) -> None:
    assert built.answer["names"] == ["scaled", "scaled", "scaled_v1", "scaled_v2"]
    assert built.answer["factors"] == [3, 3, 103, 3]
    assert built.answer["builds"] == 3 and built.answer["kinds"]["torch_extensions"][0] == 3
    assert built.answer["kinds"]["torch_extensions"][1] > 0.0, "seconds of ninja"
    assert built.answer["scopes"] == ["host"]
    names = [path.rpartition("/")[2] for path in built.answer["captured"]]
    assert sorted(names) == ["depends.json"] * 3 + ["scaled.so", "scaled_v1.so", "scaled_v2.so"]


def test_a_fresh_host_without_compilers_builds_nothing(tmp_path: Path, built: BuiltExtensions) -> None:
    copy = project(tmp_path / "elsewhere" / "project")
    result = start(tmp_path, built, copy, "--changed", compilers=False)
    answer = result.answer
    assert result.compilers == [] and answer["builds"] == 0
    assert answer["factors"] == [3, 3, 103, 3] and answer["names"] == built.answer["names"]
    assert all("/inductor/torch_extensions/cachesvc/" in place for place in answer["places"])
    assert answer["state"] == "hit" and answer["reasons"] == []
    assert answer["captured"] == built.answer["captured"]


def test_pytorch_alone_needs_both_ninja_and_a_compiler(tmp_path: Path, built: BuiltExtensions) -> None:
    """Without a restore, the test before would fail like this."""
    result = start(tmp_path, built, project(tmp_path / "project"), compilers=False, CACHESVC_TRUSTED_KEYS="")
    assert result.code != 0 and "Ninja is required" in result.err


def test_another_header_makes_a_build(tmp_path: Path, built: BuiltExtensions) -> None:
    answer = start(tmp_path, built, project(tmp_path / "project", scale=4)).answer
    assert answer["factors"] == [4, 4] and answer["builds"] == 1
    assert answer["state"] == "inert"
    assert any("scale.h differs" in reason for reason in answer["reasons"]), answer["reasons"]
    (library,) = {path for path in answer["captured"] if path.endswith(".so")}
    assert library not in built.answer["captured"], "the library of the entry stays as it is"
    key, others = library.split("/")[3], {path.split("/")[3] for path in built.answer["captured"]}
    assert key in others, "sources and flags are the same"


def test_another_header_of_that_name_earlier_on_the_path_makes_a_build(
    tmp_path: Path, built: BuiltExtensions
) -> None:
    folder = project(tmp_path / "project")
    # The header lies beside the source, where the compiler looks first.
    (folder / "scale.h").write_text("#define SCALE 5\n")
    answer = start(tmp_path, built, folder).answer
    assert answer["factors"] == [5, 5] and answer["builds"] == 1


def test_other_flags_make_a_build(tmp_path: Path, built: BuiltExtensions) -> None:
    answer = start(tmp_path, built, project(tmp_path / "project"), "--flag=-DUNUSED=1").answer
    assert answer["factors"] == [3, 3] and answer["builds"] == 1
    assert any("these sources and flags" in reason for reason in answer["reasons"]), answer["reasons"]


def test_an_untrusted_library_is_not_loaded(tmp_path: Path, built: BuiltExtensions) -> None:
    other = str(SigningKey.generate().public)
    answer = start(tmp_path, built, project(tmp_path / "project"), CACHESVC_TRUSTED_KEYS=other).answer
    assert answer["status"] == "failed"
    assert answer["factors"] == [3, 3] and answer["builds"] == 1


def test_a_library_that_another_process_wrote_is_not_loaded(tmp_path: Path, built: BuiltExtensions) -> None:
    """A folder that the user set holds files of other processes: only files of a verified revision count."""
    named, other = tmp_path / "named", str(SigningKey.generate().public)
    first = start(tmp_path, built, project(tmp_path / "project"), TORCH_EXTENSIONS_DIR=str(named)).answer
    assert first["builds"] == 0 and first["places"][0].startswith(f"{named}/cachesvc/")
    variables = {"TORCH_EXTENSIONS_DIR": str(named), "CACHESVC_TRUSTED_KEYS": other}
    second = start(tmp_path / "2", built, tmp_path / "project", **variables).answer
    assert second["builds"] == 1 and second["places"][0] == f"{named}/scaled/scaled.so"


def test_a_library_that_pytorch_finds_built_counts_as_no_build(tmp_path: Path) -> None:
    """The library is not captured either: nobody knows with which compiler it was built."""
    folder = project(tmp_path / "project")
    for expected in (1, 0):
        result = run("extension.py", str(folder), place=tmp_path / "same", PATH=PATH)
        assert result.answer["builds"] == expected and result.answer["factors"] == [3, 3]
        assert len(result.answer["captured"]) == 2 * expected


WARMED = """
import sys
from torch.utils import cpp_extension
folder = sys.argv[1]
built = cpp_extension.load("scaled", [folder + "/ext.cpp"], extra_include_paths=[folder + "/include"])
assert built.factor() == 3
"""


def test_an_extension_that_warm_built_is_restored(tmp_path: Path) -> None:
    folder, out = project(tmp_path / "project"), tmp_path / "bundles"
    (folder / "ops.py").write_text(WARMED)
    target = f'[[target]]\nid = "ops"\nscript = "ops.py"\nargs = ["{folder}"]\n'
    (folder / "warm.toml").write_text(f'name = "team/ops"\n{target}')
    key = SigningKey.generate()
    variables = {"CACHESVC_SIGNING_KEY": str(tmp_path / "key"), "PATH": PATH}
    key.save(tmp_path / "key")
    result = subprocess.run(
        [sys.executable, "-m", "cachesvc", "warm", str(folder / "warm.toml"), "--out", str(out)],
        env=environment(tmp_path / "warm", **variables),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    (bundle,) = out.glob("*.cachesvc")
    service = start(
        tmp_path / "service", BuiltExtensions(bundle, str(key.public), {}), folder, compilers=False
    )
    assert service.compilers == [] and service.answer["builds"] == 0 and service.answer["factors"] == [3, 3]
    assert service.answer["state"] == "hit"


@pytest.mark.long
def test_an_inline_extension_over_torchs_headers(tmp_path: Path) -> None:
    first = build(tmp_path / "builder", "--inline")
    assert first.answer["factors"] == [6] and first.answer["builds"] == 1
    shutil.rmtree(tmp_path / "builder" / "home")
    result = start(tmp_path, first, tmp_path, "--inline", compilers=False)
    assert result.compilers == [] and result.answer["factors"] == [6] and result.answer["state"] == "hit"
