"""Test what a service publishes by itself beside the head of its entry, and when it may not. Real processes
and a registry test the rest in `e2e.test_as_you_go`."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachesvc_client.bundle.pack import SourceFile
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.config import Config
from cachesvc_client.node.installed import StagedRevision
from cachesvc_client.publication.as_you_go import UNPROVEN_LANE, RightToPublish, with_lane
from cachesvc_client.publication.build_bundle import Draft, build_bundle
from cachesvc_client.session import quiet_publisher
from cachesvc_client.session.quiet_publisher import join_head
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Lane, Name, Target
from cachesvc_client.wire.records import Workload
from tests.commands.conftest import Registry, registry

__all__ = ["registry"]

NAME = Name.parse("team/m")


def graph(letter: str) -> SourceFile:
    return SourceFile("inductor", f"fxgraph/ab/f{letter * 30}/{letter * 30}", letter.encode())


def head(place: Path, *files: SourceFile) -> tuple[StagedRevision, Path]:
    """Return a revision that holds these files, and its pack."""
    from cachesvc_client.bundle.file import open_bundle

    bundle, pack = place / "head.cachesvc", place / "pack"
    draft = Draft(NAME, Target("service"), {}, Workload(), (), UNPROVEN_LANE)
    key = SigningKey.generate()
    manifest = build_bundle(files, draft, key, bundle)
    pack.write_bytes(bundle.read_bytes()[open_bundle(bundle)[1] :])
    revision = Digest.of(b"revision")
    return StagedRevision(manifest, revision, key.public, lambda: None, lambda *_: None), pack


def contents(files: object) -> dict[str, bytes]:
    return {
        file.path[-1]: file.data if isinstance(file.data, bytes) else file.data.read_bytes() for file in files
    }


def test_a_publication_keeps_what_the_head_holds(tmp_path: Path) -> None:
    revision, pack = head(tmp_path, graph("a"), graph("b"))
    joined = join_head(revision, pack, [graph("b"), graph("c")], tmp_path)
    assert contents(joined) == {"a": b"a", "b": b"b", "c": b"c"}
    assert all(file.ranks == () for file in joined)


def test_a_head_that_has_grown_too_large_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiet_publisher, "_MOST_JOINED_BYTES", 1)
    revision, pack = head(tmp_path, graph("a"), graph("b"))
    assert contents(join_head(revision, pack, [graph("c")], tmp_path)) == {"c": b"c"}


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
