"""Test what a service publishes by itself beside the head of its entry, and when it may not. Real processes
and a registry test the rest in `e2e.test_as_you_go`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cachesvc_client.bundle.check import Verified
from cachesvc_client.bundle.pack import SourceFile
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.config.settings import Config
from cachesvc_client.publication.as_you_go import UNPROVEN_LANE, RightToPublish, with_lane
from cachesvc_client.publication.build_bundle import Draft, build_bundle
from cachesvc_client.session import entry_head
from cachesvc_client.session.entry_head import join_head
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest.records import Workload
from cachesvc_client.wire.names import Lane, Name, Target
from tests.commands.conftest import Registry, registry

__all__ = ["registry"]

NAME = Name.parse("team/m")


def graph(letter: str) -> SourceFile:
    return SourceFile("inductor", f"fxgraph/ab/f{letter * 30}/{letter * 30}", letter.encode())


KEY = SigningKey.generate()


def draft(ranks: int = 1) -> Draft:
    return Draft(NAME, Target("service"), {}, Workload(ranks=ranks), (), UNPROVEN_LANE)


def head(place: Path, *files: SourceFile, ranks: int = 1) -> tuple[Verified, Path]:
    """Return a revision that holds these files, and its pack."""
    from cachesvc_client.bundle.file import open_bundle

    bundle, pack = place / "head.cachesvc", place / "pack"
    manifest = build_bundle(files, draft(ranks), KEY, bundle)
    pack.write_bytes(bundle.read_bytes()[open_bundle(bundle)[1] :])
    revision = Digest.of(b"revision")
    return Verified(manifest, revision, b"", KEY.public, None), pack


def contents(files: object) -> dict[str, bytes]:
    return {file.path[-1]: file.content() for file in files}


def test_a_publication_keeps_what_the_head_holds(tmp_path: Path) -> None:
    there = head(tmp_path, graph("a"), graph("b"))
    joined, whole = join_head(there, [graph("b"), graph("c")], KEY.public, draft(), tmp_path)
    assert contents(joined) == {"a": b"a", "b": b"b", "c": b"c"}
    assert all(file.ranks == () for file in joined)
    assert [one.revision for one in whole.build.ancestors] == [there[0].revision]


def test_the_ranks_of_the_head_s_files_stay_what_they_are(tmp_path: Path) -> None:
    there = head(tmp_path, replace(graph("a"), ranks=(1,)), replace(graph("b"), ranks=(0,)), ranks=2)
    files = [replace(graph("b"), ranks=(1,)), graph("c"), replace(graph("d"), ranks=(0,))]
    joined, _ = join_head(there, files, KEY.public, draft(2), tmp_path)
    assert {file.path[-1]: file.ranks for file in joined} == {"a": (1,), "b": (), "c": (), "d": (0,)}


def test_a_head_that_has_grown_too_large_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_head, "_MOST_JOINED_BYTES", 1)
    there = head(tmp_path, graph("a"), graph("b"))
    joined, whole = join_head(there, [graph("c")], KEY.public, draft(), tmp_path)
    assert contents(joined) == {"c": b"c"} and whole.build.ancestors == ()


def test_a_head_of_another_signer_is_not_kept(tmp_path: Path) -> None:
    there = head(tmp_path, graph("a"))
    joined, _ = join_head(there, [graph("c")], SigningKey.generate().public, draft(), tmp_path)
    assert contents(joined) == {"c": b"c"}


class Heads:
    """Offers one head after the other, as a registry does into which others publish meanwhile."""

    def __init__(self, *offered: object) -> None:
        self.offered = list(offered)

    def fetch_head(self, *_: object) -> object:
        return self.offered.pop(0)


def test_a_head_that_came_meanwhile_is_joined_and_not_replaced(registry: Registry, tmp_path: Path) -> None:
    """Two processes publish at once: both have asked before either has published."""
    from cachesvc_client.session.entry_publication import publish_beside_head

    config = Config(url=registry.url, token=registry.token)
    key = SigningKey.from_text(registry.key_path.read_text())
    bare = Draft(NAME, Target("service"), {}, Workload(), ())
    first = publish_beside_head([], config, key, [graph("a")], bare, Heads(None))
    there = head(tmp_path, graph("a"))
    manifest = replace(there[0].manifest, statement=replace(there[0].manifest.statement, lane=None))
    staged = replace(there[0], manifest=manifest, revision=first[0].revision, signer=key.public)
    second = publish_beside_head([], config, key, [graph("b")], bare, Heads(None, (staged, there[1])))
    assert second[1] == 2 and second[0].entry == first[0].entry, "tried again, beside the other's"
    third = publish_beside_head([], config, key, [graph("c")], bare, Heads(None, None))
    assert third[1] == 1, "a head that is not offered is replaced"


@pytest.mark.parametrize(
    ("config", "lane"),
    [
        (Config(mode="readwrite"), UNPROVEN_LANE),
        (Config(mode="readwrite", lane=Lane("pr-1")), "pr-1"),
        (Config(mode="readwrite", publish_after=0.0), None),
        (Config(mode="readwrite", bundle=Path("/image")), None),
        (Config(mode="read"), None),
    ],
)
def test_only_a_process_that_publishes_by_itself_gets_a_lane(config: Config, lane: str | None) -> None:
    assert with_lane(config).lane == lane


def right(registry: Registry, url: str | None = None, supported: bool = True) -> RightToPublish:
    config = Config(
        url=url or registry.url, token=registry.token, mode="readwrite", signing_key=registry.key_path
    )
    return RightToPublish(with_lane(config), [NAME], "team/m", leads=True, supported=supported)


def test_a_registry_that_does_not_answer_has_refused_nothing(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    away = right(registry, "http://127.0.0.1:9")
    assert not away.ask() and not away.refused and caplog.text == ""
    assert right(registry).ask()


def test_a_torch_that_is_not_supported_publishes_nothing_and_says_so_once(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    unsupported = right(registry, supported=False)
    assert not unsupported.ask() and not unsupported.ask() and unsupported.refused
    [line] = caplog.messages
    assert line.startswith(
        "team/m: nothing that this process compiles is published: this torch is not a supported"
    )
