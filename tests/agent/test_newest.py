"""Test that registry, coverage and node name the same entry as the newest of a target, whatever the clocks of
builders say, and within one second."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from cachesvc.queries.coverage import cover
from cachesvc.queries.planned import Plan, PlannedEnvironment
from cachesvc_client.environment.detect import detect
from cachesvc_client.http.registry import Remote
from cachesvc_client.node.shared_store import open_shared_store
from cachesvc_client.publication import build_bundle
from cachesvc_client.restore.node_offers import NodeOffers
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Name
from cachesvc_client.wire.requests.protocol import FEW_RESOLVED, ResolveRequest

from .conftest import Node, Published, Publisher

DAY = 86_400


def publish(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch, name: str, number: int, off: float
) -> Published:
    """Publish an entry of a model of its own, from a builder whose clock is off by so many seconds."""
    sequence = int((time.time() + off) * 1000)
    with monkeypatch.context() as patched:
        patched.setattr(build_bundle, "next_sequence", lambda: sequence)
        return publisher.publish(name, seed=number, size=100, model=Digest.of(b"model %d" % number))


def newest(publisher: Publisher, node: Node, name: str) -> dict[str, list[str]]:
    """Return by who is asked the entries that a start restores, and that decide whether it is warm."""
    parsed, here = Name.parse(name), detect(dict(os.environ))
    request = ResolveRequest(parsed.namespace, parsed.name, here, (parsed.tag,), most=FEW_RESOLVED)
    with Remote(publisher.served.url, publisher.served.token) as remote:
        offered = [str(row.entry) for row in remote.resolve(request).revisions]
    plan = Plan(given=(PlannedEnvironment(here),))
    covered = cover(publisher.config, parsed, plan=plan, gate=True)
    assert [cell.state for cell in covered.cells] == ["warm"]
    node.round(name)
    offers = NodeOffers(open_shared_store(node.root, None), publisher.served.url, 60.0)
    found = offers.answer(request, 60.0)
    assert found is not None
    return {
        "registry": offered,
        "coverage": [str(cell.entry) for cell in covered.cells],
        "node": [str(row.entry) for row in found[0].revisions],
    }


@pytest.mark.parametrize(
    ("name", "off_first", "off_second"), [("behind", 0, -3 * DAY), ("ahead", 240, 0), ("right", 0, 0)]
)
def test_the_last_publication_is_the_newest_whatever_its_builder_s_clock(
    publisher: Publisher,
    node: Node,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    off_first: float,
    off_second: float,
) -> None:
    """A node that went by signed sequences restored the model before, from a builder whose clock is right."""
    text = f"newest/{name}"
    first = publish(publisher, monkeypatch, text, 1, off_first)
    time.sleep(1.1)
    second = publish(publisher, monkeypatch, text, 2, off_second)
    assert newest(publisher, node, text) == everywhere(second)
    time.sleep(1.1)
    publish(publisher, monkeypatch, text, 1, 0)
    assert newest(publisher, node, text) == everywhere(first)


def test_within_one_second_the_signed_sequence_decides(
    publisher: Publisher, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        text = f"newest/second-{number}"
        late = publish(publisher, monkeypatch, text, 1, 10)
        publish(publisher, monkeypatch, text, 2, 5)
        if len(published(publisher, text)) == 1:
            break
    assert len(published(publisher, text)) == 1, "never two within one second"
    assert newest(publisher, node, text) == everywhere(late)


def everywhere(one: Published) -> dict[str, list[str]]:
    """Return what `newest` does where all who are asked name this entry alone."""
    return {who: [one.entry] for who in ("registry", "coverage", "node")}


def published(publisher: Publisher, name: str) -> set[Any]:
    """Return the seconds at which the registry took the entries of a name."""
    with Remote(publisher.served.url, publisher.served.token) as remote:
        return {row.published for row in remote.entries(Name.parse(name))}
