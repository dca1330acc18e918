"""Test what ``verify`` says of a release: by whose key, which files, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cachesvc.queries.release import SUFFIX, verify_release
from cachesvc.warm.checkout import Checkout
from cachesvc_client.bundle.seal import SigningKey, TrustedKey
from cachesvc_client.config.settings import Config
from cachesvc_client.wire.codec import canonical
from cachesvc_client.wire.errors import CacheSvcError, Corrupt, NotFound, Untrusted
from cachesvc_client.wire.manifest.provenance import ATTESTATION, BUILD_TYPE
from cachesvc_client.wire.manifest.records import PAYLOAD_TYPE
from tools import release_files
from tools.release_files import VERSION

KEY = SigningKey.generate()
COMMIT = Checkout("c0de" * 10, "git+https://github.com/org/cachesvc", Path("/"), ())


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """Return the statement about two files, as `make release` writes it."""
    made = tmp_path / "made"
    made.mkdir()
    (made / "one.whl").write_bytes(b"one")
    (made / f"cachesvc-docs-{VERSION}.tar.gz").touch()
    release_files.archive(_site(tmp_path), made / f"cachesvc-docs-{VERSION}.tar.gz")
    out = release_files.publish(made, tmp_path / "dist", KEY, COMMIT)
    return out / f"cachesvc-{VERSION}{SUFFIX}"


def _site(folder: Path) -> Path:
    site = folder / VERSION
    site.mkdir()
    (site / "index.html").write_text("page")
    return site


def config(key: str) -> Config:
    return Config.read({"CACHESVC_TRUSTED_KEYS": key})


TRUSTED = f"cachesvc={KEY.public}"


def test_a_release_is_verified_by_the_command(released: Path, command: Any) -> None:
    status, out, err = command(
        "verify", released, CACHESVC_TRUSTED_KEYS=TrustedKey(TRUSTED), CACHESVC_URL=None
    )
    assert (status, err) == (0, ""), err
    for words in (f"{released}: trusted", KEY.public.keyid, "one.whl", COMMIT.commit, "2 files as signed"):
        assert words in out, (words, out)
    [row] = json.loads(command("verify", released, "--json", CACHESVC_TRUSTED_KEYS=TRUSTED)[1])["rows"]
    assert set(row["files"]) == {"one.whl", f"cachesvc-docs-{VERSION}.tar.gz"}
    assert row["statement"]["predicate"]["buildDefinition"]["externalParameters"] == {"version": VERSION}


def test_a_file_that_is_absent_is_named_and_one_must_be_there(released: Path) -> None:
    (released.parent / "one.whl").unlink()
    assert verify_release(config(TRUSTED), released).absent == ("one.whl",)
    (released.parent / f"cachesvc-docs-{VERSION}.tar.gz").unlink()
    with pytest.raises(NotFound, match="no file of"):
        verify_release(config(TRUSTED), released)


def test_another_byte_is_refused(released: Path) -> None:
    (released.parent / "one.whl").write_bytes(b"two")
    with pytest.raises(Corrupt, match=r"one\.whl: its digest is"):
        verify_release(config(TRUSTED), released)


@pytest.mark.parametrize("prefix", ["", "*=", "team="])
def test_a_key_counts_only_if_it_is_trusted_for_releases_by_name(released: Path, prefix: str) -> None:
    """The key of a registry, which may sign for every namespace, signs no release."""
    with pytest.raises(Untrusted, match="no key is trusted"):
        verify_release(config(f"{prefix}{KEY.public}"), released)


def test_the_statement_of_another_key_is_refused(released: Path) -> None:
    with pytest.raises(Untrusted, match="which is not trusted"):
        verify_release(config(f"cachesvc={SigningKey.generate().public}"), released)


@pytest.mark.parametrize("name", ["../one.whl", "/etc/passwd", "..", "", "a/b", "one\n.whl"])
def test_a_name_that_leads_elsewhere_is_refused(released: Path, name: str) -> None:
    refuse(released, {**_statement(released), "subject": [{"name": name, "digest": {"sha256": "0" * 64}}]})


@pytest.mark.parametrize(
    "subject", [[], None, [{}], "text", [{"name": "one.whl", "digest": {"sha256": "x"}}]]
)
def test_a_malformed_statement_is_refused(released: Path, subject: object) -> None:
    refuse(released, {**_statement(released), "subject": subject})


def test_a_statement_about_something_else_is_refused(released: Path) -> None:
    """What the key signed for another purpose is no release: a build by warm, and a manifest."""
    text = json.dumps(_statement(released)).replace("urn:cachesvc:build:release:v1", BUILD_TYPE)
    refuse(released, json.loads(text), "it is about no release")
    refuse(released, {}, "statement")
    released.write_bytes(KEY.sign_bytes(canonical(_statement(released)), PAYLOAD_TYPE))
    with pytest.raises(Corrupt, match="payload type"):
        verify_release(config(TRUSTED), released)


def _statement(released: Path) -> dict[str, Any]:
    made = [path for path in released.parent.iterdir() if path.is_file() and path != released]
    return dict(release_files.statement(made, COMMIT))


def refuse(released: Path, statement: dict[str, Any], words: str = "statement") -> None:
    released.write_bytes(KEY.sign_bytes(canonical(statement), ATTESTATION))
    with pytest.raises(CacheSvcError, match=words):
        verify_release(config(TRUSTED), released)
