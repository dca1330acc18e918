"""Test how compilers are identified: real ones, and others by their bytes."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from cachesvc_client.environment import cxx


@pytest.mark.parametrize(
    "name", ["g++", "gcc", "c++", "clang++", "g++-11", "g++-12", "g++-13", "clang++-14", "clang++-16"]
)
def test_real_compilers_are_identified(name):
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"no {name} here")
    output = subprocess.run(
        [path, "--version"], capture_output=True, text=True, check=True
    ).stdout.splitlines()[0]
    kind, version = cxx.identity({"CXX": name, "PATH": os.environ["PATH"]}).split()
    assert version in output.split() or any(word.startswith(version) for word in output.split())
    assert kind == ("clang++" if "clang" in output else "g++")


def test_without_cxx_the_compiler_is_gxx():
    if shutil.which("g++") is None:
        pytest.skip("no g++ here")
    assert cxx.identity({"PATH": os.environ["PATH"]}) == cxx.identity(
        {"CXX": "g++", "PATH": os.environ["PATH"]}
    )


def executable(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


GCC = b"\x7fELF\x00 zstd\x0013.2.1 20240316 (experimental)\x00(Pkg) \x00gcc version %s %s\n\x00"


def test_compilers_are_identified_by_their_bytes(tmp_path):
    def ask(**environ):
        return cxx.identity({"PATH": str(tmp_path / "bin"), **environ})

    assert ask() is None
    executable(
        tmp_path / "bin/g++",
        b"\x7fELF\x00GLIBC_2.2.5\x00"
        + b"x" * 5000
        + GCC.replace(b"13.2.1 20240316 (experimental)", b"10.5.0"),
    )
    assert ask() == "g++ 10.5.0"
    executable(tmp_path / "bin/g++", GCC)
    assert ask() == "g++ 13.2.1 20240316 (experimental)"
    executable(tmp_path / "bin/clang++", b"\x7fELF\x00clang -cc1 version 17.0.6\x00")
    assert ask(CXX="clang++") == "clang++ 17.0.6"
    assert ask(CXX=str(tmp_path / "bin/clang++")) == "clang++ 17.0.6"
    assert ask(CXX="clang++ -O3") is None  # Inductor starts CXX as one word, and finds no program either.
    assert ask(CXX="absent") is None


UBUNTU_13 = (  # A real driver has this order, and these strings of other programs.
    b"\x7fELF\x00GLIBC_2.3.2\x0013.3.0\x00-fversion-loops\x00gcc version %s %s\n\x00"
    b"2.1.0\x00(Ubuntu 13.3.0-6ubuntu2~24.04.1) \x00"
)


def test_a_gcc_with_versions_of_libraries_is_identified(tmp_path):
    environ = {"PATH": str(tmp_path / "usr/bin")}
    executable(tmp_path / "usr/bin/g++", UBUNTU_13)
    assert cxx.identity(environ) == "g++ 13.3.0"  # The package decides.
    executable(tmp_path / "usr/bin/g++", UBUNTU_13.replace(b"(Ubuntu 13.3.0-6ubuntu2~24.04.1)", b"(GCC)"))
    assert cxx.identity(environ).startswith("g++ sha256:")  # 13.3.0 or 2.1.0: the client does not guess.
    (tmp_path / "usr/lib/gcc/x86_64-linux-gnu/13").mkdir(parents=True)
    assert cxx.identity(environ) == "g++ 13.3.0"  # The folder decides.


def test_the_compiler_behind_a_script_is_identified(tmp_path):
    """A GPU image had such a script: `#!/bin/sh` and `exec /usr/gcc/bin/g++-real -B… … "$@"`."""
    executable(tmp_path / "local/g++-real", UBUNTU_13)
    script = f'#!/bin/sh\n# a comment\nexec {tmp_path}/local/g++-real -B/usr/gcc/bin/ "$@"\n'
    executable(tmp_path / "bin/g++", script.encode())
    assert cxx.identity({"PATH": str(tmp_path / "bin")}) == "g++ 13.3.0"
    executable(tmp_path / "bin/loop", f"#!/bin/sh\nexec {tmp_path}/bin/loop\n".encode())
    assert cxx.identity({"CXX": "loop", "PATH": str(tmp_path / "bin")}).startswith("loop sha256:")


def test_a_clang_that_is_a_small_program_over_its_library_is_identified(tmp_path):
    executable(tmp_path / "llvm/bin/clang-18", b"\x7fELF\x00libclang-cpp.so.18\x00")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/clang++").symlink_to(tmp_path / "llvm/bin/clang-18")
    executable(tmp_path / "llvm/lib/libclang-cpp.so.18", b"\x7fELF\x00clang -cc1 version 18.1.8\x00")
    assert cxx.identity({"CXX": "clang++", "PATH": str(tmp_path / "bin")}) == "clang++ 18.1.8"


def test_an_unknown_compiler_is_identified_by_its_bytes(tmp_path):
    texts = set()
    for content in (b"#!/bin/sh\nexec icpx $@\n", b"#!/bin/sh\nexec icpx -g\n"):
        executable(tmp_path / "bin/icpx", content)
        texts.add(cxx.identity({"CXX": "icpx", "PATH": str(tmp_path / "bin")}))
    assert len(texts) == 2
    assert all(text.startswith("icpx sha256:") for text in texts)
    executable(tmp_path / "bin/icpx", b"")
    assert cxx.identity({"CXX": "icpx", "PATH": str(tmp_path / "bin")}) is None


def test_the_compiler_behind_a_wrapper_is_identified(tmp_path):
    executable(tmp_path / "real/ccache", b"\x7fELF ccache")
    (tmp_path / "masks").mkdir()
    (tmp_path / "masks/g++").symlink_to(tmp_path / "real/ccache")
    executable(tmp_path / "bin/g++", GCC)
    path = f"{tmp_path}/masks{os.pathsep}{tmp_path}/bin"
    assert cxx.identity({"PATH": path}) == "g++ 13.2.1 20240316 (experimental)"
    assert cxx.identity({"PATH": f"{tmp_path}/masks"}) is None
