"""A key that is trusted for one namespace signs for no other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from registry_making import Publication, Server, make, ok

from cachesvc_client.bundle.check import Verified, check_envelope
from cachesvc_client.bundle.file import write_bundle
from cachesvc_client.bundle.seal import PublicKey, SigningKey, TrustedKey
from cachesvc_client.config.login import Login
from cachesvc_client.config.settings import Config
from cachesvc_client.environment.detect import detect
from cachesvc_client.wire.errors import InvalidRequest, Untrusted

REPOSITORY = Path(__file__).parents[2]
A, B = SigningKey.generate(), SigningKey.generate()

SERVICE = """
import json, sys
import cachesvc_client
sessions = [cachesvc_client.attach(name or None) for name in sys.argv[1].split(";")]
over = [session.wait(60) for session in sessions]
results = [session.result for session in sessions if session.result]
installed = [str(entry.manifest.statement.namespace) for one in results for entry in one.installed]
print(json.dumps({
    "over": over,
    "errors": [str(session.error or "") for session in sessions],
    "problems": [line for one in results for line in one.problems],
    "installed": sorted(set(installed)),
}))
"""


@dataclass
class World:
    """A registry in which A's signatures count everywhere, and what A published in two namespaces."""

    server: Server
    place: Path
    published: dict[str, Publication]

    def service(self, names: str, *attached: str, **variables: str) -> Any:
        """What came of it in a fresh process that attaches to ``attached``, one after the other."""
        env = {"CACHESVC_NAME": names, "CACHESVC_URL": self.server.url, "CACHESVC_TOKEN": self.server.token}
        done = subprocess.run(
            [sys.executable, "-c", SERVICE, ";".join(attached)],
            env=self.environment(**{**env, **variables}),
            cwd=self.place,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def client(self, *words: object, **variables: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "cachesvc", *map(str, words)],
            env=self.environment(**variables),
            cwd=self.place,
            capture_output=True,
            text=True,
            timeout=120,
        )
        return done.returncode, done.stdout + done.stderr

    def environment(self, **variables: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("CACHESVC_")}
        kept |= {"HOME": str(self.place), "CACHESVC_STORE": str(self.place / "store")}
        kept |= {"TORCHINDUCTOR_CACHE_DIR": str(self.place / "cache")}
        kept.pop("XDG_CONFIG_HOME", None)
        kept["PYTHONPATH"] = f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'client'}"
        return {name: value for name, value in {**kept, **variables}.items() if value}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, dict[str, Publication]]]:
    server = Server(tmp_path_factory.mktemp("registry") / "data").start()
    ok(server.api().http.post("/v1/signers", json={"namespace": "*", "key": A.public}))
    published = {}
    for namespace in ("team-a", "team-b"):
        path, content = f"aa/c{'a' * 30}.picked_kernel", namespace.encode()
        made = make(A, namespace=namespace, name="x", path=path, content=content, fingerprint=detect())
        ok(server.api().publish(made))
        published[namespace] = made
    yield server, published
    assert server.stop() == 0


@pytest.fixture
def world(registry: tuple[Server, dict[str, Publication]], tmp_path: Path) -> World:
    return World(registry[0], tmp_path, registry[1])


BOTH = "team-a/x,team-b/x"


def test_a_signer_of_one_namespace_cannot_publish_into_another(world: World) -> None:
    keys = f"team-a={A.public},team-b={B.public}"
    seen = world.service(BOTH, "", CACHESVC_TRUSTED_KEYS=keys)
    assert seen["installed"] == ["team-a"]
    [problem] = seen["problems"]
    assert f"key {A.public.short} signed this for team-b/x:latest" in problem
    assert "trusted for team-a only" in problem and f'"team-b={A.public}"' in problem


def test_a_key_without_a_namespace_is_refused_beside_names_of_several(world: World) -> None:
    seen = world.service(BOTH, "", CACHESVC_TRUSTED_KEYS=A.public)
    assert (seen["installed"], seen["over"]) == ([], [True])
    [error] = seen["errors"]
    assert f"trusted key {A.public.short} names no namespace" in error
    assert f'"team-a={A.public}"' in error and f'"*={A.public}"' in error and "\n" not in error


def test_names_that_are_attached_to_one_by_one_count_together(world: World) -> None:
    seen = world.service("", "team-a/x", "team-b/x", CACHESVC_TRUSTED_KEYS=A.public)
    assert "team-b" not in seen["installed"]
    assert "names no namespace" in seen["errors"][1]


@pytest.mark.parametrize("names", ["team-a/x", "team-a/x:latest,team-a/y"])
def test_a_key_without_a_namespace_counts_for_names_of_one(world: World, names: str) -> None:
    assert world.service(names, "", CACHESVC_TRUSTED_KEYS=A.public)["installed"] == ["team-a"]


@pytest.mark.parametrize(
    "keys", [f"*={A.public}", f"team-a={A.public},team-b={A.public}"], ids=["all", "each by name"]
)
def test_a_key_may_be_trusted_for_several(world: World, keys: str) -> None:
    seen = world.service(BOTH, "", CACHESVC_TRUSTED_KEYS=keys)
    assert seen["installed"] == ["team-a", "team-b"], seen


def test_bundles_without_a_name_go_by_what_they_say_themselves(world: World) -> None:
    folder = world.place / "bundles"
    folder.mkdir()
    for namespace, made in world.published.items():
        (world.place / "pack").write_bytes(made.pack)
        write_bundle(folder / f"{namespace}.cachesvc", made.envelope, world.place / "pack")
    variables = {"CACHESVC_BUNDLE": str(folder), "CACHESVC_URL": "", "CACHESVC_TOKEN": ""}
    seen = world.service("", "", CACHESVC_TRUSTED_KEYS=f"team-a={A.public}", **variables)
    assert seen["installed"] == ["team-a"]
    assert "trusted for team-a only" in seen["problems"][0]


def test_commands_go_by_it_too(world: World) -> None:
    access = {"CACHESVC_URL": world.server.url, "CACHESVC_TOKEN": world.server.token}
    status, said = world.client(
        "pull", "team-b/x", "--into", "out", **access, CACHESVC_TRUSTED_KEYS=f"team-a={A.public}"
    )
    assert status == Untrusted.exit_status and "trusted for team-a only" in said
    status, said = world.client(
        "pull", "team-b/x", "--into", "out", **access, CACHESVC_TRUSTED_KEYS=f"team-b={A.public}"
    )
    assert status == 0, said
    _, said = world.client("doctor", "team-a/x", "team-b/x", **access, CACHESVC_TRUSTED_KEYS=A.public)
    assert "names no namespace" in said


def test_login_stores_the_namespace_and_reads_what_was_stored_before(world: World) -> None:
    url, token = world.server.url, world.server.token
    trust = f"team-a={A.public}"
    status, said = world.client("login", url, "--token", token, "--trust", trust, "--trust", B.public)
    assert status == 0, said
    assert Config.read({"HOME": str(world.place)}).trusted_keys == (trust, B.public)
    old = {"default": url, "format": "cachesvc.login/1", "registries": {url: {"trusted_keys": [A.public]}}}
    path = world.place / ".config" / "cachesvc" / "login.json"
    path.write_text(json.dumps(old))
    [key] = Login.read({"HOME": str(world.place)}).registries[url].trusted_keys
    assert (key.key, key.namespace) == (A.public, None)
    status, said = world.client("login", url, "--token", token, "--trust", "team a=" + A.public)
    assert status == InvalidRequest.exit_status and "--trust" in said and "namespace=ed25519" in said


def checked(envelope: bytes, *trusted: str) -> Verified:
    keys = [TrustedKey(text) for text in trusted]
    return check_envelope(envelope, trusted=keys, expected=None, now=time.time())


def test_of_several_signatures_the_one_that_counts_there_is_taken() -> None:
    made = make(A, namespace="team-b")
    one, other = json.loads(made.envelope), json.loads(B.sign(made.manifest))
    one["signatures"] += other["signatures"]
    envelope = json.dumps(one).encode()
    assert checked(envelope, f"team-a={A.public}", f"team-b={B.public}").signer == B.public
    assert checked(envelope, f"team-a={A.public}", f"team-b={A.public}").signer == A.public
    with pytest.raises(Untrusted, match="trusted for team-a, team-c only"):
        checked(envelope, f"team-a={A.public}", f"team-c={B.public}")


@pytest.mark.parametrize("text", ["{key}", "*={key}", "team-a={key}", "a.b_c-9={key}"])
def test_a_trusted_key_is_its_text(text: str) -> None:
    written = text.format(key=A.public)
    trusted = TrustedKey(written)
    assert (str(trusted), trusted.key) == (written, A.public)
    assert TrustedKey(str(trusted)) == trusted


@pytest.mark.parametrize("text", ["={key}", "Team={key}", "a/b={key}", "a=b={key}", "team-a=", "a= {key}"])
def test_what_is_no_trusted_key(text: str) -> None:
    with pytest.raises(ValueError, match="trusted public key"):
        TrustedKey(text.format(key=A.public))


def test_a_public_key_is_no_trusted_key_of_a_namespace() -> None:
    with pytest.raises(ValueError, match="public key"):
        PublicKey(f"team-a={A.public}")
