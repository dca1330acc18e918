"""A withdrawal reaches what was made with the withdrawn: at the registry, on mirrors and on nodes."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mirroring import eventually, resolved, running_pair
from registry_making import Api, Publication, Server, make, ok, refused

from cachesvc.index.engine import view_sqlite
from cachesvc.index.entries.heads import Place
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest.ancestors import MAX_ANCESTORS, Ancestor, in_order, line_of
from cachesvc_client.wire.manifest.records import PAYLOAD_TYPE
from cachesvc_client.wire.names import Namespace, ShortName
from tests.security.test_operator_signs import Liar
from tests.security.test_withdrawn import WHY, delete, offered, quarantine

KEYS = {"lane": SigningKey.generate(), "other": SigningKey.generate()}
"""Keys of other signers than the registry's own."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("registry") / "data").running() as running:
        for namespace in ("team", "other"):
            for key in (running.key, *KEYS.values()):
                signer = {"namespace": namespace, "key": key.public}
                ok(running.api().http.post("/v1/signers", json=signer))
        yield running


@pytest.fixture
def api(server: Server) -> Api:
    return server.api()


def of(made: Publication, key: SigningKey, namespace: str = "team") -> Ancestor:
    return Ancestor(made.revision, Namespace(namespace), key.public)


def made_with(key: SigningKey, name: str, *ancestors: Ancestor, **more: Any) -> Publication:
    """A revision of bytes of its own."""
    content = f"{name} {more} {ancestors}".encode()
    return make(key, **{"name": name, "content": content, "ancestors": in_order(ancestors), **more})


@pytest.mark.parametrize("names_all", [True, False], ids=["the client's", "one that names the nearest alone"])
def test_a_quarantine_reaches_what_was_made_with_it_and_a_release_ends_that(
    operator: Liar, api: Api, name: str, names_all: bool
) -> None:
    server = operator.server
    first = make(KEYS["lane"], name=name + "a", lane="pr-7", content=name.encode())
    ok(api.publish(first))
    near = of(first, KEYS["lane"])
    second = made_with(server.key, name + "b", near)
    ok(api.publish(second))
    far = (of(second, server.key), near)
    third = made_with(server.key, name + "c", *(far if names_all else far[:1]))
    ok(api.publish(third))
    alone = made_with(server.key, name + "d")
    ok(api.publish(alone))

    status, said = operator.admin("quarantine", "set", first.revision, "--why", WHY, "--apply")
    assert status == 0 and "withheld too: 2 revisions made with it" in said, said
    assert all(one.revision[7:19] in said for one in (second, third)), said
    reason = f"made with revision {first.revision[:19]}, which was withdrawn: {WHY}"
    for letter in "bc":
        answer = ok(api.resolve(name=name + letter))
        [rejected] = answer["rejected"]
        assert answer["revisions"] == [] and rejected["differences"][0]["mine"] == reason, answer
    assert offered(server, name + "d") == [alone.revision]
    reader = {"label": "reader", "role": "read", "namespace": "team", "days": 1}
    secret = ok(api.http.post("/v1/tokens", json=reader))["secret"]
    refused(server.api(secret).pack(third.revision), 404, "not_found", reason)
    assert reason in operator.admin("quarantine", "list")[1].replace("\n", " ")
    status, said = operator.admin("quarantine", "release", second.revision)
    assert status != 0 and first.revision in said, said

    ok(api.http.delete(f"/v1/revisions/{first.revision}/quarantine"))
    assert [offered(server, name + letter) for letter in "bc"] == [[second.revision], [third.revision]]


def test_what_has_two_withdrawn_ancestors_waits_for_both(server: Server, api: Api, name: str) -> None:
    one, two = (
        make(KEYS["lane"], name=name + text, lane="pr-7", content=name.encode() + text.encode())
        for text in ("one", "two")
    )
    for made in (one, two):
        ok(api.publish(made))
    both = made_with(server.key, name, of(one, KEYS["lane"]), of(two, KEYS["lane"]))
    ok(api.publish(both))
    quarantine(server, one)
    quarantine(server, two)
    ok(api.http.delete(f"/v1/revisions/{one.revision}/quarantine"))
    assert offered(server, name) == []
    quarantine(server, both)  # a reason of its own
    ok(api.http.delete(f"/v1/revisions/{two.revision}/quarantine"))
    assert offered(server, name) == []
    ok(api.http.delete(f"/v1/revisions/{both.revision}/quarantine"))
    assert offered(server, name) == [both.revision]


def test_a_withdrawn_ancestor_is_refused_at_a_commit_also_when_it_is_deleted(
    server: Server, api: Api, name: str
) -> None:
    bad = make(KEYS["lane"], name=name + "bad", lane="pr-7", content=name.encode())
    ok(api.publish(bad))
    between = made_with(server.key, name + "b", of(bad, KEYS["lane"]))
    ok(api.publish(between))
    before = made_with(server.key, name, of(bad, KEYS["lane"]))
    ok(api.publish(before))
    quarantine(server, bad)
    delete(server, bad)
    assert offered(server, name) == []
    for ancestor in (of(bad, KEYS["lane"]), of(between, server.key)):
        late = made_with(server.key, name + "late", ancestor)
        for publish in (api.publish, api.bundle):
            refused(publish(late), 403, "untrusted", bad.revision[:19], WHY)
    ok(api.http.delete(f"/v1/revisions/{bad.revision}/quarantine"))
    assert offered(server, name) == [before.revision]


@pytest.mark.parametrize("how", ["by an operator", "by retention"])
def test_what_was_deleted_is_withdrawn_by_its_digest(operator: Liar, api: Api, name: str, how: str) -> None:
    """Found out too late: what was made with it is withheld, and no recording of it is taken again."""
    server = operator.server
    bad = make(KEYS["lane"], name=name + "bad", lane="pr-7", content=name.encode())
    ok(api.publish(bad))
    made = made_with(server.key, name, of(bad, KEYS["lane"]))
    ok(api.publish(made))
    if how == "by an operator":
        delete(server, bad)
    else:
        remove_as_collection_does(server, bad)
    assert offered(server, name) == [made.revision]
    status, said = operator.admin("quarantine", "set", bad.revision, "--why", WHY, "--apply")
    assert status == 0 and made.revision[7:19] in said, said
    assert offered(server, name) == []
    refused(api.publish(bad), 403, "untrusted", WHY)
    refused(api.publish(made_with(server.key, name + "z", of(bad, KEYS["lane"]))), 403, "untrusted", WHY)
    listed = operator.admin("quarantine", "list")[1].replace("\n", " ")
    assert bad.revision[7:19] in listed and f"{WHY} (deleted)" in listed, listed
    ok(api.http.put(f"/v1/revisions/{bad.revision}/quarantine", json={"why": "again"}))
    assert operator.admin("quarantine", "release", bad.revision[:20])[0] == 0
    assert offered(server, name) == [made.revision]
    ok(api.publish(bad))


def test_what_nobody_here_knows_is_withdrawn_by_its_digest_and_namespace(
    operator: Liar, api: Api, name: str
) -> None:
    """Retention removed it and nothing was made with it, but a bundle file of it is somewhere."""
    server = operator.server
    bad = make(KEYS["lane"], name=name, lane="pr-7", content=name.encode())
    ok(api.publish(bad))
    remove_as_collection_does(server, bad)
    path = f"/v1/revisions/{bad.revision}/quarantine"
    refused(api.http.put(path, json={"why": WHY}), 404, "not_found", "-n NAMESPACE")
    for place in ("team", "other"):
        body = {"label": "admin", "role": "admin", "namespace": place, "days": 1}
        one = server.api(ok(api.http.post("/v1/tokens", json=body))["secret"])
        answer = one.http.put(path, json={"why": WHY}, params={"namespace": place})
        refused(answer, 404, "not_found", "does not exist")
    status, said = operator.admin("quarantine", "set", bad.revision, "-n", "team", "--why", WHY, "--apply")
    assert status == 0, said
    for publish in (api.publish, api.bundle):
        refused(publish(bad), 403, "untrusted", WHY)
    refused(api.publish(made_with(server.key, name, of(bad, KEYS["lane"]))), 403, "untrusted", WHY)
    assert operator.admin("quarantine", "release", bad.revision)[0] == 0
    ok(api.publish(bad))


def remove_as_collection_does(server: Server, made: Publication) -> None:
    """Collection writes no line of its own for each revision."""
    with closing(sqlite3.connect(server.data / "index.sqlite3", timeout=60)) as index, index:
        index.execute("PRAGMA foreign_keys = on")
        index.execute("UPDATE entries SET head = NULL WHERE head = ?", (made.revision,))
        index.execute("DELETE FROM revisions WHERE revision = ?", (made.revision,))


def test_who_may_not_administer_where_it_was_withdraws_no_deleted_revision(
    server: Server, api: Api, name: str
) -> None:
    """Not by a claim either: what names it as an ancestor in another namespace gives nobody a right there."""
    admin = {"label": "admin", "role": "admin", "namespace": "other", "days": 1}
    other = server.api(ok(api.http.post("/v1/tokens", json=admin))["secret"])
    bad = make(KEYS["lane"], name=name + "bad", lane="pr-7", content=name.encode())
    kept = make(KEYS["lane"], name=name + "kept", lane="pr-7", content=name.encode() + b"2")
    made = {}
    for one in (bad, kept):
        ok(api.publish(one))
        made[one.revision] = made_with(server.key, one.manifest.statement.name + "of", of(one, KEYS["lane"]))
        ok(api.publish(made[one.revision]))
    delete(server, bad)
    remove_as_collection_does(server, kept)
    for one in (bad, kept):
        claim = made_with(
            KEYS["other"],
            name,
            of(one, KEYS["other"], "other"),
            namespace="other",
            target=str(one.revision)[7:19],
        )
        ok(other.publish(claim))
        for digest in (one.revision, Digest.of(b"nobody has it")):
            path = f"/v1/revisions/{digest}/quarantine"
            refused(other.http.put(path, json={"why": WHY}), 404, "not_found", "does not exist")
        assert offered(server, one.manifest.statement.name + "of") == [made[one.revision].revision]


def test_a_claim_of_an_ancestor_withdraws_nothing_of_another_namespace(
    server: Server, api: Api, name: str
) -> None:
    """An administrator elsewhere says that something was made with a revision that retention removed here."""
    admin = {"label": "admin", "role": "admin", "namespace": "other", "days": 1}
    other = server.api(ok(api.http.post("/v1/tokens", json=admin))["secret"])
    gone = make(KEYS["lane"], name=name, lane="pr-7", content=name.encode())
    ok(api.publish(gone))
    remove_as_collection_does(server, gone)
    claim = made_with(KEYS["other"], name, of(gone, KEYS["other"], "other"), namespace="other", target="x")
    ok(other.publish(claim))
    for where in ({}, {"namespace": "other"}, {"namespace": "team"}):
        path = f"/v1/revisions/{gone.revision}/quarantine"
        answer = other.http.put(path, json={"why": WHY}, params=where)
        refused(answer, 404, "not_found", "does not exist")
    ok(api.publish(gone))
    ok(api.publish(made_with(server.key, name + "of", of(gone, KEYS["lane"]))))


def revoke(server: Server, key: SigningKey, namespace: str = "team", why: str = WHY) -> dict[str, Any]:
    body = {"key": key.public, "namespace": namespace, "why": why}
    return ok(server.api().http.post("/v1/revocations", json=body))


def test_a_revocation_reaches_what_was_made_with_what_the_key_signed(
    operator: Liar, api: Api, name: str
) -> None:
    """Also where the revision itself is gone, or was never here: the manifest says who signed it."""
    server, key = operator.server, SigningKey.generate()
    signer = {"namespace": "team", "key": key.public}
    ok(api.http.post("/v1/signers", json=signer))
    first = make(key, name=name + "a", lane="pr-7", content=name.encode())
    elsewhere = make(key, name=name + "x", lane="pr-7", content=name.encode() + b"x")
    gone = make(key, name=name + "y", lane="pr-7", content=name.encode() + b"y")
    made = {}
    for letter, ancestor in (("b", first), ("c", elsewhere), ("d", gone)):
        if ancestor is not elsewhere:
            ok(api.publish(ancestor))
        made[letter] = made_with(server.key, name + letter, of(ancestor, key))
        ok(api.publish(made[letter]))
    delete(server, gone)
    status, said = operator.admin("signers", "revoke", key.public, "--why", WHY)
    assert status == 0 and "would be withheld too: 3 revisions made with it" in said, said
    assert offered(server, name + "b") == [made["b"].revision]
    reached = {row["revision"] for row in revoke(server, key)["descendants"]}
    assert reached == {one.revision for one in made.values()}
    for letter in made:
        [rejected] = ok(api.resolve(name=name + letter))["rejected"]
        assert f"which was withdrawn: its signer was revoked: {WHY}" in rejected["differences"][0]["mine"]
    refused(api.publish(made_with(server.key, name + "e", of(first, key))), 403, "untrusted", WHY)
    ok(api.http.post("/v1/signers", params={"again": True}, json=signer))
    assert [offered(server, name + letter) for letter in "bcd"] == [[one.revision] for one in made.values()]


def test_a_manifest_cannot_say_that_another_key_signed_its_ancestor(
    server: Server, api: Api, name: str
) -> None:
    key = SigningKey.generate()
    ok(api.http.post("/v1/signers", json={"namespace": "team", "key": key.public}))
    first = make(key, name=name + "a", lane="pr-7", content=name.encode())
    ok(api.publish(first))
    ok(api.publish(made_with(server.key, name, of(first, server.key, "other"))))
    revoke(server, key)
    assert offered(server, name) == []


def test_a_withdrawal_goes_through_namespaces_and_tells_another_one_nothing(
    server: Server, api: Api, name: str
) -> None:
    admins = {
        namespace: server.api(
            ok(
                api.http.post(
                    "/v1/tokens",
                    json={"label": "admin", "role": "admin", "namespace": namespace, "days": 1},
                )
            )["secret"]
        )
        for namespace in ("team", "other")
    }
    shared = make(KEYS["other"], namespace="other", name=name, content=name.encode())
    ok(api.publish(shared))
    made = made_with(server.key, name, of(shared, KEYS["other"], "other"))
    ok(admins["team"].publish(made))
    path = f"/v1/revisions/{shared.revision}/quarantine"
    refused(admins["team"].http.put(path, json={"why": WHY}), 404, "not_found")
    answer = ok(admins["other"].http.put(path, json={"why": "only we know"}))
    assert answer["descendants"] == []  # it may not read them
    assert offered(server, name) == []
    late = made_with(server.key, name + "late", of(shared, KEYS["other"], "other"))
    said = refused(admins["team"].publish(late), 403, "untrusted", shared.revision[:19])
    said += admins["team"].resolve(name=name).text + admins["team"].http.get("/v1/quarantine").text
    assert shared.revision[:19] in said and "only we know" not in said
    refused(admins["team"].http.delete(path), 404, "not_found")
    ok(admins["other"].http.delete(path))
    assert offered(server, name) == [made.revision]


def test_bytes_that_are_signed_again_keep_their_line(operator: Liar, api: Api, name: str) -> None:
    """A tag and a rollback are made with the revision whose bytes they have, and with its ancestors."""
    server, key = operator.server, SigningKey.generate()
    ok(api.http.post("/v1/signers", json={"namespace": "team", "key": key.public}))
    first = make(key, name=name + "a", lane="pr-7", content=name.encode())
    ok(api.publish(first))
    made = operator.publish(made_with(server.key, name, of(first, key)))
    assert operator.admin("tag", f"team/{name}", "prod", "--apply")[0] == 0
    [tagged] = offered(server, name, "prod")
    assert tagged != made.revision
    quarantine(server, first)
    assert offered(server, name, "prod") == []
    status, said = operator.admin("tag", f"team/{name}", "stage", "--apply")
    assert status != 0 and first.revision[:19] in said and WHY in said, said
    assert offered(server, name, "stage") == []


@pytest.mark.parametrize(
    ("ancestors", "words"),
    [
        ([{"revision": "sha256:12", "namespace": "team", "signer": KEYS["lane"].public}], "revision"),
        ([{"revision": Digest.of(b"a"), "namespace": "../x", "signer": KEYS["lane"].public}], "namespace"),
        ([{"revision": Digest.of(b"a"), "namespace": "team", "signer": "me\n"}], "signer"),
        ([{"revision": Digest.of(b"a"), "namespace": "team"}], "signer"),
        ("all of them", "list"),
        ([[[]]] * 3, "object"),
    ],
)
def test_ancestors_that_are_none_are_refused(
    server: Server, api: Api, name: str, ancestors: object, words: str
) -> None:
    made = make(server.key, name=name, content=name.encode())
    payload = json.dumps({**json.loads(made.manifest.encode()), "ancestors": ancestors}).encode()
    hostile = replace(made, envelope=server.key.sign_bytes(payload, PAYLOAD_TYPE))
    said = refused(api.bundle(hostile), 422, "corrupt", "ancestors", words)
    assert len(said) < 400
    assert offered(server, name) == []


def test_more_ancestors_than_may_be_are_refused(server: Server, api: Api, name: str) -> None:
    """Also in sum: each of a chain names as many as it may, and the next one would have more."""
    some = [Ancestor(Digest.of(b"%d" % n), Namespace("team"), KEYS["lane"].public) for n in range(2001)]
    with pytest.raises(ValueError, match="1001, more than the 1000 allowed"):
        made_with(server.key, name, *some[: MAX_ANCESTORS + 1])
    with pytest.raises(ValueError, match="order"):
        make(server.key, ancestors=(some[0], some[0]))
    first, second = (
        made_with(server.key, name + text, *some[begin : begin + 600])
        for text, begin in (("a", 0), ("b", 600))
    )
    for made in (first, second):
        ok(api.publish(made))
    both = made_with(server.key, name, of(first, server.key), of(second, server.key))
    refused(api.publish(both), 422, "invalid", "with their own they are more than the 1000")
    assert offered(server, name) == []


def test_ancestors_in_a_circle_or_that_nobody_knows_are_held_for_what_they_say(
    server: Server, api: Api, name: str
) -> None:
    """A digest cannot be known before its manifest, so a circle goes through names that are made up."""
    ghost = Ancestor(Digest.of(name.encode()), Namespace("team"), KEYS["lane"].public)
    first = made_with(server.key, name + "a", ghost)
    second = made_with(server.key, name + "b", of(first, server.key), ghost)
    for made in (first, second):
        ok(api.publish(made))
    third = made_with(server.key, name + "a", of(first, server.key), of(second, server.key), ghost)
    ok(api.publish(third, first.revision))
    assert offered(server, name + "a") == [third.revision]
    quarantine(server, second)
    assert offered(server, name + "a") == []
    ok(api.http.delete(f"/v1/revisions/{second.revision}/quarantine"))


def plant(server: Server, rows: Iterable[tuple[str, str]]) -> None:
    """Write rows of ancestors into the index, as a thousand publications would."""
    values = [(revision, ancestor, "team", KEYS["lane"].public) for revision, ancestor in rows]
    with closing(sqlite3.connect(server.data / "index.sqlite3", timeout=60)) as index, index:
        index.executemany("INSERT OR IGNORE INTO ancestors VALUES (?, ?, ?, ?)", values)


GHOSTS = sorted(Digest.of(b"ghost %d" % n) for n in range(960))


def test_ancestors_that_have_a_thousand_each_hold_up_no_other_publication(
    server: Server, api: Api, name: str
) -> None:
    """The registry reads a bounded number of rows in the transaction of a commit."""
    many = [
        make(KEYS["lane"], name=name, target=f"t{n}", lane="pr-7", content=f"{name}{n}".encode())
        for n in range(25)
    ]
    for made in many:
        ok(api.publish(made))
    plant(server, ((made.revision, ghost) for made in many for ghost in GHOSTS))
    wide = made_with(server.key, name + "w", *(of(made, KEYS["lane"]) for made in many))
    for publish in (api.publish, api.bundle):
        refused(publish(wide), 422, "invalid", "more than the 20000 rows allowed")
    assert offered(server, name + "w") == []


def test_a_long_line_of_ancestors_is_read_once(server: Server, api: Api, name: str) -> None:
    """Each of 30 has all before it, and 960 more: the newest alone says so."""
    line: list[Publication] = []
    for n in range(30):
        line.append(make(server.key, name=name, target=f"t{n}", content=f"{name}{n}".encode()))
        ok(api.publish(line[-1]))
    plant(server, ((made.revision, ghost) for made in line for ghost in GHOSTS))
    plant(server, ((made.revision, line[m].revision) for n, made in enumerate(line) for m in range(n)))
    with closing(sqlite3.connect(server.data / "index.sqlite3", timeout=60)) as index, index:
        for n, made in enumerate(line):
            index.execute("UPDATE revisions SET published = ? WHERE revision = ?", (n + 1, made.revision))
    last = made_with(server.key, name + "z", *(of(made, server.key) for made in line))
    ok(api.publish(last))
    assert offered(server, name + "z") == [last.revision]
    quarantine(server, line[0])
    assert offered(server, name + "z") == []


def test_a_resolve_does_not_look_at_each_ancestor_of_each_head(server: Server, api: Api, name: str) -> None:
    """Counted in steps of SQLite's machine: a lane's writer decides how many ancestors there are."""
    some = [make(server.key, name=name, target=f"t{n}", content=f"{name}{n}".encode()) for n in range(20)]
    other = make(server.key, name=name + "x", content=name.encode())
    for made in (*some, other):
        ok(api.publish(made))
    quarantine(server, other)
    revoke(server, SigningKey.generate())

    def steps() -> int:
        counted = [0]

        def count() -> int:
            counted[0] += 1
            return 0

        with closing(view_sqlite(server.data / "index.sqlite3")) as index, index.look() as heads:
            connection: Any = heads._connection.connection.driver_connection
            connection.set_progress_handler(count, 10)
            place = Place(Namespace("team"), ShortName(name), some[0].manifest.statement.tag)
            assert len(heads.newest(place, 100)) == len(some)
            connection.set_progress_handler(None, 0)
        return counted[0]

    before = steps()
    plant(server, ((made.revision, ghost) for made in some for ghost in GHOSTS))
    assert steps() < 2 * before
    plant(server, [(some[0].revision, other.revision)])
    assert some[0].revision not in offered(server, name)


def test_a_lane_s_token_has_nothing_of_others_withheld_by_what_it_names(
    server: Server, api: Api, name: str
) -> None:
    """It names an honest revision as an ancestor, signs it again with a key of its own, and its revision and
    its key are withdrawn: that reaches what came of it, and nothing that it came of."""
    key = SigningKey.generate()
    ok(api.http.post("/v1/signers", json={"namespace": "team", "key": key.public}))
    body = {"label": "lane", "role": "write", "namespace": "team", "lane": "pr-7", "days": 1}
    attacker = server.api(ok(api.http.post("/v1/tokens", json=body))["secret"])
    honest = made_with(server.key, name)
    beside = make(KEYS["lane"], name=name + "l", lane="pr-7", content=name.encode() + b"l")
    for made in (honest, beside):
        ok(api.publish(made))
    came_of = made_with(server.key, name + "c", of(honest, server.key), of(beside, KEYS["lane"]))
    ok(api.publish(came_of))
    hostile = made_with(key, name + "h", *line_of(_Signed(honest, server.key)), lane="pr-7")
    ok(attacker.publish(hostile))
    again = replace(beside, envelope=key.sign_bytes(beside.manifest.encode(), PAYLOAD_TYPE))
    attacker.publish(again, beside.revision)
    again = replace(honest, envelope=key.sign_bytes(honest.manifest.encode(), PAYLOAD_TYPE))
    refused(attacker.bundle(again), 403, "forbidden")
    refused(
        attacker.http.put(f"/v1/revisions/{honest.revision}/quarantine", json={"why": WHY}), 403, "forbidden"
    )
    quarantine(server, hostile)
    revoke(server, key)
    revoke(server, server.key, "other")
    assert offered(server, name) == [honest.revision]
    assert offered(server, name + "c") == [came_of.revision]
    late = made_with(server.key, name + "d", of(beside, KEYS["lane"]))
    ok(api.publish(late))
    assert offered(server, name + "d") == [late.revision]
    ok(
        api.http.post(
            "/v1/signers", params={"again": True}, json={"namespace": "other", "key": server.key.public}
        )
    )


def test_a_mirror_offers_nothing_that_was_made_with_the_withdrawn(tmp_path: Path) -> None:
    with running_pair(tmp_path) as pair:
        api, key = pair.upstream.api(), pair.upstream.key
        first = make(key, name="first", content=b"first")
        ok(api.publish(first))
        made = made_with(key, "bert", *line_of(_Signed(first, key)))
        ok(api.publish(made))
        reader = pair.reader()
        eventually(lambda: resolved(reader) == [made.revision], "the head")
        quarantine(pair.upstream, first)
        eventually(lambda: resolved(reader) == [], "the quarantine of its ancestor")
        delete(pair.upstream, first)
        ok(api.http.delete(f"/v1/revisions/{first.revision}/quarantine"))
        eventually(lambda: resolved(reader) == [made.revision], "the release")


class _Signed:
    def __init__(self, made: Publication, key: SigningKey) -> None:
        self.manifest, self.revision, self.signer = made.manifest, made.revision, key.public
