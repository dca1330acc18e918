"""Attaching is light: it imports little on the application's own thread, and torch on none. Modules are
counted and not seconds: they are what the seconds go to, and do not depend on who else uses the machine."""

from __future__ import annotations

from typing import Any

import pytest

from cachesvc_client.bundle.pack import SourceFile
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.environment.detect import detect
from cachesvc_client.publication.build_bundle import Draft, build_bundle
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Name, Target
from cachesvc_client.wire.records import Workload
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
"""None of these on the application's thread."""
OURS = LOADED_BY_ATTACH | {"cachesvc_client.session.publish", "cachesvc_client.wire.codec"}
"""What may be needed before a thread can be started and the hooks stand."""


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process says that attached to a bundle for this environment and waited for it. Files that no
    compiler would read do: nothing is compiled."""
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
    assert {"cryptography", "zstandard"} <= set(answer["in_all"]), "otherwise this would prove nothing"
    assert not {"torch", "triton", "numpy"} & set(answer["in_all"])


def test_the_applications_thread_imports_nothing_heavy(answer: dict[str, Any]) -> None:
    assert "cachesvc_client.session.session" in answer["attached"], "the audit hook sees imports"
    assert not HEAVY & set(answer["attached"])
    own = {name for name in answer["attached"] if name.startswith("cachesvc_client")}
    assert own <= OURS, sorted(own - OURS)


def test_the_applications_thread_imports_few_modules(answer: dict[str, Any]) -> None:
    """91 were seen with Python 3.11: half are cachesvc's own small ones, of the others most are those that
    torch itself imports. tests/weight.py names cachesvc's, and another test bounds their seconds."""
    assert len(set(answer["attached"])) <= 100, sorted(set(answer["attached"]))


def test_importing_the_package_imports_almost_nothing(answer: dict[str, Any]) -> None:
    own = [name for name in answer["imported"] if name.startswith("cachesvc_client")]
    assert own == ["cachesvc_client"]
    assert not HEAVY & set(answer["imported"])
