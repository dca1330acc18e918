"""Test that a process gets what another one published after its start, by the compiler's own key, without a
compile: real processes, each on a host of its own with empty folders, and a real registry."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from benchmarks.fleet.relay import Relay as SlowRelay
from benchmarks.load.large_name import fill
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.requests.protocol import ANSWER_SECONDS
from tests.services.relay import Relay

from .conftest import NAME, Built
from .long_lived import service
from .registries import Served, client, prepare, serve, wait_for

pytestmark = pytest.mark.compiles
PUBLISHES = {"CACHESVC_MODE": "readwrite", "CACHESVC_PUBLISH_AFTER": "0"}
LANE = {"CACHESVC_LANE": "unproven"}
SMALL = "small/float32/default"
DEADLINE = 6.0


def published(place: Path, registry: Served, name: str, functions: str, **variables: str) -> str:
    """Publish what a process on another host compiled, into the trunk; return the revision."""
    with service(place, name, **{**registry.publisher, **PUBLISHES, **variables}) as publisher:
        assert publisher.do(functions)["compiled"] == len(functions.split(","))
        return str(publisher.do("publish")["revision"])


def test_what_a_service_publishes_as_it_goes_is_not_compiled_by_one_that_started_before(
    tmp_path: Path, small: Built
) -> None:
    """And the next process of that node has it while the registry is gone."""
    prepare(tmp_path / "registry", small.key.text)
    with ExitStack() as stack:
        with serve(tmp_path / "registry", prepared=False) as registry:
            assert client("push", str(small.bundle), **registry.publisher).returncode == 0
            variables = {**registry.variables, **LANE}
            long = stack.enter_context(
                service(tmp_path / "long", NAME, fresh=True, compilers=False, **variables)
            )
            assert long.first["installed"] == [SMALL]
            goes = {**registry.publisher, "CACHESVC_MODE": "readwrite", "CACHESVC_PUBLISH_AFTER": "5"}
            publisher = stack.enter_context(service(tmp_path / "publisher", NAME, **goes))
            assert publisher.do("7")["compiled"] == 1
            wait_for(lambda: "published into the lane unproven" in publisher.log)
            answer = long.later("7")
            assert (answer["compiled"], answer["state"], answer["right"]) == (0, "hit", True), answer
            assert answer["installed"] == [SMALL, "service"] and answer["used"]["service"] > 0
            assert "service brought for what is compiled now" in long.log
            again = long.do("1")
            assert (again["compiled"], again["state"]) == (0, "hit"), "the first revision is there too"
            assert long.compilers == [] and again["observed"]["processes"] == []
            assert long.first["folder"] != again["folder"], "others share the folder of the first revision"
            resolved = tmp_path / "long/home/.cache/cachesvc/v1/resolved"
            answers = lambda: [json.loads(path.read_text()) for path in resolved.iterdir()]  # noqa: E731
            wait_for(lambda: any(len(one["revisions"]) == 2 for one in answers()))
        with service(tmp_path / "long", NAME, compilers=False, **variables) as second:
            answer = second.do("7,1")
        assert (answer["compiled"], answer["state"], answer["moved"]) == (0, "hit", 0), answer


@pytest.fixture(scope="module")
def registry(small: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("registry")
    prepare(folder, small.key.text)
    with serve(folder) as served:
        yield served


def test_a_process_that_started_when_nothing_was_published_and_one_of_a_large_name(
    tmp_path: Path, small: Built, registry: Served
) -> None:
    with ExitStack() as stack:
        early = stack.enter_context(service(tmp_path / "early", "team/early", **registry.variables))
        assert early.first["status"] == "failed"
        published(tmp_path / "publisher", registry, "team/early", "7,8")
        answer = early.later("7,8")
        assert (answer["compiled"], answer["right"], answer["installed"]) == (0, True, ["service"]), answer
        assert answer["state"] == "hit"
        # The last entry of a hundred is published after the start, which took none of them.
        assert client("push", str(small.bundle), **registry.publisher).returncode == 0
        fill(registry.url, registry.token, small.key, small.bundle, 1, 100)
        large = stack.enter_context(service(tmp_path / "large", NAME, **registry.variables))
        assert large.first["installed"] == []
        published(tmp_path / "second", registry, NAME, "9")
        answer = large.do("9")
        assert (answer["compiled"], answer["installed"]) == (0, ["service"]), answer


def test_a_key_that_nobody_has_is_compiled_and_what_is_there_still_comes(
    tmp_path: Path, registry: Served
) -> None:
    name = "team/partly"
    with service(tmp_path / "long", name, **registry.variables) as long:
        published(tmp_path / "publisher", registry, name, "7")
        answer = long.later("8")
        assert (answer["compiled"], answer["state"]) == (1, "miss") and answer["seconds"]["asked"] > 0
        asked = answer["seconds"]["asked"]
        answer = long.do("7,8")
        assert (answer["compiled"], answer["installed"], answer["right"]) == (1, ["service"], True), answer
        assert answer["state"] == "partial" and answer["seconds"]["asked"] > asked


def test_a_start_asks_for_nothing_while_its_answer_is_new(tmp_path: Path, registry: Served) -> None:
    with service(tmp_path / "new", "team/new", **registry.variables) as new:
        begin = time.monotonic()
        answer = new.do("7")
        if time.monotonic() - begin < ANSWER_SECONDS - 1:  # else the machine is too busy to tell
            assert "asked" not in answer["seconds"]
        assert answer["compiled"] == 1


def test_a_revision_of_a_signer_that_is_not_trusted_is_not_used(tmp_path: Path, registry: Served) -> None:
    name, other = "team/other-signer", SigningKey.generate()
    other.save(tmp_path / "other.key")
    headers = {"Authorization": f"Bearer {registry.token}"}
    body = {"namespace": "team", "key": str(other.public), "label": "other"}
    assert httpx.post(f"{registry.url}/v1/signers", json=body, headers=headers).is_success
    keys = {
        "CACHESVC_SIGNING_KEY": str(tmp_path / "other.key"),
        "CACHESVC_TRUSTED_KEYS": f"team={other.public}",
    }
    with service(tmp_path / "long", name, **registry.variables) as long:
        published(tmp_path / "publisher", registry, name, "7", **keys)
        answer = long.later("7")
        assert (answer["compiled"], answer["installed"], answer["right"]) == (1, [], True)
        assert any("trusted" in reason for reason in answer["reasons"]), answer["reasons"]


def test_a_slow_registry_is_waited_for_within_the_deadline(tmp_path: Path, registry: Served) -> None:
    name = "team/slow"
    with SlowRelay(registry.address).running() as relay:
        variables = {**registry.variables, "CACHESVC_URL": relay.url, "CACHESVC_DEADLINE": "60"}
        with service(tmp_path / "long", name, **variables) as long:
            published(tmp_path / "publisher", registry, name, "7")
            relay.delay = 0.3
            answer = long.later("7")
    assert (answer["compiled"], answer["installed"]) == (0, ["service"])
    assert 0.6 < answer["seconds"]["asked"] < 60


@pytest.mark.parametrize("way", ["killed", "stopped", "lost in the middle"])
def test_a_registry_that_is_lost_costs_a_part_of_the_deadline_once(
    tmp_path: Path, small: Built, way: str
) -> None:
    """The service compiles then, and says why."""
    prepare(tmp_path / "registry", small.key.text)
    with serve(tmp_path / "registry", prepared=False) as registry, ExitStack() as stack:
        relay = Relay(registry.address)
        stack.callback(relay.close)
        variables = {**registry.variables, "CACHESVC_URL": relay.url, "CACHESVC_DEADLINE": str(DEADLINE)}
        long = stack.enter_context(service(tmp_path / "long", "team/lost", **variables))
        published(tmp_path / "publisher", registry, "team/lost", "7")
        if way == "lost in the middle":
            relay.limit, relay.at_limit = relay.sent + 15_000, relay.close
        else:
            os.kill(registry.process.pid, signal.SIGKILL if way == "killed" else signal.SIGSTOP)
        answer = long.later("7")
        asked = answer["seconds"]["asked"]
        assert (answer["compiled"], answer["installed"], answer["right"]) == (1, [], True), answer
        assert any("not asked for more" in reason for reason in answer["reasons"]), answer["reasons"]
        assert "not asked for what is compiled now, nor for more" in long.log
        assert asked < DEADLINE + 1
        assert long.do("8")["seconds"]["asked"] == asked, "nobody is asked again"
        if way == "stopped":
            os.kill(registry.process.pid, signal.SIGCONT)
