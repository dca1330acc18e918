"""Test that a service which publishes by itself records frames at its second start, so that the third one
does not trace. Real processes on fresh hosts, and a real registry."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from cachesvc_client.bundle.file import open_bundle
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.trust.accept import Acceptance
from tests.prepared import COMPILES, prepared_python
from tests.python_process import running_python

from .conftest import Built
from .harness import PROGRAMS, SCALAR, environment, run
from .registries import Served, client, free_url, wait_for
from .test_as_you_go import LANE, READWRITE, Service

pytestmark = pytest.mark.compiles


class Recording(Service):
    """A process of ``recording_service.py`` on a host of its own."""

    def call(self, word: str | int) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, self._err.read_text()[-4000:]
        answer: dict[str, Any] = json.loads(line)
        assert answer.get("difference", 0.0) < 1e-5, "the outputs are those of eager"
        return answer

    def published(self, times: int = 1) -> dict[str, Any]:
        return wait_for(lambda: self.lines("published")[times - 1 :])[0]


@contextmanager
def service(place: Path, name: str, change: str = "nothing", **variables: str) -> Iterator[Recording]:
    env = {**environment(place), **SCALAR, **variables}
    python = prepared_python(COMPILES, env)
    with running_python(["recording_service.py", name, change], place, env, PROGRAMS, python) as process:
        yield Recording(process, place / "err")


_QUIET = 9.0
"""Seconds after which a quiet process has published what it would."""


def kinds_kept(home: Path, bundle: Path) -> set[str]:
    """Return the kinds of the files of a node's own results."""
    key = SigningKey.load(home / ".config/cachesvc/node.key")
    manifest = Acceptance([key.public]).accept_signed(open_bundle(bundle)[0], None).manifest
    return {record.kind for record in manifest.files}


def frames_below(place: Path) -> int:
    return len(list((place / "home").rglob("*.frames")))


def test_the_second_start_records_and_the_third_does_not_trace(tmp_path: Path, registry: Served) -> None:
    """Two replicas start for the second time at once: the entry gets the records of one."""
    name, readwrite = "team/third", {**registry.publisher, **READWRITE}
    with service(tmp_path / "first", name, **readwrite) as first:
        assert first.call(4)["compilations"] > 0
        first.call("train")
        first.call("step")
        assert first.published()["recorded"] == 0
    with ExitStack() as stack:
        places = [tmp_path / "second", tmp_path / "beside"]
        replicas = [stack.enter_context(service(place, name, **readwrite)) for place in places]
        for replica in replicas:
            replica.call(4)
            replica.call("train")
            answer = replica.call("step")
            assert answer["traces"] > 2 and answer["compilations"] == 0
            assert not replica.call("drop")["alive"], "a recording keeps no object of the program"
        [done] = wait_for(lambda: [line for one in replicas for line in one.lines("published")])
        assert done["recorded"] > 2 and "recorded frames" in done["message"]
        time.sleep(_QUIET)
        assert len([line for one in replicas for line in one.lines("published")]) == 1
    [folder] = places[0].joinpath("home").rglob("inductor")
    [recorded] = folder.rglob("*.frames")
    keys = {path.parent.name.encode() for path in folder.glob("fxgraph/*/*/*")}
    assert keys and all(key in recorded.read_bytes() for key in keys), "by these its origin is known"
    with service(tmp_path / "third", name, **registry.variables, **LANE) as third:
        third.call(4)
        third.call("train")
        answer = third.call("step")
        assert (answer["traces"], answer["compilations"]) == (0, 0), answer
        assert frames_below(tmp_path / "third") == 1
    for change in ("another_function", "replaced_forward"):
        with service(tmp_path / change, name, change, **registry.variables, **LANE) as changed:
            answer = changed.call(4)
            assert answer["traces"] > 0 and answer["why"], answer


def test_a_start_that_may_not_or_cannot_record_leaves_the_entry_as_it_is(
    tmp_path: Path, registry: Served
) -> None:
    name, readwrite = "team/unrecorded", {**registry.publisher, **READWRITE}
    with service(tmp_path / "first", name, **readwrite) as first:
        first.call(4)
        first.published()
    no_time = {"CACHESVC_RECORD_SECONDS": "1e-6"}
    with ExitStack() as stack:
        others = [
            stack.enter_context(service(tmp_path / "traces", name, **readwrite, CACHESVC_FRAMES="0")),
            stack.enter_context(service(tmp_path / "slow", name, **readwrite, **no_time)),
            stack.enter_context(service(tmp_path / "broken", name, "broken_recorder", **readwrite)),
            stack.enter_context(service(tmp_path / "trace", name, "broken_trace", **readwrite)),
        ]
        for other in others:
            answer = other.call(4)
            assert answer["traces"] > 1 and answer["compilations"] == 0, answer
            wait_for(lambda one=other: one.lines("hit"))  # type: ignore[misc]
        time.sleep(_QUIET)
        for other in others:
            assert [line["message"] for line in other.lines() if line["level"] != "info"] == []
            assert other.lines("published") == []
    # A start that compiles something new publishes that, and no frames.
    with service(tmp_path / "more", name, **readwrite) as more:
        more.call(4)
        assert more.call("new")["compilations"] > 0
        assert more.published()["recorded"] == 0
    with service(tmp_path / "last", name, **registry.variables, **LANE) as last:
        last.call(4)
        answer = last.call("new")
        assert answer["traces"] > 2 and answer["compilations"] == 0, answer
        assert frames_below(tmp_path / "last") == 0


def test_a_start_from_an_entry_of_the_trunk_records_nothing_for_a_lane(
    tmp_path: Path, registry: Served, small: Built
) -> None:
    """The key that signs for the lane did not sign these graphs for it."""
    bundle = tmp_path / "trunk.cachesvc"
    words = ("compile", str(bundle), str(small.key_file))
    run("frames.py", *words, place=tmp_path / "builder", prepared=True, **SCALAR)
    pushed = client("push", str(bundle), **registry.publisher)
    assert pushed.returncode == 0, pushed.stderr
    with service(tmp_path / "service", "team/frames", **registry.publisher, **READWRITE) as reads:
        answer = reads.call(4)
        assert answer["traces"] > 1 and answer["compilations"] == 0, answer
        time.sleep(_QUIET)
        assert frames_below(tmp_path / "service") == 0
        assert reads.lines("published") == []


def test_without_a_registry_the_third_start_of_a_node_does_not_trace(tmp_path: Path) -> None:
    """The node keeps what it compiled, then its frames beside it. A change of the program traces."""
    home = tmp_path / "node"
    home.mkdir()
    trusted = str(SigningKey.generate().public)
    variables = {"CACHESVC_URL": free_url(), "CACHESVC_TRUSTED_KEYS": trusted, "HOME": str(home)}

    def kept() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (home / ".cache/cachesvc/v1/own").glob("*")}

    with service(tmp_path / "first", "team/alone", **variables) as first:
        assert first.call(4)["compilations"] > 0
        compiled = wait_for(kept)
    with service(tmp_path / "second", "team/alone", **variables) as second:
        answer = second.call(4)
        assert answer["traces"] > 1 and answer["compilations"] == 0, answer
        recorded = wait_for(lambda: (now := kept()) != compiled and now)
    with service(tmp_path / "third", "team/alone", **variables) as third:
        answer = third.call(4)
        assert (answer["traces"], answer["compilations"]) == (0, 0), answer
        time.sleep(_QUIET)
        assert kept() == recorded, "a start that does not trace writes nothing"
    with service(tmp_path / "changed", "team/alone", "another_function", **variables) as changed:
        answer = changed.call(4)
        assert answer["traces"] > 0 and answer["why"], answer


def test_the_second_start_of_a_reader_on_its_node_does_not_trace(tmp_path: Path, registry: Served) -> None:
    """The entry has no frames, and the reader may publish none: its node keeps them, beside the revision."""
    name, readwrite = "team/reader", {**registry.publisher, **READWRITE}
    with service(tmp_path / "publisher", name, **readwrite) as first:
        first.call(4)
        first.published()
    home = tmp_path / "node"
    home.mkdir()
    reading = {**registry.variables, **LANE, "CACHESVC_LOG": "json", "HOME": str(home)}
    own = home / ".cache/cachesvc/v1/own"
    with service(tmp_path / "one", name, **reading) as one:
        answer = one.call(4)
        assert answer["traces"] > 1 and answer["compilations"] == 0, answer
        [kept] = wait_for(lambda: list(own.glob("*")))
    assert kinds_kept(home, kept) == {"frames"}, "the files of the revision stay the revision's"
    with service(tmp_path / "two", name, **reading) as two:
        answer = two.call(4)
        assert (answer["traces"], answer["compilations"]) == (0, 0), answer
        [hit] = wait_for(lambda: two.lines("hit"))
        assert "0 artifacts" not in hit["message"], "the revision's graphs served"
        before = kept.read_bytes()
    with service(tmp_path / "changed", name, "another_function", **reading) as changed:
        answer = changed.call(4)
        assert answer["traces"] > 0 and answer["why"], answer
    # A reader that trusts another key too, and the next revision of the entry, have frames of their own.
    more = f"{registry.trust},{SigningKey.generate().public}"
    with service(tmp_path / "trusts", name, **{**reading, "CACHESVC_TRUSTED_KEYS": more}) as trusts:
        answer = trusts.call(4)
        assert answer["traces"] > 1 and answer["compilations"] == 0, answer
    with service(tmp_path / "publishes", name, **readwrite, CACHESVC_FRAMES="0") as publisher:
        publisher.call("new")
        publisher.published()
    with service(tmp_path / "next", name, **reading) as later:
        answer = later.call(4)
        assert answer["traces"] > 1 and answer["compilations"] == 0, answer
        assert frames_below(home) == 0 and not later.lines("warning")
    assert kept.read_bytes() == before
    rows = client("admin", "entries", "list", "team", "--lane", "unproven", "--json", **registry.variables)
    heads = [one["revision"] for one in json.loads(rows.stdout)["rows"] if one["name"] == "reader"]
    for head in heads:
        words = ("admin", "quarantine", "set", head, "--why", "wrong numbers", "--apply")
        assert client(*words, **registry.variables).returncode == 0
    time.sleep(5.0)
    with service(tmp_path / "withheld", name, **reading) as withheld:
        assert withheld.call(4)["compilations"] > 0
        assert frames_below(home) == 0
