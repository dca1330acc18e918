"""A writer of a lane publishes many entries with many facts: what that does to who lists entries."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from registry_making import FINGERPRINT, Publication, Server, make, ok, refused

from cachesvc.agent import watch
from cachesvc.agent.measures import Measures
from cachesvc.agent.round import Keeper, Selection
from cachesvc.agent.store_writer import SharedStoreWriter
from cachesvc.agent.watch import Pattern
from cachesvc_client.config.settings import Config
from cachesvc_client.environment.detect import detect
from cachesvc_client.wire import codec
from cachesvc_client.wire.names import Namespace, ShortName, Tag
from cachesvc_client.wire.requests.reports import ColdName, ColdStart, KindWork, ReportRequest
from tests.security.test_bodies import peak_while

LARGE = {f"k{number}": number for number in range(5000)}
"""Facts of about 60 kB, which are ten times as much once they are parsed."""
TEXTS = {f"k{number}": [f"{text:03}" for text in range(1000)] for number in range(9)}
"""As many facts as a service may state of its environment."""
ENTRIES = 160
MOST_BYTES = 96 << 20
"""Bytes by which the registry may grow meanwhile."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A registry in a process of its own, where a lane has published much after everybody else."""
    with Server(tmp_path_factory.mktemp("registry") / "data", before=["env"]).running() as running:
        api = running.api()
        ok(api.bundle(trunks(running)))
        ok(api.bundle(others(running)))
        token = {"label": "pr", "role": "write", "namespace": "team", "lane": "pr-1", "days": 1}
        hostile = running.api(ok(api.http.post("/v1/tokens", json=token))["secret"])
        for number in range(ENTRIES):
            facts = {**FINGERPRINT, **LARGE, "number": number}
            made = make(
                running.key, lane="pr-1", target=f"t{number}", fingerprint=facts, content=b"%d" % number
            )
            ok(hostile.bundle(made))
        for number in range(20):
            made = make(running.key, name=f"a{number}", tag="v1", lane="pr-1", content=b"%d name" % number)
            ok(hostile.bundle(made))
        yield running


def trunks(server: Server) -> Publication:
    return make(server.key, fingerprint=dict(detect(dict(os.environ))), content=b"of the trunk")


def others(server: Server) -> Publication:
    return make(server.key, lane="pr-2", content=b"of another lane")


def cold_start(torch: str, **facts: list[str]) -> dict[str, Any]:
    """A report of a start that was offered nothing."""
    cold = ColdStart((ColdName(Namespace("team"), ShortName("bert"), Tag("latest"), None),), ())
    fingerprint = {**FINGERPRINT, "torch": torch, **facts}
    return codec.plain(
        ReportRequest("0" * 32, fingerprint, (), {"inductor": KindWork(3, 0, 30.0)}, cold=cold)
    )


PATHS = (
    "/v1/namespaces/team/entries",
    "/v1/namespaces/team/entries?name=bert&tag=latest",
    "/v1/entries",
    "/v1/entries?limit=1000",
)


@pytest.mark.parametrize("path", PATHS)
def test_a_lane_with_many_facts_fills_the_memory_of_no_registry(server: Server, path: str) -> None:
    """Six at once ask for a list; without a bound that took 700 MiB, and 18 GB for 5000 entries."""

    assert growth(server, path) < MOST_BYTES


def growth(server: Server, path: str) -> int:
    """Return by how many bytes the registry grows while six ask for a path at once."""

    def ask() -> None:
        ok(server.api().http.get(path, timeout=120))

    def ask_at_once() -> None:
        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    ok(server.api().http.get(path))
    return peak_while(server, ask_at_once)


def slow_reader(server: Server, secret: str, number: int) -> socket.socket:
    """Ask for what fits an environment of the lane, and read nothing of the answer."""
    facts = {**FINGERPRINT, "number": number}
    request = {"namespace": "team", "name": "bert", "fingerprint": facts, "tags": ["latest"], "lane": "pr-1"}
    body = json.dumps(request).encode()
    host, port = server.url.removeprefix("http://").split(":")
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    line.connect((host, int(port)))
    head = f"POST /v1/resolve HTTP/1.1\r\nHost: registry\r\nAuthorization: Bearer {secret}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    line.sendall(head.encode() + body)
    return line


@pytest.mark.parametrize("lane", ["pr-1", None])
def test_who_reads_no_large_answers_fills_no_memory_and_holds_up_no_other(
    server: Server, lane: str | None
) -> None:
    """Each of its resolves is answered with 14 MB, which 60 connections leave with the registry: those of a
    token of the lane, and those of one of the trunk."""
    api = server.api()
    token = {"label": "pr", "role": "write", "namespace": "team", "lane": lane, "days": 1}
    secret = ok(api.http.post("/v1/tokens", json=token))["secret"]
    lines: list[socket.socket] = []

    def ask() -> None:
        lines.extend(slow_reader(server, secret, number) for number in range(60))
        until = time.monotonic() + 15
        while time.monotonic() < until:
            assert api.resolve().status_code == 200
            time.sleep(0.2)
        whole = api.resolve(lane="pr-1")  # another token gets a large answer, whole
        assert whole.status_code == 200 and len(whole.content) > 10 << 20 and "revisions" in whole.json()

    try:
        rise = peak_while(server, ask)
    finally:
        for line in lines:
            line.close()
    assert rise < 256 << 20  # without a bound 50 MiB for each connection


def test_a_crowd_of_a_fleet_gets_large_answers_one_after_the_other(server: Server) -> None:
    """None of them is told to come again."""
    token = {"label": "s", "role": "read", "namespace": "team"}
    secret = ok(server.api().http.post("/v1/tokens", json=token))["secret"]
    sizes: list[int] = []

    def ask(number: int) -> None:
        api = server.api(secret)
        api.http.timeout = 120
        answer = api.resolve(lane="pr-1", fingerprint={**FINGERPRINT, "number": number % 8})
        assert answer.status_code == 200
        sizes.append(len(answer.content))

    def ask_at_once() -> None:
        threads = [threading.Thread(target=ask, args=(number,)) for number in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert peak_while(server, ask_at_once) < 256 << 20
    assert len(sizes) == 24 and min(sizes) > 10 << 20


def test_a_service_that_reports_many_facts_fills_no_memory_and_hides_no_other(server: Server) -> None:
    """The lists of environments, and of what is wanted there, have those of honest services alone."""
    api = server.api()
    token = {"label": "service", "role": "report", "namespace": "team", "days": 1}
    hostile = server.api(ok(api.http.post("/v1/tokens", json=token))["secret"])
    ok(api.http.post("/v1/reports", json=cold_start("2.14.0")))
    for number in range(ENTRIES):
        ok(hostile.http.post("/v1/reports", json=cold_start(f"2.15.{number}", **TEXTS)))
    for what in ("environments", "wanted"):
        path = f"/v1/namespaces/team/{what}?name=bert"
        assert growth(server, path) < MOST_BYTES
        assert "2.14.0" in api.http.get(path).text and "2.15." not in api.http.get(path).text


def test_a_lane_with_many_entries_takes_nobody_s_place_in_a_list(server: Server) -> None:
    """The trunk's entries are there, and the newest of each other lane."""
    rows = ok(server.api().http.get(PATHS[0]))
    lanes = [row.get("lane") for row in rows]
    assert lanes.count(None) == 1 and lanes.count("pr-2") == 1 and 0 < lanes.count("pr-1") < ENTRIES
    assert [row["published"] for row in rows] == sorted((row["published"] for row in rows), reverse=True)


def test_a_lane_with_many_entries_keeps_no_agent_from_the_trunk(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It read the first names, and 8 MiB of a list and the first entries of it, whoever's they were."""
    variables = {
        "CACHESVC_URL": server.url,
        "CACHESVC_TOKEN": server.token,
        "CACHESVC_TRUSTED_KEYS": server.ready["trust"],
    }
    store = SharedStoreWriter(tmp_path / "store", 1 << 30, lambda _name: None)
    measures = Measures()
    monkeypatch.setattr(watch, "MAX_WATCHED", 20)  # the lane has as many names, which come first
    Keeper(Config.read(variables), Selection((Pattern.parse("team/*"),), ()), store, measures).round()
    assert [path.name for path in (tmp_path / "store").rglob("packs/*")] == [
        row["pack"].removeprefix("sha256:") for row in revisions_of_the_trunk(server.api().http)
    ]


def revisions_of_the_trunk(http: httpx.Client) -> list[dict[str, str]]:
    rows = ok(http.get(PATHS[0]))
    return [ok(http.get(f"/v1/revisions/{row['revision']}")) for row in rows if "lane" not in row]


def test_every_entry_is_on_one_page_of_a_search(server: Server) -> None:
    """However many bytes a page has, the next one goes on behind it."""
    seen, cursor = [], None
    while True:
        page = ok(server.api().http.get("/v1/entries", params={"cursor": cursor} if cursor else {}))
        seen += [row["entry"] for row in page["rows"]]
        cursor = page.get("next")
        if not cursor:
            break
    assert len(seen) == len(set(seen)) >= ENTRIES + 22


def test_all_revisions_of_an_entry_are_listed_and_their_facts_are_bounded(server: Server) -> None:
    """So an operator sees and deletes them, however many there are."""
    api, head = server.api(), None
    for number in range(30):
        facts = {**FINGERPRINT, **LARGE}
        made = make(server.key, name="line", lane="pr-3", fingerprint=facts, content=b"line %d" % number)
        head = ok(api.bundle(made, head))["revision"]
    [entry] = ok(api.http.get("/v1/entries", params={"name": "line"}))["rows"]
    rows = ok(api.http.get(f"/v1/entries/{entry['entry']}/revisions"))
    assert len(rows) == 30 and rows[0]["head"] and not any(row["head"] for row in rows[1:])
    assert rows[0]["fingerprint"] == facts and not rows[-1].get("fingerprint")
    assert 1 << 19 < len(json.dumps(rows)) < 3 << 19
    path = f"/v1/entries/{entry['entry']}"
    refused(api.http.delete(path, params={"head": str(rows[1]["revision"])}), 409, "head_conflict")
    assert api.http.delete(path, params={"head": rows[0]["revision"]}).status_code == 204
