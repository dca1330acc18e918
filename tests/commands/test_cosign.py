"""cosign adds a second signature to a bundle file, for namespaces where more than one key must sign."""

from __future__ import annotations

import time

import pytest

from cachesvc_client.bundle.check import check_envelope
from cachesvc_client.bundle.file import open_bundle
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.trust_root.policy import SignerPolicy
from cachesvc_client.wire.errors import Untrusted
from tests.trust_root.repository import URL, Files, Repository


@pytest.fixture
def second(tmp_path):
    """The key of the second signer, and its file."""
    key = SigningKey.generate()
    key.save(tmp_path / "second.key")
    return key, {"CACHESVC_SIGNING_KEY": str(tmp_path / "second.key")}


def check(path, trusted, policy=None):
    return check_envelope(
        open_bundle(path)[0], trusted=trusted, expected=None, now=time.time(), policy=policy
    )


def test_two_signatures_reach_the_threshold_that_one_does_not(command, bundle, registry, second):
    key, variables = second
    path = bundle("prod/bert")
    repository = Repository()
    repository.delegate("prod", [registry.key, key], ["prod/trunk/*/*"], threshold=2)
    repository.publish("targets", "snapshot", "timestamp")
    policy = SignerPolicy(repository.refresh(Files()).targets, URL)
    with pytest.raises(Untrusted, match="demands 2 of 2"):
        check(path, [], policy)
    before = check(path, [registry.trust])

    status, out, err = command("cosign", path, **variables)

    assert (status, err) == (0, ""), err
    signers = f"signed by {registry.trust.short}, and now by {key.public.short}"
    assert f"prod/bert:latest bert/default: {signers}" in out
    assert check(path, [], policy).revision == before.revision, "it is the same revision"
    assert check(path, [key.public]).manifest == before.manifest
    signed = path.read_bytes()
    assert command("cosign", path, **variables)[0] == 0
    assert path.read_bytes() == signed, "once more adds nothing"
    status, out, err = command("push", path)
    assert (status, err) == (0, "") and "published" in out, err
    status, out, err = command("verify", path, CACHESVC_TRUSTED_KEYS=key.public)
    assert (status, err) == (0, ""), err


def test_what_nobody_trusted_has_signed_is_not_signed(command, bundle, second):
    _, variables = second
    path = bundle("prod/bert", key=SigningKey.generate())
    before = path.read_bytes()
    status, out, err = command("cosign", path, **variables)
    assert (status, out) == (7, "") and "which is not trusted" in err, err
    assert path.read_bytes() == before


def test_the_own_signature_is_not_anothers(command, bundle, second):
    key, variables = second
    path = bundle("prod/bert", key=key)
    status, _, err = command("cosign", path, CACHESVC_TRUSTED_KEYS=key.public, **variables)
    assert status == 7 and "no key is trusted" in err, err


def test_altered_bytes_are_not_signed(command, bundle, second):
    path = bundle("prod/bert")
    altered = path.read_bytes()[:-1] + b"?"
    path.write_bytes(altered)
    status, _, err = command("cosign", path, **second[1])
    assert status != 0 and "pack: digest" in err, err
    assert path.read_bytes() == altered


def test_without_a_key_one_line_says_so(command, bundle):
    status, _, err = command("cosign", bundle("prod/bert"))
    assert status == 2 and err.startswith("error: no signing key") and err.count("\n") == 1, err
