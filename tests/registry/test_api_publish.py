"""Publish, resolve and download over HTTP, against a real server process."""

from __future__ import annotations

from registry_making import Api, make, ok

from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.digest import Digest


def test_published_is_resolved_and_downloaded(api: Api, key: SigningKey) -> None:
    made = make(key, name="first")
    committed = ok(api.publish(made))
    assert committed == {"entry": made.manifest.entry, "revision": made.revision, "created": True}
    found = ok(api.resolve(name="first"))
    assert found["tag"] == "latest"
    [revision] = found["revisions"]
    assert revision["envelope"].encode() == made.envelope
    assert (revision["entry"], revision["revision"]) == (made.manifest.entry, made.revision)
    assert (revision["pack"], revision["pack_size"]) == (Digest.of(made.pack), len(made.pack))
    answer = api.http.get(revision["pack_url"])
    assert answer.content == made.pack
    assert answer.headers["etag"] == f'"{Digest.of(made.pack)}"'
