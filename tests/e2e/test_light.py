"""Test that attaching is light: it imports few modules on the application's own thread, and torch on no
thread.

The tests count modules instead of seconds: the seconds go to imports, and a count does not depend on other
users of the machine."""

from __future__ import annotations

from typing import Any

import pytest

from cachesvc_client.bundle.pack import SourceFile
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.environment.detect import detect
from cachesvc_client.publication.build_bundle import Draft, build_bundle
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest.records import Workload
from cachesvc_client.wire.names import Name, Target
from tests.weight import LOADED_BY_ATTACH

from .harness import environment, run

HEAVY = {
    "asyncio",
    "cryptography",
    "ctypes.util",
    "email",
    "http",
    "http.client",
    "importlib.metadata",
    "numpy",
    "pynvml",
    "socket",
    "ssl",
    "subprocess",
    "tomllib",
    "torch",
    "triton",
    "urllib.request",
    "zstandard",
}
"""Modules that the application's thread must not import."""
OURS = LOADED_BY_ATTACH | {"cachesvc_client.session.publish", "cachesvc_client.wire.codec"}
"""Modules that may be needed before a thread can start and the hooks are in place."""


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the answer of a process that attached to a bundle for this environment and waited for the
    restore.

    The files of the bundle are no real cache files: nothing is compiled."""
    place = tmp_path_factory.mktemp("light")
    key, bundle = SigningKey.generate(), place / "light.cachesvc"
    files = [SourceFile("inductor", f"fxgraph/ab/f{'ab' * 20}/{number:024}", b"graph") for number in range(3)]
    draft = Draft(
        name=Name.parse("team/light"),
        target=Target("light"),
        fingerprint=detect(environment(place)),
        workload=Workload(script=Digest.of(b"light")),
        scopes=("host",),
    )
    build_bundle(files, draft, key, bundle)
    return run("light.py", str(bundle), place=place, CACHESVC_TRUSTED_KEYS=str(key.public)).answer


def test_the_restore_is_whole_without_torch(answer: dict[str, Any]) -> None:
    assert answer["over"] and answer["status"] == "restored"
    assert {"cryptography", "zstandard"} <= set(answer["in_all"]), "the restore must have installed something"
    assert not {"torch", "triton", "numpy"} & set(answer["in_all"])


def test_the_applications_thread_imports_nothing_heavy(answer: dict[str, Any]) -> None:
    assert "cachesvc_client.session.session" in answer["attached"], "the audit hook sees imports"
    assert not HEAVY & set(answer["attached"])
    own = {name for name in answer["attached"] if name.startswith("cachesvc_client")}
    assert own <= OURS, sorted(own - OURS)


def test_the_applications_thread_imports_few_modules(answer: dict[str, Any]) -> None:
    """Python 3.11 showed 110 modules, three of them for each kind: half are small modules of cachesvc, and
    torch itself imports most of the others. tests/weight.py lists cachesvc's modules, and another test bounds
    their seconds."""
    assert len(set(answer["attached"])) <= 110, sorted(set(answer["attached"]))


def test_importing_the_package_imports_almost_nothing(answer: dict[str, Any]) -> None:
    own = [name for name in answer["imported"] if name.startswith("cachesvc_client")]
    assert own == ["cachesvc_client"]
    assert not HEAVY & set(answer["imported"])
