"""Test that one name holds an entry for each environment: each asker is offered the one that fits, and what
happens to one entry leaves the others alone. Fingerprints of other torch versions are made, not detected."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from registry_inside import ROOT, START, Clock, Column, Inside, inside
from registry_making import FINGERPRINT, Publication, make

from cachesvc.registry.upkeep import gc, retention
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire import codec
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Namespace, ShortName
from cachesvc_client.wire.requests.protocol import ResolveAnswer, ResolveRequest

DAY = 86_400
VERSIONS = ("2.8.0", "2.11.0", "2.13.0", "2.15.0")
ISAS = ("avx2", "avx512")
ENVIRONMENTS = [(version, isa) for version in VERSIONS for isa in ISAS]


@pytest.fixture
def reg(tmp_path: Path, column: Column) -> Iterator[Inside]:
    with inside(tmp_path, SigningKey.generate(), Clock(), column=column) as registry:
        yield registry


def fingerprint(torch: str, isa: str = "avx2") -> dict[str, Any]:
    return {**FINGERPRINT, "torch": torch, "cpu_isa": isa}


def built(reg: Inside, torch: str, isa: str = "avx2", number: int = 1) -> Publication:
    """Make the publication ``number`` of the environment's entry. All share one name, tag and target."""
    return make(
        reg.key,
        sequence=int(reg.clock.now * 1000) + number,
        content=f"{torch} {isa} {number}".encode(),
        fingerprint=fingerprint(torch, isa),
    )


def offered(reg: Inside, torch: str, isa: str = "avx2") -> list[Digest]:
    """Return the revisions that a service in this environment is offered."""
    request = ResolveRequest(Namespace("team"), ShortName("bert"), fingerprint(torch, isa))
    body = reg.answer(request)
    answer = codec.build(ResolveAnswer, codec.parse_json(body, limit=len(body), what="the answer"))
    return [one.revision for one in answer.revisions]


def test_each_environment_is_offered_its_own_entry(reg: Inside) -> None:
    published = {one: built(reg, *one) for one in ENVIRONMENTS}
    for publication in published.values():
        assert reg.publish(publication).created
    assert len({one.manifest.entry for one in published.values()}) == len(ENVIRONMENTS)
    for environment, publication in published.items():
        assert offered(reg, *environment) == [publication.revision]


def test_an_environment_without_an_entry_is_offered_none(reg: Inside) -> None:
    for environment in ENVIRONMENTS:
        reg.publish(built(reg, *environment))
    assert offered(reg, "2.14.1") == []


def test_a_rollout_is_warmed_before_its_first_service(reg: Inside) -> None:
    old = built(reg, "2.13.0")
    reg.publish(old)
    assert offered(reg, "2.15.0") == []
    new = built(reg, "2.15.0")
    assert reg.publish(new).created  # No head to replace: it is an entry of its own.
    assert offered(reg, "2.15.0") == [new.revision]
    assert offered(reg, "2.13.0") == [old.revision]


def test_revisions_of_one_environment_do_not_push_out_another_s(reg: Inside) -> None:
    previous, old = built(reg, "2.13.0", number=1), built(reg, "2.13.0", number=2)
    reg.publish(previous)
    reg.publish(old, previous.revision)
    head = None
    for number in range(1, 6):
        reg.clock.now = START + number
        head = reg.publish(built(reg, "2.15.0", number=number), head).revision
    reg.clock.now = START + 3 * DAY
    assert gc.collect(reg.registry).revisions == 3  # Two of each entry are kept, by the registry's policy.
    assert offered(reg, "2.13.0") == [old.revision]
    assert offered(reg, "2.15.0") == [head]
    assert reg.pack(old.revision) == old.pack
    assert reg.pack(previous.revision) == previous.pack


def test_a_deleted_entry_leaves_the_other_environments_alone(reg: Inside) -> None:
    old, new = built(reg, "2.13.0"), built(reg, "2.15.0")
    reg.publish(old)
    reg.publish(new)
    retention.delete_entry(reg.registry, ROOT, new.manifest.entry, new.revision)
    assert offered(reg, "2.15.0") == []
    assert offered(reg, "2.13.0") == [old.revision]


def test_older_bytes_published_again_change_their_own_entry_only(reg: Inside) -> None:
    other = built(reg, "2.13.0")
    reg.publish(other)
    first, second = built(reg, "2.15.0", number=1), built(reg, "2.15.0", number=2)
    reg.publish(first)
    reg.publish(second, first.revision)
    again = make(
        reg.key,
        sequence=second.manifest.statement.sequence + 1,
        content=b"2.15.0 avx2 1",
        fingerprint=fingerprint("2.15.0"),
    )
    reg.publish(again, second.revision)
    assert again.pack == first.pack
    assert offered(reg, "2.15.0") == [again.revision]
    assert offered(reg, "2.13.0") == [other.revision]
