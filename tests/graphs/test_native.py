"""Test that a graph's key holds the C++ code of operators that a trace runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._inductor.cpp_builder import get_cpp_compiler

from cachesvc_client.graphs.released import native
from tests.e2e.harness import SCALAR, environment
from tests.prepared import COMPILES, prepared_python

SOURCE = Path(__file__).with_name("native.cpp")
PROGRAM = str(Path(__file__).with_name("native_program.py"))
NUMBER = b"cachesvc-test-number-"
TRACED = {"a composite", "a backward", "over torch's own"}

pytestmark = pytest.mark.compiles


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(torch.__file__).parent
    built = tmp_path_factory.mktemp("native") / "1" / "operators.so"
    built.parent.mkdir()
    include, libraries = folder / "include", folder / "lib"
    command = [get_cpp_compiler(), "-O0", "-shared", "-fPIC", "-std=c++20", "-DOVER"]
    command += [f"-I{include}", f"-I{include}/torch/csrc/api/include", str(SOURCE), "-o", str(built)]
    command += [f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-ltorch_cpu", "-lc10"]
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    subprocess.run([*command, f"-D_GLIBCXX_USE_CXX11_ABI={abi}"], check=True)
    return built


def changed(library: Path) -> Path:
    """Return another library of the same source file, whose code multiplies by another number."""
    content = library.read_bytes()
    assert content.count(NUMBER + b"1") == 1
    other = library.parent.parent / "2" / library.name
    other.parent.mkdir(exist_ok=True)
    other.write_bytes(content.replace(NUMBER + b"1", NUMBER + b"2"))
    return other


def keys(place: Path, library: Path, how: str) -> dict[str, str]:
    variables = {**environment(place), **SCALAR, "TORCHINDUCTOR_CACHE_DIR": str(place / "cache")}
    python = prepared_python(COMPILES, variables) if how == "plain" else [sys.executable]
    result = subprocess.run(
        [*python, PROGRAM, str(library), how],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return dict(json.loads(result.stdout.splitlines()[-1]))


def test_code_in_cpp_that_a_trace_runs_is_in_the_key(library: Path, tmp_path: Path) -> None:
    """PyTorch's own key is the same for both libraries, which multiply by different numbers."""
    plain, plain_other = (keys(tmp_path, one, "plain") for one in (library, changed(library)))
    assert plain == plain_other and plain.keys() > TRACED
    first, again, other = (keys(tmp_path, one, "armed") for one in (library, library, changed(library)))
    assert first == again, "the same library gives the same keys"
    assert {name for name in first if first[name] != other[name]} >= TRACED


def test_a_library_that_is_not_torchs_is_told_by_what_it_refers_to(library: Path) -> None:
    assert native._registers(str(library))
    assert not native._registers("linux-vdso.so.1"), "the kernel's own has no file"
    assert native._registers(str(library.with_name("deleted.so")))
    assert not native._registers(next(one for one in native._names() if "libc.so" in one))
    broken = library.with_name("broken.so")
    broken.write_bytes(library.read_bytes()[:100])
    assert native._registers(str(broken)), "what cannot be read may register anything"


def test_torch_alone_has_no_foreign_code() -> None:
    places, unknown = native.over_torchs_own()
    assert not places and not unknown
    assert list(native._foreign_registrations()) == []
    assert os.sep in native._built_at()


def test_code_that_is_in_no_library_has_no_description() -> None:
    dump = "Autograd[alias]: registered at gone_source_file.cpp:3 :: (none) [ boxed ]\n"
    with pytest.raises(LookupError, match="gone_source_file"):
        native.code_of("some::operator", dump)
