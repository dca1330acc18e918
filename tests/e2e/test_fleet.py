"""Test a fleet that may publish, with real processes and a registry, without torch.

One service compiles, and the others wait for its publication, no longer than their deadline, whatever happens
to the first one."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.http.registry import Remote
from cachesvc_client.wire.names import Name
from tests.services.process import free_port
from tests.services.redis import redis_server
from tests.services.relay import relay

from .harness import PROGRAMS, environment
from .registries import Served, prepare, serve, wait_for

CLAIM_SECONDS = 3
MODE = {"CACHESVC_MODE": "readwrite", "CACHESVC_REPORT": "0"}


@dataclass
class Service:
    process: subprocess.Popen[str]
    pid: int = 0

    def say(self, word: str) -> None:
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()[-3000:]
        return json.loads(line)

    def does(self, word: str) -> dict[str, Any]:
        self.say(word)
        return self.answer()


class Fleet:
    """Starts services of one registry, each on an empty node of its own unless ``node`` names one."""

    def __init__(self, served: Served, folder: Path) -> None:
        self.served, self._folder, self._stack = served, folder, ExitStack()
        self.name = f"team/m{secrets.token_hex(4)}"
        self._number = 0

    def start(self, number: int, *, deadline: float = 30, **more: str) -> list[Service]:
        return self.start_each([more] * number, deadline=deadline)

    def start_each(
        self, variables: list[dict[str, str]], *, deadline: float = 30, node: str = ""
    ) -> list[Service]:
        """Start one service for each of these variables, all at once."""
        services = []
        for more in variables:
            self._number += 1
            place = self._folder / (node or f"node-{self._number}")
            own = {**environment(place), **self.served.publisher, **MODE, "CACHESVC_DEADLINE": str(deadline)}
            (place / f"tmp-{self._number}").mkdir()
            process = subprocess.Popen(
                [sys.executable, str(PROGRAMS / "claiming_service.py"), self.name],
                env={**own, "TMPDIR": str(place / f"tmp-{self._number}"), **more},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            self._stack.callback(self._end, process)
            services.append(Service(process))
        for one in services:
            one.pid = one.answer()["pid"]
        return services

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @staticmethod
    def _end(process: subprocess.Popen[str]) -> None:
        process.kill()
        process.communicate()

    def revision(self) -> str:
        with Remote(self.served.url, self.served.token) as remote:
            [entry] = remote.entries(Name.parse(self.name))
        return str(entry.revision)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with registry(tmp_path_factory.mktemp("registry")) as server:
        yield server


def registry(folder: Path, settings: str = "") -> Any:
    prepare(folder, SigningKey.generate().text)
    config = folder / "registry.toml"
    config.write_text(f"claim_seconds = {CLAIM_SECONDS}\n{settings}")
    return serve(folder, "--config", str(config), prepared=False)


@pytest.fixture
def fleet(served: Served, tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(served, tmp_path) as new_fleet:
        yield new_fleet


def test_one_of_eight_compiles_and_seven_install_its_publication(fleet: Fleet) -> None:
    services = fleet.start(8)
    for one in services:
        one.say("compile")
    # The service whose compile goes on at once is the one that compiles; no other compile goes on meanwhile.
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(one.answer) for one in services]
        until = time.monotonic() + 20
        while time.monotonic() < until and not any(answer.done() for answer in answers):
            time.sleep(0.02)
        # The compile takes longer than a claim lasts unless the claim is renewed.
        time.sleep(1.5 * CLAIM_SECONDS)
        [builder] = [number for number, answer in enumerate(answers) if answer.done()]
        first_answer = answers[builder].result()
        assert (first_answer["holds"], first_answer["installed"], first_answer["status"]) == (
            True,
            [],
            "failed",
        )
        published = services[builder].does("publish")
        began = time.monotonic()
        others = [answer.result(30) for answer in answers if answer is not answers[builder]]
    seconds = time.monotonic() - began
    assert published["created"] and fleet.revision() == published["revision"]
    assert [(one["installed"], one["holds"]) for one in others] == [([published["revision"]], False)] * 7
    assert {one["status"] for one in others} == {"restored"}
    assert all(4 < one["waited"] < 20 for one in others), others
    assert seconds < 8, "the others hear of it at once; seven restores on two cores remain"
    [late] = fleet.start(1)
    assert late.does("compile")["installed"] == [published["revision"]], "later starts just restore"


def test_another_service_takes_over_when_the_holder_is_killed(fleet: Fleet) -> None:
    first, *others = fleet.start(3)
    assert first.does("compile")["holds"]
    for one in others:
        one.say("compile")
    time.sleep(1)
    first.process.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(one.answer) for one in others]
        while not any(answer.done() for answer in answers):
            assert time.monotonic() < killed + CLAIM_SECONDS + 8
            time.sleep(0.05)
        [second] = [number for number, answer in enumerate(answers) if answer.done()]
        assert answers[second].result()["holds"]
        published = others[second].does("publish")
        third = answers[1 - second].result(20)
    assert third["installed"] == [published["revision"]]


def test_a_service_that_ends_releases_its_claim_at_once(fleet: Fleet) -> None:
    first, second = fleet.start(2)
    assert first.does("compile")["holds"]
    assert first.does("fork")["status"] == 0, "a child that ends releases nothing"
    second.say("compile")
    time.sleep(CLAIM_SECONDS + 1)
    began = time.monotonic()
    first.say("end")
    assert second.answer()["holds"]
    assert time.monotonic() - began < CLAIM_SECONDS - 0.5


def test_a_service_that_attached_twice_does_not_wait_for_itself(fleet: Fleet) -> None:
    """Nothing is published, so the second attach is a session of its own, which claims the name too."""
    [service] = fleet.start(1)
    assert service.does("attach") == {"new": True}
    answer = service.does("compile")
    assert answer["holds"] and answer["waited"] < 10, answer
    assert service.does("publish")["created"]


def test_a_stalled_holder_that_lost_its_claim_may_not_publish(fleet: Fleet) -> None:
    first, second = fleet.start(2)
    assert first.does("compile")["holds"]
    first.process.send_signal(signal.SIGSTOP)
    assert second.does("compile")["holds"]
    published = second.does("publish")
    first.process.send_signal(signal.SIGCONT)
    refused = first.does("publish")
    assert refused["error"] == "claim_lost", refused
    assert fleet.revision() == published["revision"]


def test_nobody_waits_beyond_the_deadline(fleet: Fleet) -> None:
    [first] = fleet.start(1)
    assert first.does("compile")["holds"]
    [second] = fleet.start(1, deadline=3)
    answer = second.does("compile")
    assert (answer["holds"], answer["installed"]) == (False, [])
    assert 2 < answer["waited"] < 3.8
    # The second service compiles and may publish its files: that costs nobody anything, and waiting services
    # get them.
    assert second.does("publish")["created"]
    assert first.does("publish")["created"]


@pytest.mark.parametrize(
    "more",
    [{"CACHESVC_MODE": "read"}, {"CACHESVC_SIGNING_KEY": ""}, {"CACHESVC_TOKEN": ""}],
    ids=["reader", "no-key", "no-token"],
)
def test_a_service_that_cannot_publish_neither_takes_a_claim_nor_waits(
    fleet: Fleet, more: dict[str, str]
) -> None:
    [reader] = fleet.start(1, **more)
    answer = reader.does("compile")
    assert not answer["holds"] and answer["waited"] < 2
    [first] = fleet.start(1)
    assert first.does("compile")["holds"]
    [reader] = fleet.start(1, **more)
    answer = reader.does("compile")
    assert not answer["holds"] and answer["waited"] < 2


def test_services_do_not_wait_for_a_registry_that_ends_meanwhile(tmp_path: Path) -> None:
    with registry(tmp_path / "registry") as served, Fleet(served, tmp_path) as fleet:
        first, second = fleet.start(2, deadline=20)
        assert first.does("compile")["holds"]
        second.say("compile")
        time.sleep(1)
        served.process.send_signal(signal.SIGKILL)
        answer = second.answer()
        assert not answer["holds"] and answer["waited"] < 10
        assert first.does("publish")["error"] == "unavailable"


def test_services_go_on_waiting_through_an_outage_of_seconds(served: Served, tmp_path: Path) -> None:
    """A registry that is started again has the claims of before; without this the whole fleet compiled.
    The outage is as long as three tries take: the breaker of other calls is open then."""
    with relay(served.address) as between, Fleet(replace(served, url=between.url), tmp_path) as fleet:
        first, second = fleet.start(2)
        assert first.does("compile")["holds"]
        second.say("compile")
        wait_for(lambda: sum(b" /v1/claims " in line for line in between.requests) >= 2)
        time.sleep(0.5)
        between.close()
        time.sleep(3)
        between.open()
        published = first.does("publish")
        answer = second.answer()
        assert (answer["holds"], answer["installed"]) == (False, [published["revision"]])


def calls_until_compiled(service: Service, seconds: float) -> int:
    """Call as a service does until a call may compile. Return how many calls ran eagerly; none waits."""
    until = time.monotonic() + seconds
    number = 0
    while (answer := service.does("call"))["eager"]:
        assert answer["seconds"] < 1 and answer["ready"], answer
        assert time.monotonic() < until
        number += 1
        time.sleep(0.1)
    return number


def test_calls_run_eagerly_until_the_publication_is_installed(fleet: Fleet) -> None:
    first, second = fleet.start(2, deadline=2, CACHESVC_WAIT="eager")
    calls_until_compiled(first, 20)
    assert first.does("compile")["holds"]
    assert second.does("call")["eager"]
    time.sleep(1.5 * CLAIM_SECONDS)  # longer than the deadline: no call waits
    assert second.does("call")["eager"], "the other process still compiles"
    published = first.does("publish")
    assert calls_until_compiled(second, 20) < 100
    answer = second.does("compile")
    assert (answer["holds"], answer["installed"]) == (False, [published["revision"]])
    assert answer["waited"] < 1, answer
    assert not second.does("call")["eager"], "it compiles from now on what else it needs"


def test_a_process_whose_calls_run_eagerly_compiles_when_the_holder_is_killed(fleet: Fleet) -> None:
    first, second = fleet.start(2, deadline=20, CACHESVC_WAIT="eager")
    calls_until_compiled(first, 20)
    assert first.does("compile")["holds"]
    assert second.does("call")["eager"]
    first.process.send_signal(signal.SIGKILL)
    calls_until_compiled(second, CLAIM_SECONDS + 60)
    answer = second.does("compile")
    assert answer["holds"], answer


def test_a_compile_that_was_not_asked_for_before_it_waits_and_says_so(fleet: Fleet) -> None:
    """A torch without the hook, or a kernel that the program launches itself: as without eager."""
    [first] = fleet.start(1)
    assert first.does("compile")["holds"]
    [second] = fleet.start(1, deadline=3, CACHESVC_WAIT="eager", CACHESVC_LOG="info")
    answer = second.does("compile")
    assert (answer["holds"], answer["installed"]) == (False, []) and 2 < answer["waited"] < 3.8
    assert not second.does("call")["eager"]
    second.say("end")
    assert (
        "waits, as without CACHESVC_WAIT=eager: Dynamo was not asked before it"
        in second.process.stderr.read()
    )


def test_calls_compile_soon_when_the_registry_ends(tmp_path: Path) -> None:
    with registry(tmp_path / "registry") as served, Fleet(served, tmp_path) as fleet:
        first, second = fleet.start(2, deadline=20, CACHESVC_WAIT="eager")
        calls_until_compiled(first, 20)
        assert first.does("compile")["holds"]
        assert second.does("call")["eager"]
        served.process.send_signal(signal.SIGKILL)
        calls_until_compiled(second, 20)
        assert not second.does("compile")["holds"]


@pytest.mark.services
def test_redis_that_ends_meanwhile_costs_a_second(tmp_path: Path) -> None:
    port, stack = free_port(), ExitStack()
    with stack:
        redis = ExitStack()
        stack.enter_context(redis)
        redis.enter_context(redis_server(port))
        settings = f'redis = "redis://127.0.0.1:{port}"\n'
        served = stack.enter_context(registry(tmp_path / "registry", settings))
        fleet = stack.enter_context(Fleet(served, tmp_path))
        first, second = fleet.start(2)
        assert first.does("compile")["holds"]
        second.say("compile")
        time.sleep(1)
        redis.close()
        published = first.does("publish")
        began = time.monotonic()
        assert second.answer()["installed"] == [published["revision"]]
        assert time.monotonic() - began < 5


def test_the_ranks_of_a_job_count_as_one_and_another_job_waits_for_them(fleet: Fleet) -> None:
    def job(port: int) -> list[Service]:
        common = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
        ranks = [{"RANK": "0"}, {"RANK": "1", "CACHESVC_SIGNING_KEY": ""}]
        own = [{"TORCHINDUCTOR_CACHE_DIR": str(fleet._folder / f"{port}-{rank['RANK']}")} for rank in ranks]
        return fleet.start_each(
            [{**common, **rank, **more} for rank, more in zip(ranks, own, strict=True)], node=f"node-{port}"
        )

    first, second = job(1), job(2)
    for rank in first:
        rank.say("compile")
    answers = [rank.answer() for rank in first]
    assert [(one["holds"], one["installed"]) for one in answers] == [(True, []), (False, [])], answers
    assert all(one["waited"] < 8 for one in answers), "no rank waits for another rank's claim"
    for rank in second:
        rank.say("compile")
    time.sleep(CLAIM_SECONDS + 1)
    published = first[0].does("publish")
    answers = [rank.answer() for rank in second]
    assert [one["installed"] for one in answers] == [[published["revision"]]] * 2, answers
