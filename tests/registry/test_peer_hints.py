"""Test what the registry tells agents of nodes about each other, over both columns of backends."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from registry_inside import ROOT, Clock, Column, Inside, inside
from registry_making import make

from cachesvc.domain.access import Role, Token
from cachesvc.hot.memory import MemoryHot
from cachesvc.hot.redis import RedisHot
from cachesvc.hot.store import MAX_HOLDERS
from cachesvc.registry.context import Registry
from cachesvc.registry.mirror import peers
from cachesvc.registry.upkeep import quarantine
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import Forbidden, NotFound
from cachesvc_client.wire.names import Lane, Namespace
from cachesvc_client.wire.requests.peers import MAX_SOURCES, PackOffer, PackSources, PackWant, PeersRequest
from tests.services.process import free_port

READER = Token("t-reader", "test", Role.read, "team")


@pytest.fixture
def reg(tmp_path: Path, column: Column) -> Iterator[Inside]:
    with inside(tmp_path, SigningKey.generate(), Clock(), column=column) as registry:
        registry.registry = replace(registry.registry, peers=True)
        yield registry


def pack_of(reg: Inside, number: int = 0, **more: Any) -> Digest:
    """Publish a pack that no other test has, since Redis is shared; return its digest."""
    made = make(reg.key, target=f"t{number}", content=secrets.token_bytes(32), **more)
    reg.publish(made)
    return made.manifest.pack.digest


def request(agent: int, pack: Digest, *, offers: bool = False, wants: bool = False, **more) -> PeersRequest:
    return PeersRequest(
        Namespace("team"),
        f"{agent:032x}",
        f"10.4.0.{agent}",
        (PackOffer(pack, f"{agent:064x}"),) if offers else (),
        (PackWant(pack, 1000),) if wants else (),
        **more,
    )


def ask(registry: Registry, agent: int, pack: Digest, token: Token = READER, **more) -> PackSources:
    return peers.exchange(registry, token, request(agent, pack, wants=True, **more)).packs[0]


def offer(registry: Registry, agent: int, pack: Digest, token: Token = READER, **more) -> None:
    peers.exchange(registry, token, request(agent, pack, offers=True, **more))


def test_who_wants_a_pack_is_told_who_offers_it(reg: Inside) -> None:
    pack, other = pack_of(reg), pack_of(reg, 1)
    offer(reg.registry, 1, pack)
    [source] = ask(reg.registry, 2, pack).sources
    assert (source.address, source.capability) == ("10.4.0.1", f"{1:064x}")
    assert ask(reg.registry, 1, pack).sources == ()  # not its own offer
    assert ask(reg.registry, 3, other).sources == ()
    offer(reg.registry, 1, other, withdrawn=(pack,))
    assert ask(reg.registry, 2, pack).sources == ()
    for agent in range(1, 60):
        offer(reg.registry, agent, pack)
    assert len(ask(reg.registry, 100, pack).sources) == MAX_SOURCES
    assert len(reg.registry.hot.holders(f"peers/team/{pack.hex}")) == MAX_HOLDERS


def test_of_all_who_want_a_pack_that_nobody_has_few_fetch_it(reg: Inside) -> None:
    pack = pack_of(reg)
    allowed: list[int] = []

    def ask_alone(agent: int) -> None:
        if ask(reg.registry, agent, pack).fetch:
            allowed.append(agent)

    threads = [threading.Thread(target=ask_alone, args=(agent,)) for agent in range(1, 31)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 <= len(allowed) <= peers.FETCHERS
    assert ask(reg.registry, allowed[0], pack).fetch  # an answer that was lost is given again
    offer(reg.registry, allowed[0], pack)
    answer = ask(reg.registry, 40, pack)
    assert (answer.fetch, len(answer.sources)) == (False, 1)


def test_an_agent_that_has_fetched_or_could_not_makes_room_for_another(reg: Inside) -> None:
    pack = pack_of(reg)
    key = f"peers-fetch/team/{pack.hex}"
    assert ask(reg.registry, 1, pack).fetch
    assert ask(reg.registry, 2, pack).fetch
    offer(reg.registry, 1, pack)
    peers.exchange(reg.registry, READER, request(2, pack, withdrawn=(pack,)))
    assert reg.registry.hot.holders(key) == {}
    reg.registry.hot.drop(key)  # the seconds of the count are over
    [useless] = ask(reg.registry, 3, pack).sources
    assert ask(reg.registry, 3, pack, failed=(useless.peer,)).fetch


def test_a_store_of_hints_that_is_lost_or_down_makes_every_agent_fetch(tmp_path: Path) -> None:
    with inside(tmp_path, SigningKey.generate(), Clock()) as reg:
        pack = pack_of(reg)
        registry = replace(reg.registry, peers=True)
        offer(registry, 1, pack)
        assert ask(registry, 2, pack).sources
        lost = replace(registry, hot=MemoryHot())
        assert ask(lost, 2, pack) == PackSources(pack, fetch=True)
        down = replace(registry, hot=RedisHot(f"redis://127.0.0.1:{free_port()}"))
        offer(down, 1, pack)
        assert [ask(down, agent, pack).fetch for agent in range(1, 10)] == [True] * 9


def test_what_somebody_else_wrote_into_the_store_is_passed_over(reg: Inside) -> None:
    pack = pack_of(reg)
    for number, value in enumerate((b"", b"{}", b"\xff", b'{"peer":"x"}', b"[" * 900, b"x" * 5000)):
        reg.registry.hot.hold(f"peers/team/{pack.hex}", f"{number}", value, 60.0)
    assert ask(reg.registry, 1, pack) == PackSources(pack, fetch=True)
    offer(reg.registry, 2, pack)
    assert [row.address for row in ask(reg.registry, 1, pack).sources] == ["10.4.0.2"]


def test_rights_are_those_of_the_namespace_s_trunk(reg: Inside) -> None:
    pack = pack_of(reg)
    with pytest.raises(Forbidden):
        ask(reg.registry, 1, pack, Token("t-other", "test", Role.admin, "other"))
    with pytest.raises(Forbidden, match="lane pr-1"):
        ask(reg.registry, 1, pack, Token("t-lane", "test", Role.write, "team", Lane("pr-1")))
    with pytest.raises(NotFound, match="setting peers"):
        ask(replace(reg.registry, peers=False), 1, pack)
    assert ask(reg.registry, 1, pack, ROOT).fetch


def test_of_what_the_namespace_does_not_offer_no_hint_is_kept_or_told(reg: Inside) -> None:
    """Digests that somebody made up, of another namespace, of a lane, and of what was withdrawn."""
    made_up = Digest.of(secrets.token_bytes(32))
    elsewhere = pack_of(reg, namespace="other")
    of_lane = pack_of(reg, lane="pr-1")
    gone = make(reg.key, content=secrets.token_bytes(32))
    reg.publish(gone)
    offer(reg.registry, 1, gone.manifest.pack.digest)
    assert ask(reg.registry, 2, gone.manifest.pack.digest).sources
    quarantine.withdraw(reg.registry, ROOT, gone.revision, "hostile")
    for pack in (made_up, elsewhere, of_lane):
        offer(reg.registry, 1, pack)
        assert reg.registry.hot.holders(f"peers/team/{pack.hex}") == {}
    for pack in (made_up, elsewhere, of_lane, gone.manifest.pack.digest):
        for agent in range(2, 12):  # nobody waits for another agent: the registry says why there is nothing
            assert ask(reg.registry, agent, pack) == PackSources(pack, fetch=True)
    quarantine.release(reg.registry, ROOT, gone.revision)
    offer(reg.registry, 1, gone.manifest.pack.digest)
    assert ask(reg.registry, 2, gone.manifest.pack.digest).sources


def test_who_offers_much_forgets_no_hint_of_others() -> None:
    hot = MemoryHot()
    hot.put("answer", b"x" * 1000)
    for number in range(20_000):
        hot.hold(f"peers/team/{number}", "me", b"x" * 1000, 300.0)
    assert hot.get("answer") == b"x" * 1000
    assert hot._held_bytes <= 16 << 20
    assert hot.holders("peers/team/19999")
    for number in range(20_000):
        hot.release(f"peers/team/{number}", "me")
    assert (hot._held_bytes, hot._held) == (0, {})
