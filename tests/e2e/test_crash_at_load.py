"""Test a revision that crashes the process which loads it: after two of them the node does without it, and
says so."""

from __future__ import annotations

import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from cachesvc_client.bundle.pack import SourceFile
from cachesvc_client.bundle.seal import SigningKey

from .conftest import NAME, Built
from .harness import SCALAR, ProgramResult, run
from .rebuild import rebuild
from .registries import client, prepare, serve
from .test_reports import uses

pytestmark = pytest.mark.compiles

CRASHED = "two processes of this node crashed while they loaded files of revision sha256:"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return a library that aborts the process which loads it."""
    return _built(tmp_path_factory.mktemp("library"), "abort()")


def _built(folder: Path, at_load: str) -> bytes:
    source, library = folder / "made.c", folder / "made.so"
    source.write_text(
        "#include <signal.h>\n#include <stdlib.h>\n#include <unistd.h>\n"
        f"static void __attribute__((constructor)) at_load(void) {{ {at_load}; }}\n"
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library.read_bytes()


def _crashing(bundle: Path, key: SigningKey, out: Path, library: bytes) -> Path:
    """Build a bundle again, whose host kernels abort at their load."""

    def change(file: SourceFile) -> SourceFile:
        return replace(file, data=library) if file.path.endswith(".so") else file

    rebuild(bundle, key, out, change)
    return out


def _serve(place: Path, *arguments: str, **variables: str) -> ProgramResult:
    return run("canary.py", *arguments, place=place, prepared=True, **SCALAR, **variables)


def test_after_two_crashes_the_node_does_without_the_revision_until_another_replaces_it(
    tmp_path: Path, small: Built, library: bytes
) -> None:
    wrong = _crashing(small.bundle, small.key, tmp_path / "wrong.cachesvc", library)
    place, trusted = tmp_path / "host", small.trusted
    for _ in range(2):
        crash = _serve(place, str(wrong), CACHESVC_TRUSTED_KEYS=trusted)
        assert crash.code == -signal.SIGABRT, crash.err[-3000:]
    second = _serve(place, str(wrong), CACHESVC_TRUSTED_KEYS=trusted)
    answer = second.answer
    assert max(answer["differences"]) < 1e-5 and answer["compilations"][0] > 0, answer
    assert any(CRASHED in reason for reason in answer["reasons"]), answer
    [line] = [line for line in second.err.splitlines() if CRASHED in line]
    [mark] = (place / "home").glob(".cache/cachesvc/v1/distrusted/*")
    assert f"or remove {mark} if they crashed of something else" in line
    again = _serve(place, str(wrong), CACHESVC_TRUSTED_KEYS=trusted)
    assert again.answer["compilations"] == [0, 0, 0], "what the second one compiled is this node's own"

    newer = tmp_path / "newer.cachesvc"
    rebuild(small.bundle, small.key, newer, lambda file: file)
    replaced = _serve(place, str(newer), CACHESVC_TRUSTED_KEYS=trusted)
    assert replaced.answer["state"] == "hit" and not mark.exists()


def test_a_kill_in_the_middle_of_a_load_withdraws_nothing(tmp_path: Path, small: Built) -> None:
    """As the kernel's, where memory ran out, or of whoever may kill the service."""
    killed = _crashing(
        small.bundle, small.key, tmp_path / "k.cachesvc", _built(tmp_path, "kill(getpid(), SIGKILL)")
    )
    place, trusted = tmp_path / "host", small.trusted
    for _ in range(2):
        killed_there = _serve(place, str(killed), CACHESVC_TRUSTED_KEYS=trusted)
        assert killed_there.code == -signal.SIGKILL, "it loads the revision each time"
    assert not list((place / "home").glob(".cache/cachesvc/v1/distrusted/*"))


def test_a_registry_hears_of_it(tmp_path: Path, small: Built, library: bytes) -> None:
    wrong = _crashing(small.bundle, small.key, tmp_path / "wrong.cachesvc", library)
    prepare(tmp_path / "registry", small.key.text)
    with serve(tmp_path / "registry", prepared=False) as served:
        pushed = client("push", str(wrong), **served.publisher)
        assert pushed.returncode == 0, pushed.stderr
        words = (f"name={NAME}", "small=1")
        for number in range(3):
            variables = {**SCALAR, **served.variables}
            result = run("serve.py", *words, place=tmp_path / "host", prepared=True, **variables)
            assert (result.code == 0) == (number == 2), result.err[-3000:]
        assert result.answer["state"] == "miss", result.answer
        [use] = uses(served)
        assert (use["hit"], use["inert"]) == (0, 1)


def test_what_this_node_compiled_itself_is_removed_after_a_crash(
    tmp_path: Path, small: Built, library: bytes
) -> None:
    """As where an update of the machine makes old machine code crash."""
    missing = str(tmp_path / "none.cachesvc")
    cold = _serve(tmp_path, missing, CACHESVC_TRUSTED_KEYS=small.trusted)
    assert cold.answer["compilations"][0] > 0, cold.answer
    [own] = (tmp_path / "home").glob(".cache/cachesvc/v1/own/*")
    [key] = (tmp_path / "home").rglob("node.key")
    kept, node_key = own.read_bytes(), SigningKey.load(key)
    own.with_suffix(".before").write_bytes(kept)
    _crashing(own.with_suffix(".before"), node_key, own, library)
    for _ in range(2):
        crash = _serve(tmp_path, missing, CACHESVC_TRUSTED_KEYS=small.trusted)
        assert crash.code == -signal.SIGABRT, crash.err[-3000:]
    again = _serve(tmp_path, missing, CACHESVC_TRUSTED_KEYS=small.trusted)
    assert again.answer["compilations"][0] > 0 and max(again.answer["differences"]) < 1e-5, again.answer
    assert f"removed: {own}: two processes of this node crashed while they loaded a file of it" in again.err
