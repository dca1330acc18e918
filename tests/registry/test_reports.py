"""Test the reports of starts: the rule of quarantine, its bounds, and what one token cannot do. Most tests
use a real server process."""

from __future__ import annotations

import json
import random
import secrets
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from registry_inside import ROOT, Clock, Inside, inside
from registry_making import FINGERPRINT, Api, Server, make, ok, refused

from cachesvc.domain.access import Role, Token
from cachesvc.domain.usefulness import ENVIRONMENTS, KEPT_DAYS, InertHost, count_hosts, useless
from cachesvc.index.starts.usefulness import KEPT_HOSTS
from cachesvc.registry import reports
from cachesvc.registry.upkeep import gc, quarantine
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.errors import Forbidden, InvalidRequest, NotFound, TooMany
from cachesvc_client.wire.names import Namespace
from cachesvc_client.wire.partitions import environment, partition
from cachesvc_client.wire.requests.reports import EarlierReport, KindWork, ReportRequest, RevisionReport

ELSEWHERE = {**FINGERPRINT, "cpu_flags": ["avx", "avx2", "avx512f", "fma"]}
"""Another environment that the entry fits too."""


def node(number: int = 0) -> str:
    return f"{number:032x}"


def new_token(server: Server, role: str = "report", namespace: str = "team", **more: Any) -> Api:
    body = {"label": "test", "role": role, "namespace": namespace, **more}
    return server.api(ok(server.api().http.post("/v1/tokens", json=body))["secret"])


def body(revision: str, state: str = "inert", host: int = 0, **more: Any) -> dict[str, Any]:
    row = {"revision": revision, "state": state, "files": 3, "used": int(state == "hit"), "saved": 1.5}
    return {"node": node(host), "fingerprint": FINGERPRINT, "revisions": [row], **more}


def send(api: Api, *arguments: Any, **more: Any) -> Any:
    return ok(api.http.post("/v1/reports", json=body(*arguments, **more)))


@pytest.fixture
def published(server: Server, key: SigningKey) -> tuple[str, str]:
    """Publish a revision of its own; return its short name and its digest."""
    publication = make(key, name=f"r{secrets.token_hex(4)}", content=secrets.token_bytes(8))
    ok(server.api().publish(publication))
    return publication.manifest.statement.name, publication.revision


# The rule ------------------------------------------------------------------------------------


hosts = st.builds(InertHost, token=st.sampled_from("abcd"), node=st.sampled_from("1234567"))


@given(st.lists(hosts, max_size=20))
def test_one_token_alone_hides_nothing_and_more_hosts_never_count_less(inert_hosts: list[InertHost]) -> None:
    assert not useless([InertHost("only", host.node) for host in inert_hosts])
    assert count_hosts(inert_hosts) <= len({host.node for host in inert_hosts})
    assert count_hosts(inert_hosts[:-1]) <= count_hosts(inert_hosts)
    if useless(inert_hosts):
        assert len({host.token for host in inert_hosts}) >= 2
        assert len({host.node for host in inert_hosts}) >= 3


def test_inert_starts_on_three_hosts_with_two_tokens_make_a_quarantine() -> None:
    a, b, c = InertHost("t", "a"), InertHost("t", "b"), InertHost("u", "c")
    assert useless([a, b, c])
    assert not useless([a, b])
    assert not useless([a, b, InertHost("u", "b")]), "two tokens of one node are one host"


def test_an_unknown_factor_does_not_make_another_environment() -> None:
    entry = {**FINGERPRINT, "threads": 2, "cxx": "g++ 12"}
    here = environment(FINGERPRINT, entry, ("host",))
    assert here == environment({**FINGERPRINT, "threads": 2}, entry, ("host",))
    assert here == environment(entry, entry, ("host",)) == partition(entry, ("host",))
    assert here != environment({**FINGERPRINT, "threads": 4}, entry, ("host",))
    assert here != environment(ELSEWHERE, entry, ("host",))


# Through the API ------------------------------------------------------------------------------


def offered_revisions(api: Api, name: str, **more: Any) -> list[str]:
    return [row["revision"] for row in ok(api.resolve(name=name, **more))["revisions"]]


def withhold(server: Server, revision: str, **more: Any) -> None:
    first, second = new_token(server), new_token(server)
    assert send(first, revision, host=1, **more)["quarantined"] == []
    assert send(first, revision, host=2, **more)["quarantined"] == []
    assert send(second, revision, host=3, **more)["quarantined"] == [revision]


def test_a_revision_inert_on_three_hosts_is_not_offered_there_until_it_is_replaced(
    server: Server, key: SigningKey, published: tuple[str, str]
) -> None:
    name, revision = published
    reader = new_token(server)
    assert offered_revisions(reader, name) == [revision]
    withhold(server, revision, why=["grad mode"])
    answer = ok(reader.resolve(name=name))
    assert answer["revisions"] == []
    [rejected] = answer["rejected"]
    [difference] = rejected["differences"]
    assert difference["factor"] == "usefulness" and difference["decides"]
    assert "inert" in difference["mine"] and "grad mode" in difference["mine"] and difference["mend"]
    assert offered_revisions(reader, name, fingerprint=ELSEWHERE) == [revision], (
        "another environment still gets the revision"
    )
    successor = make(key, name=name, content=b"successor")
    ok(server.api().publish(successor, revision))
    assert offered_revisions(reader, name) == [successor.revision]


def test_one_token_cannot_hide_an_entry(server: Server, published: tuple[str, str]) -> None:
    name, revision = published
    liar, other = new_token(server), new_token(server)
    for number in range(50):
        assert send(liar, revision, host=number)["quarantined"] == []
    assert offered_revisions(liar, name) == offered_revisions(other, name) == [revision]


def test_a_hit_lifts_the_quarantine_and_the_count_begins_anew(
    server: Server, published: tuple[str, str]
) -> None:
    name, revision = published
    withhold(server, revision)
    reader = new_token(server)
    assert offered_revisions(reader, name) == []
    send(reader, revision, "hit", 9)
    rows = ok(server.api().http.get("/v1/audit", params={"subject": revision}))["rows"]
    assert [row["action"] for row in rows] == ["quarantine.release", "quarantine.set"]
    assert all(row["by"].startswith("t-") and row["details"]["environment"] for row in rows)
    assert (rows[0]["details"]["why"], rows[1]["details"]["why"]) == (
        "it was used there",
        "3 hosts found it inert",
    )
    assert offered_revisions(reader, name) == [revision]
    assert send(reader, revision, host=9)["quarantined"] == []
    assert offered_revisions(reader, name) == [revision]


def test_only_an_admin_lifts_a_quarantine(server: Server, published: tuple[str, str]) -> None:
    name, revision = published
    withhold(server, revision)
    path = f"/v1/revisions/{revision}/quarantine"
    refused(new_token(server, "write").http.delete(path), 403, "forbidden", "admin")
    refused(new_token(server, "admin", "other").http.delete(path), 404, "not_found")
    assert server.api().http.delete(path).status_code == 204
    assert offered_revisions(new_token(server), name) == [revision]
    refused(server.api().http.delete(path), 404, "not_found", "offered everywhere")


def test_listings_show_a_quarantine_by_environment(server: Server, published: tuple[str, str]) -> None:
    name, revision = published
    api = new_token(server)
    kinds = {"inductor": {"compilations": 2, "tuning_runs": 1, "seconds": 4.0}}
    send(api, revision, "hit", 1)
    send(api, revision, "hit", 2)
    send(api, revision, "inert", 3, kinds=kinds, why=["inductor config: max_autotune"])
    send(api, revision, "unused", 4, fingerprint=ELSEWHERE)
    [entry] = ok(api.http.get("/v1/namespaces/team/entries", params={"name": name}))
    one = ok(api.http.get(f"/v1/entries/{entry['entry']}"))
    assert one["usefulness"] == entry["usefulness"]
    here = next(row for row in entry["usefulness"] if row["hit"])
    assert (here["hit"], here["inert"], here["unused"]) == (2, 1, 0)
    assert (here["saved"], here["spent"], here["inert_hosts"]) == (4.5, 4.0, 1)
    assert here["why"] == "inductor config: max_autotune"
    assert here["facts"]["torch"] == FINGERPRINT["torch"] and "cpu_flags" not in here["facts"]
    assert 0 < here["first_seen"] <= here["last_seen"]
    assert "quarantined" not in here
    assert sum(row["unused"] for row in entry["usefulness"]) == 1
    assert len(entry["usefulness"]) == 2


def counts(server: Server, name: str) -> dict[str, Any]:
    [entry] = ok(server.api().http.get(f"/v1/namespaces/team/entries?name={name}"))
    [use] = entry["usefulness"]
    return {key: use[key] for key in ("hit", "partial", "inert", "saved", "spent")}


def test_a_start_that_reports_again_counts_once(server: Server, published: tuple[str, str]) -> None:
    name, revision = published
    reporter = new_token(server)
    work = {"inductor": {"compilations": 3, "tuning_runs": 0, "seconds": 4.0}}
    for _ in range(2):  # two starts
        send(reporter, revision, "hit")
    assert counts(server, name) == {"hit": 2, "partial": 0, "inert": 0, "saved": 3.0, "spent": 0.0}
    first = {"revisions": body(revision, "hit")["revisions"]}
    send(reporter, revision, "partial", kinds=work, replaces=first)
    assert counts(server, name) == {"hit": 1, "partial": 1, "inert": 0, "saved": 3.0, "spent": 4.0}
    second = {"revisions": body(revision, "partial")["revisions"], "kinds": work}
    send(reporter, revision, "partial", kinds=work, replaces=second)
    assert counts(server, name) == {"hit": 1, "partial": 1, "inert": 0, "saved": 3.0, "spent": 4.0}


def test_a_false_earlier_report_takes_no_count_below_zero(server: Server, published: tuple[str, str]) -> None:
    name, revision = published
    liar = new_token(server)
    send(liar, revision, "inert")
    lie = {"revisions": body(revision, "hit")["revisions"]}
    for _ in range(3):
        send(liar, revision, "inert", replaces=lie)
    assert counts(server, name)["hit"] == 0
    assert counts(server, name)["inert"] == 4


def test_an_earlier_report_of_a_forgotten_environment_changes_nothing(
    server: Server, published: tuple[str, str]
) -> None:
    name, revision = published
    send(new_token(server), revision, "partial", replaces={"revisions": body(revision, "hit")["revisions"]})
    assert (counts(server, name)["hit"], counts(server, name)["partial"]) == (0, 1)


def test_only_roles_with_the_right_may_report(
    server: Server, key: SigningKey, published: tuple[str, str]
) -> None:
    _, revision = published
    refused(
        new_token(server, "read").http.post("/v1/reports", json=body(revision)), 403, "forbidden", "report"
    )
    for role in ("report", "write", "admin"):
        assert send(new_token(server, role), revision, "unused")["counted"] == 1
    reporter = new_token(server, "report")
    refused(reporter.begin(make(key)), 403, "forbidden")
    assert ok(reporter.http.get("/v1/whoami"))["role"] == "report"
    stranger = new_token(server, "report", "other")
    text = refused(stranger.http.post("/v1/reports", json=body(revision)), 404, "not_found")
    nobody = "sha256:" + "0" * 64
    unknown = refused(stranger.http.post("/v1/reports", json=body(nobody)), 404, "not_found")
    assert text.replace(revision, nobody) == unknown, "a stranger cannot distinguish the two"
    lane = new_token(server, "report", lane="pr-1")
    refused(lane.http.post("/v1/reports", json=body(revision)), 403, "forbidden")


def test_one_bad_revision_in_a_report_counts_nothing(server: Server, published: tuple[str, str]) -> None:
    name, revision = published
    api = new_token(server)
    sent = body(revision, "hit")
    sent["revisions"].append({"revision": "sha256:" + "1" * 64, "state": "hit"})
    refused(api.http.post("/v1/reports", json=sent), 404, "not_found")
    [entry] = ok(api.http.get("/v1/namespaces/team/entries", params={"name": name}))
    assert entry["usefulness"] == []


def _raw(text: str, **changed: str) -> str:
    for name, value in changed.items():
        assert f'"{name}"' in text
        start = text.index(f'"{name}": ') + len(name) + 4
        end = min(text.index(mark, start) for mark in ",}" if mark in text[start:])
        text = text[:start] + value + text[end:]
    return text


LIES = [
    ({"saved": "NaN"}, "saved"),
    ({"saved": "Infinity"}, "saved"),
    ({"saved": "-Infinity"}, "saved"),
    ({"saved": "1e999"}, "saved"),
    ({"saved": "1e12"}, "saved"),
    ({"saved": "-1e12"}, "saved"),
    ({"used": "-1"}, "used"),
    ({"used": "9223372036854775808"}, "used"),
    ({"files": "1e30"}, "files"),
    ({"files": "9" * 5000}, "body"),
    ({"seconds": "NaN"}, "seconds"),
    ({"seconds": "-0.5"}, "seconds"),
    ({"seconds": "1e300"}, "seconds"),
    ({"compilations": "-1"}, "compilations"),
    ({"tuning_runs": "1000001"}, "tuning_runs"),
    ({"state": '"great"'}, "state"),
    ({"node": '"my-laptop.example.org"'}, "node"),
    ({"format": '"cachesvc.report/2"'}, "cachesvc.report/1"),
    ({"torch": '"3.0"'}, "does not fit"),
    ({"torch": '"' + "x" * 300 + '"'}, "fingerprint"),
    ({"schema": "123456789012345678901234567890"}, "fingerprint"),
    ({"why": '["line\\nbreak"]'}, "why"),
]


@pytest.mark.parametrize(("changed", "message"), LIES, ids=lambda value: str(value)[:60])
def test_false_and_oversized_reports_are_refused_with_a_reason(
    server: Server, published: tuple[str, str], changed: dict[str, str], message: str
) -> None:
    _, revision = published
    kinds = {"inductor": {"compilations": 0, "tuning_runs": 0, "seconds": 0.5}}
    whole = body(revision, "hit", kinds=kinds, format="cachesvc.report/1")
    sent = json.dumps({"why": "w", **whole}) if "why" in changed else json.dumps(whole)
    api = new_token(server)
    answer = api.http.post(
        "/v1/reports", content=_raw(sent, **changed), headers={"Content-Type": "application/json"}
    )
    refused(answer, 422, "invalid", message)


def test_too_many_and_too_large_reports_are_refused(server: Server, published: tuple[str, str]) -> None:
    _, revision = published
    api = new_token(server)
    many = body(revision)
    many["revisions"] = [{"revision": f"sha256:{number:064x}", "state": "hit"} for number in range(257)]
    refused(api.http.post("/v1/reports", json=many), 422, "invalid", "256")
    twice = body(revision)
    twice["revisions"] *= 2
    refused(api.http.post("/v1/reports", json=twice), 422, "invalid", "once")
    refused(api.http.post("/v1/reports", json=body(revision, pad="x" * 200_000)), 413, "too_large")
    none = body(revision)
    none["revisions"] = []
    refused(api.http.post("/v1/reports", json=none), 422, "invalid", "revisions")


# With a clock of the test's -------------------------------------------------------------------


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Inside]:
    with inside(tmp_path, SigningKey.generate(), Clock()) as registry:
        yield registry


def token(name: str, role: Role = Role.report) -> Token:
    return Token(name, "test", role, "team")


def request(revision: str, state: str = "inert", host: int = 0, **more: Any) -> ReportRequest:
    facts = {"fingerprint": FINGERPRINT, "kinds": {"inductor": KindWork(1, 0, 2.0)}, **more}
    return ReportRequest(node(host), revisions=(RevisionReport(revision, state),), **facts)


def test_the_rate_of_reports_is_bounded_for_each_token(reg: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "RATE", 3)
    publication = make(reg.key)
    reg.publish(publication)
    for number in range(3):
        reports.report(reg.registry, token("t-1"), request(publication.revision, host=number))
    with pytest.raises(TooMany, match="t-1"):
        reports.report(reg.registry, token("t-1"), request(publication.revision))
    reports.report(reg.registry, token("t-2"), request(publication.revision))
    reg.clock.now += reports.RATE_SECONDS
    reports.report(reg.registry, token("t-1"), request(publication.revision))


def test_reports_that_arrive_together_are_counted_in_one_transaction_and_refused_each_for_itself(
    reg: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each transaction waits for the disk: one for each report was 12 s of a registry for a fleet of
    1,000."""
    one, two = make(reg.key, name="one"), make(reg.key, name="two", content=b"other")
    for publication in (one, two):
        reg.publish(publication)
    transactions, write = [], reg.registry.index.write
    monkeypatch.setattr(reg.registry.index, "write", lambda: transactions.append(1) or write())
    asked = [
        request(revision, "hit", host=number)
        for number, revision in enumerate([two.revision, one.revision, f"sha256:{'0' * 64}", two.revision])
    ]
    answers = reports.report_each(
        reg.registry, [reports.SentReport(token(f"t-{number}"), each) for number, each in enumerate(asked)]
    )
    assert [getattr(answer, "counted", answer.__class__) for answer in answers] == [1, 1, NotFound, 1]
    assert len(transactions) == 1
    with reg.registry.index.read() as unit:
        session = unit.usefulness._session
        rows = session.connection().exec_driver_sql("SELECT revision, hit FROM usefulness")
        assert dict(map(tuple, rows)) == {one.revision: 1, two.revision: 2}


TABLES = ("usefulness", "inert_hosts", "revision_nodes", "daily_starts", "environments")


def counted(reg: Inside) -> dict[str, list[tuple[object, ...]]]:
    with reg.registry.index.read() as unit:
        connection = unit.usefulness._session.connection()
        return {
            name: sorted(map(tuple, connection.exec_driver_sql(f"SELECT * FROM {name}")), key=repr)
            for name in TABLES
        }


@pytest.mark.parametrize("seed", range(3))
def test_reports_that_arrive_together_count_as_those_that_arrive_one_by_one(
    tmp_path: Path, seed: int
) -> None:
    """Equal starts of a batch are one statement, which must not change what is stored: counts, sums, nodes,
    hosts, days, and what is withheld."""
    chance, key = random.Random(seed), SigningKey.generate()
    publications = [make(key, name=name, content=name.encode()) for name in ("one", "two")]
    sent: list[reports.SentReport] = []
    first: list[ReportRequest] = []
    for number in range(60):
        publication = chance.choice(publications)
        state = chance.choice(["hit", "hit", "hit", "inert", "partial", "miss"])
        host = chance.randrange(8)
        fingerprint = chance.choice([FINGERPRINT, FINGERPRINT, ELSEWHERE])
        each = request(publication.revision, state, host=host, fingerprint=fingerprint)
        if first and chance.random() < 0.3:  # the second report of a start that was reported before
            before = first.pop(chance.randrange(len(first)))
            rows = (replace(each.revisions[0], revision=before.revisions[0].revision),)
            earlier = EarlierReport(before.revisions, before.kinds)
            each = replace(before, revisions=rows, replaces=earlier)
        else:
            first.append(each)
        sent.append(reports.SentReport(token(f"t-{number % 3}"), each))
    stored, answers = [], []
    for most in (1, 7, 60):
        (folder := tmp_path / str(most)).mkdir()
        with inside(folder, key, Clock()) as reg:
            for publication in publications:
                reg.publish(publication)
            parts = [sent[at : at + most] for at in range(0, len(sent), most)]
            answers.append([one for part in parts for one in reports.report_each(reg.registry, part)])
            stored.append(counted(reg))
    assert stored[0]["usefulness"] and stored[0]["revision_nodes"] and stored[0]["daily_starts"]
    for one, name in product(stored[1:], ("usefulness", "inert_hosts", "revision_nodes", "daily_starts")):
        assert one[name] == stored[0][name], name
    assert [list(map(repr, one)) for one in answers[1:]] == [list(map(repr, answers[0]))] * 2


def test_a_fleet_of_equal_starts_costs_a_few_statements_and_one_for_each_node(reg: Inside) -> None:
    """It was seven statements for each start: 3.5 ms of CPU, and nine of ten reports of a fleet of 1,000 got
    no answer in time."""
    publication = make(reg.key)
    reg.publish(publication)
    sent = [
        reports.SentReport(token("t"), request(publication.revision, "hit", host=number))
        for number in range(200)
    ]
    statements: list[str] = []
    engine = reg.registry.index._writing
    sa.event.listen(engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    reports.report_each(reg.registry, sent)
    assert len(statements) < 25, statements
    with reg.registry.index.read() as unit:
        [(use,)] = [unit.usefulness.of([publication.revision])[publication.revision]]
    assert use.hit == 200 and len(counted(reg)["revision_nodes"]) == 200


def test_a_report_that_breaks_the_transaction_of_others_fails_alone(
    reg: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    publication = make(reg.key)
    reg.publish(publication)
    start = reports._start

    def break_one(sent: ReportRequest, *rest: Any) -> Any:
        if sent.node == node(1):
            raise RuntimeError("a defect")
        return start(sent, *rest)

    monkeypatch.setattr(reports, "_start", break_one)
    answers = reports.report_each(
        reg.registry,
        [
            reports.SentReport(token("t"), request(publication.revision, "hit", host=number))
            for number in range(3)
        ],
    )
    assert [getattr(answer, "counted", answer.__class__) for answer in answers] == [1, RuntimeError, 1]


def test_the_number_of_stored_environments_and_hosts_is_bounded(reg: Inside) -> None:
    publication = make(reg.key)
    reg.publish(publication)
    for number in range(ENVIRONMENTS + 5):
        reg.clock.now += 1
        flags = [*FINGERPRINT["cpu_flags"], f"x{number}"]
        odd = request(publication.revision, fingerprint={**FINGERPRINT, "cpu_flags": flags})
        reports.report(reg.registry, token(f"t-{number}"), odd)
    for number in range(40):
        reports.report(reg.registry, token(f"t-{number}"), request(publication.revision, host=number))
    with reg.registry.index.read() as unit:
        session = unit.usefulness._session
        rows = session.connection().exec_driver_sql("SELECT count(*) FROM usefulness").scalar()
        of_one = session.connection().exec_driver_sql(
            "SELECT max(n) FROM (SELECT count(*) AS n FROM inert_hosts GROUP BY environment)"
        )
        assert (rows, of_one.scalar()) == (ENVIRONMENTS, KEPT_HOSTS)


def test_old_reports_are_forgotten_and_a_quarantine_is_not(reg: Inside) -> None:
    one, two = make(reg.key, name="one"), make(reg.key, name="two", content=b"two")
    reg.publish(one)
    reg.publish(two)
    reports.report(reg.registry, token("t-1"), request(one.revision, "hit"))
    for number in range(3):
        reports.report(reg.registry, token(f"t-{number}"), request(two.revision, host=number))
    reg.clock.now += KEPT_DAYS * 86_400 + 1
    gc.collect(reg.registry)
    with reg.registry.index.read() as unit:
        uses = unit.usefulness.of([one.revision, two.revision])
    assert list(uses) == [two.revision]
    assert not reg.resolve("two").revisions and reg.resolve("one").revisions


def test_reports_of_a_revision_are_deleted_with_it(reg: Inside) -> None:
    first = make(reg.key, content=b"first")
    reg.publish(first)
    for number in range(3):
        reports.report(reg.registry, token(f"t-{number}"), request(first.revision, host=number))
    with reg.registry.index.write() as unit:
        unit.entries._session.connection().exec_driver_sql("UPDATE entries SET head = NULL")
        assert unit.entries.remove(first.revision)
    with reg.registry.index.read() as unit:
        for table in ("usefulness", "inert_hosts"):
            rows = unit.usefulness._session.connection().exec_driver_sql(f"SELECT count(*) FROM {table}")
            assert rows.scalar() == 0
    with pytest.raises(NotFound):
        reports.report(reg.registry, token("t-1"), request(first.revision))


def test_a_wrong_clock_of_the_registry_is_no_error(reg: Inside) -> None:
    publication = make(reg.key)
    reg.publish(publication)
    reports.report(reg.registry, token("t-1"), request(publication.revision, "hit"))
    reg.clock.now -= 10 * 365 * 86_400
    reports.report(reg.registry, token("t-1"), request(publication.revision, "hit"))
    gc.collect(reg.registry)
    with reg.registry.index.read() as unit:
        [use] = unit.usefulness.of([publication.revision])[publication.revision]
    assert use.hit == 2


def test_use_cases_check_rights_themselves(reg: Inside) -> None:
    publication = make(reg.key)
    reg.publish(publication)
    with pytest.raises(Forbidden, match="report"):
        reports.report(reg.registry, token("t-1", Role.read), request(publication.revision))
    with pytest.raises(InvalidRequest, match="does not fit"):
        reports.report(reg.registry, ROOT, request(publication.revision, fingerprint={"torch": "1"}))
    with pytest.raises(NotFound):
        stranger = Token("t-9", "x", Role.admin, Namespace("else"))
        quarantine.release(reg.registry, stranger, publication.revision)
