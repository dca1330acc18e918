"""Test what a round of an agent leaves on a node: checked, within its bound, and whole after a kill."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "bundle"))

from packing import kill_at_step

from cachesvc.agent import round as round_module
from cachesvc.agent.store_writer import SharedStoreWriter
from cachesvc_client.bundle.check import check_envelope
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.config.settings import Config
from cachesvc_client.node.shared_store import open_shared_store
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import InvalidRequest, NotFound, Unauthenticated, Unavailable, Untrusted
from cachesvc_client.wire.requests.node_list import NodeList
from tests.e2e.registries import free_url, hung
from tests.killed import was_killed

from .conftest import Node, Publisher


def test_a_round_brings_what_globs_and_tags_choose(publisher: Publisher, node: Node) -> None:
    bert, llm = publisher.publish("globs/bert", seed=1), publisher.publish("globs/llm:v1", seed=2)
    other = publisher.publish("elsewhere/bert", seed=3)
    node.round("globs/*", "globs/l*:v?")
    assert node.packs() == {bert.pack, llm.pack}
    assert (node.offers("globs/bert"), node.offers("globs/llm:v1")) == ([bert.revision], [llm.revision])
    assert node.offers("elsewhere/bert") is None
    assert other.pack not in node.packs()
    assert node.measures.value("downloads_total") == 2


def test_a_new_revision_takes_the_place_of_the_old_one(publisher: Publisher, node: Node) -> None:
    keeper = node.keeper("turn/bert", keep_seconds=0.0)
    first = publisher.publish("turn/bert", seed=1)
    keeper.round()
    second = publisher.publish("turn/bert", seed=2)
    keeper.round()
    assert node.offers("turn/bert") == [second.revision]
    assert node.packs() == {second.pack} != {first.pack}
    assert [path.name for path in (node.root / "v1" / "envelopes").iterdir()] == [second.revision[7:]]


def test_what_is_in_quarantine_is_gone_after_the_next_round(publisher: Publisher, node: Node) -> None:
    revision = publisher.publish("ill/bert", seed=1)
    node.round("ill/bert")
    assert node.offers("ill/bert") == [revision.revision]
    answer = httpx.put(
        f"{publisher.served.url}/v1/revisions/{revision.revision}/quarantine",
        json={"why": "wrong numbers"},
        headers={"Authorization": f"Bearer {publisher.served.token}"},
    )
    assert answer.is_success, answer.text
    node.round("ill/bert", keep_seconds=0.0)
    assert node.offers("ill/bert") == []
    node.round("ill/bert", keep_seconds=0.0)
    assert not list((node.root / "v1" / "envelopes").iterdir())


def test_entries_of_other_environments_are_left_out_if_the_operator_says_so(
    publisher: Publisher, node: Node
) -> None:
    from cachesvc.agent.watch import FactorPattern

    here = publisher.publish("many/bert", seed=1)
    there = publisher.publish("many/bert", seed=2, torch="1.0.0", target="elsewhere")
    node.round("many/bert")
    assert node.packs() == {here.pack, there.pack}
    assert node.offers("many/bert") == [here.revision]
    node.round("many/bert", factors=(FactorPattern.parse("torch=2.*"),), keep_seconds=0.0)
    # A new agent removes what no list names once it has seen that for as long as it is told to.
    assert node.packs() == {here.pack}


def test_the_bound_holds_pinned_names_first_and_no_pack_comes_and_goes(
    publisher: Publisher, node: Node
) -> None:
    packs = [publisher.publish(f"bound/m{number}", seed=number).pack for number in range(4)]
    keeper = node.keeper("bound/*", bound=250_000, pins=("bound/m0",))
    keeper.round()
    assert node.packs() == {packs[0], packs[3]}
    assert node.measures.value("left_out") == 2
    moved = node.measures.value("downloaded_bytes_total")
    keeper.round()
    assert (node.measures.value("downloaded_bytes_total"), node.packs()) == (moved, {packs[0], packs[3]})
    # A service still learns of the others: it downloads their packs itself.
    assert node.offers("bound/m1")


def test_readers_who_hold_packs_do_not_keep_the_agent_from_its_bound(
    publisher: Publisher, node: Node
) -> None:
    import fcntl

    old = publisher.publish("held/bert", seed=1)
    keeper = node.keeper("held/bert", bound=150_000)
    keeper.round()
    with open(node.root / "v1" / "packs" / old.pack[7:], "rb") as reader:
        fcntl.flock(reader, fcntl.LOCK_EX)
        new = publisher.publish("held/bert", seed=2)
        keeper.round()
        assert node.packs() == {new.pack}
        assert Digest.of(reader.read()) == old.pack  # who has it open reads on


def test_a_round_that_is_killed_at_any_step_leaves_what_the_next_one_completes(
    publisher: Publisher, node: Node
) -> None:
    first, second = publisher.publish("kill/a", seed=1), publisher.publish("kill/b", seed=2)
    kills = 0
    for at in range(1, 60):
        there = Node(node.root.parent / str(at), node.config, node.measures)
        if not was_killed(there.keeper("kill/*", step=kill_at_step(at)).round):
            break
        kills += 1
        check_whole(there, publisher)
        there.round("kill/*")
        assert there.packs() == {first.pack, second.pack}
        assert there.offers("kill/a") == [first.revision]
        check_whole(there, publisher)
    assert kills > 15


def check_whole(node: Node, publisher: Publisher) -> None:
    """Fail if a list, an envelope or a pack is there that is not whole."""
    base = node.root / "v1"
    for path in (base / "lists").iterdir():
        for row in NodeList.parse(path.read_bytes()).revisions:
            envelope = open_shared_store(node.root, None).envelope(row.revision)
            assert envelope is not None
            check_envelope(envelope, trusted=[publisher.key.public], expected=None, now=0.0)
    for path in (base / "packs").iterdir():
        assert Digest.of(path.read_bytes()).hex == path.name


def test_a_registry_that_is_gone_or_hangs_leaves_what_is_there(
    publisher: Publisher, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(round_module, "CALL_SECONDS", 0.5)
    revision = publisher.publish("stay/bert", seed=1)
    node.round("stay/bert")
    with hung() as url:
        for address in (free_url(), url):
            away = Config.read({**publisher.served.variables, "CACHESVC_URL": address})
            lost = Node(node.root, away, node.measures)
            with pytest.raises(Unavailable):
                lost.round("stay/bert")
    assert node.packs() == {revision.pack}
    assert node.offers("stay/bert") == [revision.revision]
    # Nobody is told that the list is young: a service asks the registry, and falls back on it.
    [path] = (node.root / "v1" / "lists").iterdir()
    os.utime(path, (path.stat().st_mtime - 3600,) * 2)
    assert node.offers("stay/bert") is None
    assert node.offers("stay/bert", max_age=7200) == [revision.revision]


def test_a_token_that_is_not_known_is_said_and_removes_nothing(publisher: Publisher, node: Node) -> None:
    revision = publisher.publish("token/bert", seed=1)
    node.round("token/bert")
    wrong = Config.read({**publisher.served.variables, "CACHESVC_TOKEN": "csvc_wrong"})
    with pytest.raises(Unauthenticated):
        Node(node.root, wrong, node.measures).round("token/bert")
    assert node.packs() == {revision.pack}


def test_a_revision_that_nobody_trusted_signed_is_not_kept(publisher: Publisher, node: Node) -> None:
    publisher.publish("foreign/bert", seed=1)
    stranger = str(SigningKey.generate().public)
    config = Config.read({**publisher.served.variables, "CACHESVC_TRUSTED_KEYS": stranger})
    Node(node.root, config, node.measures).round("foreign/bert")
    assert node.offers("foreign/bert") == []
    assert not node.packs()
    assert not list((node.root / "v1" / "envelopes").iterdir())
    assert node.measures.value("refused_total", "untrusted") == 1


def test_one_agent_fills_a_store(node: Node) -> None:
    first, second = SharedStoreWriter(node.root), SharedStoreWriter(node.root)
    with first.held(), pytest.raises(InvalidRequest, match="another agent"), second.held():
        pass


def test_services_read_what_the_agent_made_and_nothing_else(publisher: Publisher, node: Node) -> None:
    old = os.umask(0o077)
    try:
        publisher.publish("modes/bert", seed=1)
        node.round("modes/bert")
    finally:
        os.umask(old)
    base = node.root / "v1"
    modes = {path.name: path.stat().st_mode & 0o777 for path in base.iterdir()}
    readable = {name for name, mode in modes.items() if mode == 0o755}
    assert readable == {"packs", "lists", "envelopes", "trust"}
    assert set(modes.values()) == {0o755, 0o700}
    for part in ("packs", "lists", "envelopes"):
        assert {path.stat().st_mode & 0o777 for path in (base / part).iterdir()} == {0o644}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of another user")
def test_a_store_of_another_user_is_read_only_if_the_operator_names_that_user(
    publisher: Publisher, node: Node
) -> None:
    publisher.publish("owner/bert", seed=1)
    node.round("owner/bert")
    for folder, names, _ in os.walk(node.root):
        for name in (".", *names):
            os.chown(Path(folder, name), 10001, 10001)
    with pytest.raises(Untrusted, match="CACHESVC_NODE_OWNER=10001"):
        open_shared_store(node.root, None)
    with pytest.raises(Untrusted):
        open_shared_store(node.root, 10002)
    assert open_shared_store(node.root, 10001).trust_folder.exists()


@pytest.mark.parametrize("part", ["", "v1", "v1/packs", "v1/lists", "v1/envelopes", "v1/trust"])
def test_a_store_into_which_others_may_write_is_not_read(node: Node, part: str) -> None:
    SharedStoreWriter(node.root)
    (node.root / part).chmod(0o777)
    with pytest.raises(Untrusted, match="others may write"):
        open_shared_store(node.root, None)
    (node.root / part).chmod(0o755)
    assert open_shared_store(node.root, None)


def test_a_store_that_is_not_there_yet_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="cachesvc node"):
        open_shared_store(tmp_path / "none", None)
