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


ELF = Path("/proc/self/exe").read_bytes()[:20]
"""The head of a program of this machine."""


@pytest.fixture
def all_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take each program for one that runs: the compilers of these tests are a few bytes."""
    monkeypatch.setattr(cxx, "_runs", lambda *_: True)


GCC = ELF + b"\x00 zstd\x0013.2.1 20240316 (experimental)\x00(Pkg) \x00gcc version %s %s\n\x00"


@pytest.mark.usefixtures("all_run")
def test_compilers_are_identified_by_their_bytes(tmp_path):
    def ask(**environ):
        return cxx.identity({"PATH": str(tmp_path / "bin"), **environ})

    assert ask() is None
    executable(
        tmp_path / "bin/g++",
        ELF
        + b"\x00GLIBC_2.2.5\x00"
        + b"x" * 5000
        + GCC.replace(b"13.2.1 20240316 (experimental)", b"10.5.0"),
    )
    assert ask() == "g++ 10.5.0"
    executable(tmp_path / "bin/g++", GCC)
    assert ask() == "g++ 13.2.1 20240316 (experimental)"
    executable(tmp_path / "bin/clang++", ELF + b"\x00clang -cc1 version 17.0.6\x00")
    assert ask(CXX="clang++") == "clang++ 17.0.6"
    assert ask(CXX=str(tmp_path / "bin/clang++")) == "clang++ 17.0.6"
    assert ask(CXX="clang++ -O3") is None  # Inductor starts CXX as one word, and finds no program either.
    assert ask(CXX="absent") is None


UBUNTU_13 = (  # A real driver has this order, and these strings of other programs.
    ELF + b"\x00GLIBC_2.3.2\x0013.3.0\x00-fversion-loops\x00gcc version %s %s\n\x00"
    b"2.1.0\x00(Ubuntu 13.3.0-6ubuntu2~24.04.1) \x00"
)


@pytest.mark.usefixtures("all_run")
def test_a_gcc_with_versions_of_libraries_is_identified(tmp_path):
    environ = {"PATH": str(tmp_path / "usr/bin")}
    executable(tmp_path / "usr/bin/g++", UBUNTU_13)
    assert cxx.identity(environ) == "g++ 13.3.0"  # The package decides.
    executable(tmp_path / "usr/bin/g++", UBUNTU_13.replace(b"(Ubuntu 13.3.0-6ubuntu2~24.04.1)", b"(GCC)"))
    assert cxx.identity(environ).startswith("g++ sha256:")  # 13.3.0 or 2.1.0: the client does not guess.
    (tmp_path / "usr/lib/gcc/x86_64-linux-gnu/13").mkdir(parents=True)
    assert cxx.identity(environ) == "g++ 13.3.0"  # The folder decides.


@pytest.mark.usefixtures("all_run")
def test_the_compiler_behind_a_script_is_identified(tmp_path):
    """A GPU image had such a script: `#!/bin/sh` and `exec /usr/gcc/bin/g++-real -B… … "$@"`."""
    executable(tmp_path / "local/g++-real", UBUNTU_13)
    script = f'#!/bin/sh\n# a comment\nexec {tmp_path}/local/g++-real -B/usr/gcc/bin/ "$@"\n'
    executable(tmp_path / "bin/g++", script.encode())
    assert cxx.identity({"PATH": str(tmp_path / "bin")}) == "g++ 13.3.0"
    executable(tmp_path / "bin/loop", f"#!/bin/sh\nexec {tmp_path}/bin/loop\n".encode())
    assert cxx.identity({"CXX": "loop", "PATH": str(tmp_path / "bin")}).startswith("loop sha256:")


@pytest.mark.usefixtures("all_run")
def test_a_clang_that_is_a_small_program_over_its_library_is_identified(tmp_path):
    executable(tmp_path / "llvm/bin/clang-18", ELF + b"\x00libclang-cpp.so.18\x00")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/clang++").symlink_to(tmp_path / "llvm/bin/clang-18")
    executable(tmp_path / "llvm/lib/libclang-cpp.so.18", ELF + b"\x00clang -cc1 version 18.1.8\x00")
    assert cxx.identity({"CXX": "clang++", "PATH": str(tmp_path / "bin")}) == "clang++ 18.1.8"


@pytest.mark.usefixtures("all_run")
def test_an_unknown_compiler_is_identified_by_its_bytes(tmp_path):
    texts = set()
    for content in (b"#!/bin/sh\nexec icpx $@\n", b"#!/bin/sh\nexec icpx -g\n"):
        executable(tmp_path / "bin/icpx", content)
        texts.add(cxx.identity({"CXX": "icpx", "PATH": str(tmp_path / "bin")}))
    assert len(texts) == 2
    assert all(text.startswith("icpx sha256:") for text in texts)


@pytest.mark.usefixtures("all_run")
def test_the_compiler_behind_a_wrapper_is_identified(tmp_path):
    executable(tmp_path / "real/ccache", b"\x7fELF ccache")
    (tmp_path / "masks").mkdir()
    (tmp_path / "masks/g++").symlink_to(tmp_path / "real/ccache")
    executable(tmp_path / "bin/g++", GCC)
    path = f"{tmp_path}/masks{os.pathsep}{tmp_path}/bin"
    assert cxx.identity({"PATH": path}) == "g++ 13.2.1 20240316 (experimental)"
    assert cxx.identity({"PATH": f"{tmp_path}/masks"}) is None


def copied(path: Path) -> Path:
    """Copy this machine's compiler without its parts, as an image does that leaves them out."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(os.path.realpath(shutil.which("g++")), path))


def foreign(path: Path) -> Path:
    """Copy it, as machine code of another machine."""
    data = bytearray(copied(path).read_bytes())
    data[18:20] = b"\xf3\x7f"
    return executable(path, bytes(data))


BROKEN = {
    "a script that fails": lambda path: executable(path, b"#!/bin/sh\nexit 1\n"),
    "a script of a compiler that is gone": lambda path: executable(
        path, b'#!/bin/sh\nexec /absent/g++ "$@"\n'
    ),
    "a script without its interpreter": lambda path: executable(path, b"#!/absent/sh\n"),
    "an empty file": lambda path: executable(path, b""),
    "no program": lambda path: executable(path, b"no program"),
    "machine code of another machine": foreign,
    "a driver without its parts": copied,
}


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")
@pytest.mark.parametrize("kind", BROKEN)
def test_a_compiler_that_cannot_run_is_none(tmp_path, kind):
    BROKEN[kind](tmp_path / "bin" / "g++")
    assert cxx.identity({"PATH": str(tmp_path / "bin")}) is None
    assert cxx.identity({"CXX": str(tmp_path / "bin" / "g++"), "PATH": os.environ["PATH"]}) is None


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")
def test_a_script_of_unknown_content_is_run_once(tmp_path):
    """It stays another compiler than the one it runs: it may have flags of its own."""
    real, log = shutil.which("g++"), tmp_path / "runs"
    script = f'#!/bin/sh\necho "$@" >> {log}\n{real} "$@"\n'
    executable(tmp_path / "bin/g++", script.encode())
    environ = {"PATH": f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}"}
    assert {cxx.identity(environ) for _ in range(3)} == {cxx.identity(environ)} - {None}
    assert log.read_text() == "--version\n"


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")
def test_a_compiler_with_its_parts_is_not_run(monkeypatch):
    def fail(*arguments):
        raise AssertionError(arguments)

    monkeypatch.setattr(cxx, "_runs", fail)
    assert cxx.identity({"PATH": os.environ["PATH"]})
