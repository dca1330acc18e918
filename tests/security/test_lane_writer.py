"""What somebody with a lane's token, a reporter's token or no token gains against the trunk: nothing."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from registry_inside import LIMITS, ROOT, Clock, Inside, inside
from registry_making import FINGERPRINT, make

from cachesvc.api.app import create_app
from cachesvc.domain.access import Role, Token
from cachesvc.domain.retention import DAY, FRESH_SECONDS, Retention
from cachesvc.index.entries.search import Search
from cachesvc.registry import audit, inventory
from cachesvc.registry.access import tokens
from cachesvc.registry.upkeep import gc
from cachesvc.registry.upkeep import retention as changes
from cachesvc.schema.access import TokenRequest
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.errors import InvalidRequest
from cachesvc_client.wire.names import Lane, Namespace

KEPT = 6000
"""Bytes that the namespace keeps: room for the trunk, and for little more."""


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Inside]:
    limits = replace(LIMITS, retention=Retention(keep_bytes=KEPT, lane_days=3))
    with inside(tmp_path, SigningKey.generate(), Clock(), limits) as registry:
        yield registry


def _publish(reg: Inside, size: int, **made: object) -> str:
    """Publishes a pack of about ``size`` bytes that do not shrink, and returns its revision."""
    bundle = make(reg.key, content=os.urandom(size), **made)
    assert reg.bundle(bundle).created
    return bundle.revision


def _lanes(reg: Inside) -> list[str]:
    rows = inventory.search_entries(reg.registry, ROOT, Search(Namespace("team")), None, 100).rows
    return sorted(row.lane or "" for row in rows)


def test_a_lane_that_says_it_is_dear_does_not_evict_the_trunk(reg: Inside) -> None:
    _publish(reg, 4000, measured={"compile": 30.0})
    for number in range(3):
        _publish(reg, 1000, lane="pr-1", target=f"t{number}", measured={"compile": 9_999_999.0})
    reg.clock.now += 2 * FRESH_SECONDS
    gc.collect(reg.registry)
    assert "" in _lanes(reg)


def test_a_lane_that_publishes_without_end_does_not_evict_the_trunk(reg: Inside) -> None:
    """What is fresh is not evicted; the trunk does not make room for it."""
    _publish(reg, 4000)
    reg.clock.now += 2 * FRESH_SECONDS
    for number in range(4):
        _publish(reg, 2000, lane="pr-1", target=f"t{number}")
    gc.collect(reg.registry)
    assert _lanes(reg) == ["", *["pr-1"] * 4]
    reg.clock.now += 2 * FRESH_SECONDS
    gc.collect(reg.registry)
    assert "" in _lanes(reg)
    assert len(_lanes(reg)) < 5


def test_a_lane_that_says_it_is_dear_does_not_evict_another_lane(reg: Inside) -> None:
    _publish(reg, 1000, lane="pr-honest", measured={"compile": 30.0})
    for number in range(4):
        _publish(reg, 2000, lane="pr-greedy", target=f"t{number}", measured={"compile": 9_999_999.0})
    reg.clock.now += 2 * FRESH_SECONDS
    gc.collect(reg.registry)
    assert "pr-honest" in _lanes(reg)


@pytest.mark.parametrize("seconds", [1e300, -1.0, 1e8])
def test_a_writer_states_no_impossible_seconds(reg: Inside, seconds: float) -> None:
    with pytest.raises(InvalidRequest, match=r"measured\.compile: seconds, 0 to 10000000"):
        _publish(reg, 100, measured={"compile": seconds})


def test_a_lane_that_nobody_uses_expires_and_the_trunk_does_not(reg: Inside) -> None:
    _publish(reg, 500)
    _publish(reg, 500, lane="pr-1")
    reg.clock.now += 4 * DAY
    plan = gc.plan(reg.registry, ROOT)
    assert [removal.why for removal in plan.removals] == ["not used for 3 days"]
    gc.collect(reg.registry)
    assert _lanes(reg) == [""]


def _http(reg: Inside, secret: str, *requests: tuple[str, str, dict[str, object] | None]) -> list[int]:
    """Sends requests to the application over this registry, and returns their statuses."""

    async def send() -> list[int]:
        app = create_app(reg.registry)
        transport = httpx.ASGITransport(app, client=("192.0.2.7", 1))
        headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://r", headers=headers) as client,
        ):
            return [
                (await client.request(method, path, json=body)).status_code for method, path, body in requests
            ]

    return asyncio.run(send())


def test_a_reporter_claims_no_more_seconds_than_the_builder_measured(reg: Inside) -> None:
    revision = _publish(reg, 100, measured={"compile": 2.0, "first_call": 3.0})
    secret = tokens.create_token(reg.registry, None, TokenRequest("svc", "report", "team")).secret or ""
    row = {"revision": revision, "state": "hit", "saved": 9_999_999.0}
    report = {
        "node": "0" * 32,
        "fingerprint": FINGERPRINT,
        "revisions": [row],
        "kinds": {"inductor": {"seconds": 9_999_999.0}},
    }
    # The second takes back more than it counted.
    again = {**report, "replaces": {"revisions": [row], "kinds": {}}}
    statuses = _http(reg, secret, ("POST", "/v1/reports", report), ("POST", "/v1/reports", again))
    assert statuses == [200, 200]
    stats = inventory.stats(reg.registry, ROOT, "*", 5)
    assert 0 <= stats.saved <= 3.0
    assert 0 <= stats.spent <= 2 * DAY


def test_somebody_who_tries_tokens_is_in_the_log_once(reg: Inside, caplog: pytest.LogCaptureFixture) -> None:
    secret = "csv_" + "x" * 40
    resolve = {"namespace": "team", "name": "bert", "fingerprint": FINGERPRINT}
    with caplog.at_level(logging.WARNING, "cachesvc.access"):
        assert _http(reg, secret, *[("POST", "/v1/resolve", resolve)] * 20) == [401] * 20
    [line] = [record.getMessage() for record in caplog.records if record.name == "cachesvc.access"]
    assert line == "401 POST /v1/resolve from 192.0.2.7: no valid token"


def test_a_reader_who_tries_other_namespaces_is_in_the_log_by_its_tokens_id(
    reg: Inside, caplog: pytest.LogCaptureFixture
) -> None:
    token = tokens.create_token(reg.registry, None, TokenRequest("r", "read", "other"))
    resolve = {"namespace": "team", "name": "bert", "fingerprint": FINGERPRINT}
    with caplog.at_level(logging.WARNING, "cachesvc.access"):
        assert _http(reg, token.secret or "", *[("POST", "/v1/resolve", resolve)] * 5) == [403] * 5
    [line] = [record.getMessage() for record in caplog.records if record.name == "cachesvc.access"]
    assert line == f"403 POST /v1/resolve from 192.0.2.7: token {token.token}"
    assert (token.secret or "?") not in caplog.text


def test_a_publisher_stays_in_the_audit_after_its_entry_was_deleted(reg: Inside) -> None:
    writer = tokens.create_token(reg.registry, None, TokenRequest("ci", "write", "team", Lane("pr-1")))
    token = Token(writer.token, "ci", Role.write, "team", Lane("pr-1"))
    first = make(reg.key, lane="pr-1")
    second = make(reg.key, lane="pr-1", content=b"other")
    reg.bundle(first, token=token)
    reg.bundle(second, first.revision, token=token)
    changes.delete_revision(reg.registry, ROOT, first.revision)
    changes.delete_entry(reg.registry, ROOT, second.manifest.entry, None)
    rows = audit.audit_page(reg.registry, ROOT).rows
    for action in ("revision.delete", "entry.delete"):
        [details] = [row.details for row in rows if row.action == action]
        assert details["signer"] == reg.key.public
        assert details["published_by"] == writer.token
