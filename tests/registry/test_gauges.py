"""Test the gauges of /metrics: what they say, that they are read seldom, and that each help stands alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families
from registry_inside import LIMITS, ROOT, Clock, Column, Inside, inside
from registry_making import Server, make
from test_operation import scraped

from cachesvc.api import gauges
from cachesvc.api.metrics import Metrics
from cachesvc.blobs.local import LocalBlobStore
from cachesvc.hot.redis import RedisHot
from cachesvc.registry.access import tokens
from cachesvc.registry.upkeep import retention
from cachesvc.schema.access import TokenRequest
from cachesvc.schema.namespaces import Policy
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.errors import Unavailable
from cachesvc_client.wire.names import Namespace


@pytest.fixture
def reg(tmp_path: Path, column: Column) -> Iterator[Inside]:
    with inside(tmp_path, SigningKey.generate(), Clock(), column=column) as registry:
        yield registry


def values(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """Return the values of the metrics by name and by the values of their labels."""
    families = text_string_to_metric_families(metrics.render().decode())
    return {(row.name, *row.labels.values()): row.value for family in families for row in family.samples}


def metrics_of(reg: Inside, **options: bool) -> Metrics:
    return Metrics(reg.registry, lambda: 0, **options)


def test_gauges_sum_up_the_whole_registry(reg: Inside, tmp_path: Path) -> None:
    first, second = (
        make(reg.key, target="a"),
        make(reg.key, target="b", namespace="other", content=b"x" * 900),
    )
    for publication in (first, second):
        reg.publish(publication)
    retention.set_policy(reg.registry, ROOT, Namespace("team"), Policy(quota_bytes=4 * len(first.pack)))
    for days in (3, 20, 90):
        tokens.create_token(reg.registry, None, TokenRequest("ci", "write", "team", days=days))
    gone = tokens.create_token(reg.registry, None, TokenRequest("gone", "write", "team", days=3))
    tokens.revoke_token(reg.registry, ROOT, gone.token)
    now = values(metrics_of(reg))
    assert now["cachesvc_index_up",] == 1
    assert (now["cachesvc_namespaces",], now["cachesvc_entries",], now["cachesvc_revisions",]) == (2, 2, 2)
    assert now["cachesvc_stored_bytes",] == len(first.pack) + len(second.pack)
    assert now["cachesvc_quota_used_ratio",] == 0.25
    assert (now["cachesvc_tokens_expiring", "7"], now["cachesvc_tokens_expiring", "30"]) == (1, 2)
    assert not any("team" in label for labels in now for label in labels)
    assert ("cachesvc_disk_free_bytes",) not in now  # no folder of this machine is named

    named = values(metrics_of(reg, metrics_namespaces=True))
    assert named["cachesvc_namespace_stored_bytes", "other"] == len(second.pack)
    assert named["cachesvc_namespace_entries", "team"] == 1
    assert named["cachesvc_namespace_quota_bytes", "team"] == 4 * len(first.pack)
    assert ("cachesvc_namespace_quota_bytes", "other") not in named

    on_disk = replace(
        reg.registry, packs=replace(reg.registry.packs, on_disk=LocalBlobStore(tmp_path / "packs"))
    )
    disk = values(Metrics(on_disk, lambda: 0))
    assert 0 <= disk["cachesvc_disk_free_bytes",] <= disk["cachesvc_disk_size_bytes",]


def test_the_oldest_upload_is_one_that_no_commit_has_taken(reg: Inside) -> None:
    def age() -> float:
        return values(metrics_of(reg))["cachesvc_oldest_upload_seconds",]

    done, late = make(reg.key, target="a"), make(reg.key, target="b")
    assert age() == 0
    first = reg.begin(done)
    reg.clock.now += 30
    second = reg.begin(late)
    assert age() == 30
    reg.put(first, done.pack)
    assert age() == 30  # received, and not committed
    reg.commit(first, done)
    reg.clock.now += 7
    assert age() == 7
    reg.clock.now += LIMITS.lease_seconds
    assert age() == 0  # its lease is over: nobody waits for it
    assert second


def test_a_hot_store_that_cannot_be_used_is_said(reg: Inside, redis_url: str) -> None:
    assert values(metrics_of(reg))["cachesvc_hot_up",] == 1
    server = redis.Redis.from_url(redis_url)
    hot = RedisHot(redis_url)
    try:
        lost = Metrics(replace(reg.registry, hot=hot), lambda: 0)
        assert values(lost)["cachesvc_hot_up",] == 1
        server.config_set("min-replicas-to-write", "1")  # as a primary that lost its replicas
        assert values(lost)["cachesvc_hot_up",] == 0
    finally:
        server.config_set("min-replicas-to-write", "0")
        hot.close()


def test_sums_are_read_seldom_and_their_failure_is_said(reg: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls, take = [100.0], [], [0.5]

    def read(registry: object) -> object:
        calls.append(registry)
        now[0] += take[0]
        if take[0] > 5:
            raise Unavailable("the index is away")
        return real(reg.registry)

    real = gauges.read_holdings
    monkeypatch.setattr(gauges, "read_holdings", read)
    monkeypatch.setattr(gauges.time, "monotonic", lambda: now[0])
    metrics = metrics_of(reg)
    for _ in range(5):
        values(metrics)
    assert len(calls) == 1
    now[0] += gauges.FRESH_SECONDS + 0.1
    take[0] = 2.0
    values(metrics)
    assert len(calls) == 2
    now[0] += 2.0 * gauges.SHARE - 0.1
    values(metrics)
    assert len(calls) == 2  # sums that take long are read seldom
    now[0], take[0] = now[0] + 0.2, 10.0
    failed = values(metrics)
    assert failed["cachesvc_index_up",] == 0
    assert ("cachesvc_entries",) not in failed


def test_each_help_stands_alone(own_server: Server) -> None:
    """No help refers to another one, none is said twice, and no counter has a series of its start."""
    server = own_server.start()
    text = httpx.get(server.url + "/metrics", trust_env=False).text
    found = {family.name: family.documentation for family in text_string_to_metric_families(text)}
    ours = {name: said for name, said in found.items() if name.startswith("cachesvc_")}
    assert len(ours) > 20
    for name, said in ours.items():
        assert re.fullmatch(r"[A-Z1].{20,}\.", said), (name, said)
        assert not re.search(r"\b(these|those that|they took|of this one)\b(?! of CI)", said.lower()), name
    assert len(set(ours.values())) == len(ours)
    assert "_created" not in text
    assert scraped(server)["cachesvc_disk_free_bytes",] > 0
