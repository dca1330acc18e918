"""What an operator withdrew does not come back: not under another tag, another envelope or another order of
its files, and not as a recording that somebody sends again after it was deleted."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from mirroring import eventually, resolved, running_pair
from registry_making import Publication, Server, make, next_sequence, ok, refused

from cachesvc_client.bundle.pack import SourceFile, write_pack
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.names import Tag
from tests.security.test_operator_signs import Liar

WHY = "wrong numbers"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("registry") / "data").running() as running:
        yield running


def quarantine(server: Server, made: Publication) -> None:
    ok(server.api().http.put(f"/v1/revisions/{made.revision}/quarantine", json={"why": WHY}))


def delete(server: Server, made: Publication, what: str = "entries") -> None:
    digest = made.manifest.entry if what == "entries" else made.revision
    ok(server.api().http.delete(f"/v1/{what}/{digest}"))


def offered(server: Server, name: str, *tags: str, namespace: str = "team") -> list[str]:
    answer = server.api().resolve(namespace, name, tags=list(tags or ["latest"]))
    return [row["revision"] for row in answer.json().get("revisions", [])]


def signed_again(made: Publication, key: SigningKey, tag: str = "prod", **changed: object) -> Publication:
    """The same bytes, signed as ``tag``."""
    statement = replace(made.manifest.statement, tag=Tag(tag), sequence=next_sequence())
    manifest = replace(made.manifest, statement=statement, **changed)
    return Publication(manifest, key.sign(manifest), made.pack)


def packed(made: Publication, key: SigningKey, files: list[SourceFile], tag: str = "prod") -> Publication:
    """A pack of ``files``, signed as ``tag``."""
    out = io.BytesIO()
    contents = write_pack(files, out)
    new = signed_again(made, key, tag, pack=contents.pack, frames=contents.frames, files=contents.files)
    return replace(new, pack=out.getvalue())


def test_an_operator_tags_what_is_in_quarantine(operator: Liar, name: str) -> None:
    server = operator.server
    made = operator.publish(make(server.key, name=name, content=name.encode()))
    quarantine(server, made)
    for words in ((), ("--apply",)):
        status, said = operator.admin("tag", f"team/{name}", "prod", *words)
        assert status != 0 and WHY in said and "admin quarantine release" in said
    assert offered(server, name, "prod") == []


def test_an_operator_rolls_back_to_what_is_in_quarantine(operator: Liar, name: str) -> None:
    server = operator.server
    first = operator.publish(make(server.key, name=name, content=name.encode()))
    second = operator.publish(make(server.key, name=name, content=name.encode() + b"2"), first)
    quarantine(server, first)
    for words in ((), ("--apply",)):
        status, said = operator.admin("revisions", "rollback", first.revision, *words)
        assert status != 0 and WHY in said
    assert offered(server, name) == [second.revision]


def test_a_client_of_its_own_signs_withdrawn_bytes_again(server: Server, name: str) -> None:
    api = server.api()
    made = make(server.key, name=name, content=name.encode())
    ok(api.publish(made))
    ok(api.publish(signed_again(made, server.key, "before")))
    quarantine(server, made)
    assert offered(server, name, "before") == []  # the bytes are withdrawn, under each tag

    for again in (
        signed_again(made, server.key),
        signed_again(made, server.key, measured={"compile": 9.0}),
        make(server.key, name=name + "-other", content=name.encode()),
        make(server.key, name=name, lane="pr-7", content=name.encode()),
        make(server.key, name=name, content=name.encode(), model=b"another model"),
    ):
        for publish in (api.publish, api.bundle):
            refused(publish(again), 403, "untrusted", WHY, made.revision[:19], "quarantine release")
    assert offered(server, name, "prod") == []
    ok(api.publish(make(server.key, name=name, tag="prod", content=b"another" + name.encode())))
    # Nobody withdraws what another namespace holds.
    ok(api.http.post("/v1/signers", json={"namespace": "other", "key": server.key.public}))
    ok(api.publish(make(server.key, namespace="other", name=name, content=name.encode())))


def test_withdrawn_files_come_in_another_pack(server: Server, name: str) -> None:
    api, one, two = server.api(), b"first " + name.encode(), b"second " + name.encode()
    files = [SourceFile("inductor", "aa/caa.py", one), SourceFile("inductor", "bb/cbb.py", two)]
    more = SourceFile("inductor", "cc/ccc.py", b"third " + name.encode())
    base = make(server.key, name=name, content=name.encode())
    made = packed(base, server.key, files, "latest")
    ok(api.publish(made))
    quarantine(server, made)
    moved = [replace(file, path=f"dd/{file.path}") for file in files]
    for again in (files[::-1], [*files, more], moved):
        refused(api.publish(packed(base, server.key, again)), 403, "untrusted", WHY)
    assert offered(server, name, "prod") == []
    ok(api.publish(packed(base, server.key, [files[0], more])))  # a part of it may be what is right


def test_a_release_offers_the_bytes_again(operator: Liar, name: str) -> None:
    server = operator.server
    made = operator.publish(make(server.key, name=name, content=name.encode()))
    again = signed_again(made, server.key, "before")
    operator.publish(again)
    quarantine(server, again)
    ok(server.api().http.delete(f"/v1/revisions/{made.revision}/quarantine"))
    assert offered(server, name) == [made.revision]
    assert offered(server, name, "before") == [again.revision]
    assert operator.admin("tag", f"team/{name}", "prod", "--apply")[0] == 0


@pytest.mark.parametrize("what", ["entries", "revisions"])
def test_a_recording_is_sent_again_after_the_deletion(server: Server, name: str, what: str) -> None:
    api = server.api()
    writer = server.api(
        ok(
            api.http.post(
                "/v1/tokens",
                json={
                    "label": "a writer without a key",
                    "role": "write",
                    "namespace": "team",
                    "days": 1,
                },
            )
        )["secret"]
    )
    older = make(server.key, name=name, content=name.encode() + b"0")
    bad = make(server.key, name=name, content=name.encode())
    good = make(server.key, name=name, content=name.encode() + b"2")
    ok(api.publish(bad))
    ok(api.publish(good, bad.revision))
    quarantine(server, bad)
    if what == "revisions":
        delete(server, bad, "revisions")
        ok(api.http.post("/v1/gc"))
        refused(writer.bundle(bad, good.revision), 409, "head_conflict")
    delete(server, good)
    ok(api.http.post("/v1/gc"))

    for recorded in (older, bad, signed_again(bad, server.key, "prod")):
        for publish in (writer.publish, writer.bundle):
            refused(publish(recorded), 403, "untrusted")
    assert offered(server, name) == []
    ok(writer.bundle(good))  # nobody withdrew this one

    [row] = [row for row in ok(api.http.get("/v1/quarantine")) if row["revision"] == bad.revision]
    assert row["why"] == f"{WHY} (deleted)"
    ok(api.http.delete(f"/v1/revisions/{bad.revision}/quarantine"))
    ok(writer.bundle(signed_again(bad, server.key, "prod")))


def test_a_recording_of_a_revoked_key_is_sent_again_when_the_key_counts_again(
    server: Server, name: str
) -> None:
    api, key = server.api(), SigningKey.generate()
    signer = {"namespace": "team", "key": key.public}
    ok(api.http.post("/v1/signers", json=signer))
    made = make(key, name=name, content=name.encode())
    ok(api.publish(made))
    ok(api.http.post("/v1/revocations", json={"key": key.public, "namespace": "team", "why": "leaked"}))
    delete(server, made)
    refused(api.publish(made), 403, "untrusted")
    ok(api.http.post("/v1/signers", params={"again": True}, json=signer))
    refused(api.publish(made), 403, "untrusted", "revoked")
    ok(api.publish(make(key, name=name, content=name.encode())))  # compiled anew, which may be the same


def test_a_mirror_offers_nothing_that_was_withdrawn(tmp_path: Path) -> None:
    with running_pair(tmp_path) as pair:
        api, key = pair.upstream.api(), pair.upstream.key
        made = make(key, content=b"withdrawn")
        ok(api.publish(made))
        reader, writer = pair.reader(), pair.reader("write")
        eventually(lambda: resolved(reader) == [made.revision], "the head")
        quarantine(pair.upstream, made)
        eventually(lambda: resolved(reader) == [], "the quarantine")
        for publish in (writer.publish, writer.bundle):
            refused(publish(signed_again(made, key)), 403, "untrusted")
        delete(pair.upstream, made)
        refused(writer.bundle(made), 403, "untrusted")
        assert resolved(reader) == []


def test_a_recording_that_is_older_than_a_deleted_head_is_sent_again(server: Server, name: str) -> None:
    """Nothing of it was withdrawn, but a node that never saw the newer one would take it."""
    api = server.api()
    first = make(server.key, name=name, content=name.encode())
    ok(api.bundle(first))
    for number in range(2):  # each deletion counts
        second = make(server.key, name=name, content=name.encode() + b"%d" % number)
        ok(api.bundle(second, first.revision if not number else None))
        delete(server, second)
        token = {"label": "w", "role": "write", "namespace": "team"}
        thief = server.api(ok(api.http.post("/v1/tokens", json=token))["secret"])
        refused(thief.bundle(first), 403, "untrusted", "is older than", "its entry was deleted")
        assert offered(server, name) == []
        first = second
    ok(api.bundle(second))  # the deleted one itself was not withdrawn
    assert offered(server, name) == [second.revision]


def test_withdrawn_bytes_come_by_another_order_of_events(tmp_path: Path) -> None:
    """An upload that was begun, or stored, before the quarantine; a larger pack of the same; other kinds and
    rights; after a start of the server, and in a registry that was restored."""
    server, name = Server(tmp_path / "data").start(), "order"
    api = server.api()
    made = make(server.key, name=name)
    again = signed_again(made, server.key)
    stored = ok(api.begin(again))["upload"]
    ok(api.put(stored, again.pack))
    begun = ok(api.begin(again))["upload"]
    ok(api.publish(made))
    quarantine(server, made)
    refused(api.commit(stored, again), 403, "untrusted", WHY)
    ok(api.put(begun, again.pack))
    refused(api.commit(begun, again), 403, "untrusted", WHY)

    [file] = [SourceFile(one.kind, one.path, b"kernel", one.mode) for one in made.manifest.files]
    others = [replace(file, mode=0o755), replace(file, kind="triton", path="ab" * 20 + "/a.json")]
    for other in ([others[0]], [others[1]], [file, others[1]]):
        refused(api.publish(packed(made, server.key, other)), 403, "untrusted", WHY)
    delete(server, made)
    for number in range(2):
        refused(server.api().bundle(again), 403, "untrusted", WHY)
        backup = tmp_path / f"backup-{number}"
        words = [sys.executable, "-m", "cachesvc", "admin", "--local", "--data", str(server.data)]
        said = json.loads(subprocess.run([*words, "backup", backup, "--json"], check=True, stdout=-1).stdout)
        assert server.stop() == 0
        words[-1] = str(tmp_path / f"restored-{number}")
        digest = ["--digest", said["digest"], "--apply"]
        subprocess.run([*words, "restore", backup, *digest], check=True, stdout=-1)
        token = server.token
        server = Server(Path(words[-1])).start()
        server.token = token
    assert server.stop() == 0
