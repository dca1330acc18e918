"""What is quarantined, or signed by a key that was removed or is no longer trusted, is not run again on a
node that had it: not at the next start, and not while a process that started before still uses it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.http.registry import Remote
from cachesvc_client.wire.names import Name
from tests.e2e.registries import Served, client, prepare, serve

from .attacker import Made, running_python, runs, start
from .conftest import NAME

pytestmark = pytest.mark.compiles

Revoke = Callable[[Served, str], None]
"""Takes a registry and the key that signed."""


def quarantine(served: Served, _signer: str) -> None:
    with Remote(served.url, served.token) as remote:
        [entry] = remote.entries(Name.parse(NAME))
    done = client(
        "admin", "quarantine", "set", str(entry.revision), "--why", "it leaked", "--apply", **served.variables
    )
    assert done.returncode == 0, done.stderr


def remove_the_signer(served: Served, signer: str) -> None:
    done = client("admin", "signers", "remove", signer, "-n", "team-b", "--apply", **served.variables)
    assert done.returncode == 0, done.stderr


def trust_another_key(_served: Served, _signer: str) -> None:
    """The next start trusts another one."""


@pytest.mark.parametrize(
    ("revoke", "peer"),
    [(quarantine, False), (quarantine, True), (remove_the_signer, True), (trust_another_key, True)],
    ids=["quarantine-alone", "quarantine-with-a-peer", "removed-with-a-peer", "untrusted-with-a-peer"],
)
def test_revoked_code_is_not_run_again(
    honest: Made, marker: Path, tmp_path: Path, revoke: Revoke, peer: bool
) -> None:
    place = tmp_path / "node"
    place.mkdir()
    prepare(tmp_path, SigningKey.generate().text)
    leaked = honest.signed(NAME, tmp_path / "leaked.cachesvc", SigningKey.generate(), marker)
    leaked.key.save(tmp_path / "leaked.key")
    with serve(tmp_path) as served, ExitStack() as stack:
        added = client("admin", "signers", "add", leaked.trusted, "-n", "team-b", **served.variables)
        assert added.returncode == 0, added.stderr
        variables = {**served.variables, "CACHESVC_TRUSTED_KEYS": leaked.trusted}
        signing = {"CACHESVC_SIGNING_KEY": str(tmp_path / "leaked.key")}
        assert client("push", str(leaked.bundle), **variables, **signing).returncode == 0
        first = stack.enter_context(running_python("service.py", NAME, place=place, **variables))
        before = runs(marker)
        assert before > 0, first.answer
        if not peer:
            stack.close()
        revoke(served, leaked.trusted)
        if revoke is trust_another_key:
            variables["CACHESVC_TRUSTED_KEYS"] = str(SigningKey.generate().public)
        for answer in (place / "home/.cache/cachesvc/v1/resolved").iterdir():
            answer.unlink()  # it is remembered for 5 s
        again = start("service.py", NAME, place=place, **variables)
        assert runs(marker) == before, again
        assert again["state"] == "miss" and again["difference"] < 1e-5 and again["revisions"] == [], again
