"""Test mode ``readwrite``: a service publishes by itself what it compiled, and says so if it may not. Real
processes on fresh hosts, and a real registry."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from cachesvc_client.http.registry import Remote
from cachesvc_client.wire.names import Name
from tests.prepared import COMPILES, prepared_python
from tests.python_process import running_python

from .harness import PROGRAMS, SCALAR, ProgramResult, environment, run
from .registries import Served, wait_for

pytestmark = pytest.mark.compiles

READWRITE = {"CACHESVC_MODE": "readwrite", "CACHESVC_PUBLISH_AFTER": "5", "CACHESVC_LOG": "json"}
LANE = {"CACHESVC_LANE": "unproven"}


class Service:
    """A process of ``batches.py`` on a host of its own."""

    def __init__(self, process: subprocess.Popen[str], err: Path) -> None:
        self.process, self._err = process, err

    def say(self, batch: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{batch}\n")
        self.process.stdin.flush()

    def ask(self, batch: int) -> None:
        assert self.process.stdout is not None
        self.say(batch)
        assert self.process.stdout.readline() == f"{batch}\n", self._err.read_text()[-3000:]

    def lines(self, event: str = "") -> list[dict[str, Any]]:
        """Return the lines of its log, of one event if it is named."""
        texts = [text for text in self._err.read_text().splitlines() if text.startswith("{")]
        return [line for line in map(json.loads, texts) if not event or line.get("event") == event]


@contextmanager
def service(place: Path, name: str, **variables: str) -> Iterator[Service]:
    env = {**environment(place), **SCALAR, **variables}
    python = prepared_python(COMPILES, env)
    with running_python(["batches.py", name], place, env, PROGRAMS, python) as process:
        yield Service(process, place / "err")


def entries(registry: Served, name: str) -> list[Any]:
    with Remote(registry.url, registry.token) as remote:
        return list(remote.entries(Name.parse(name)))


def reader(place: Path, registry: Served, name: str, batch: int) -> ProgramResult:
    """Start a process on a fresh host without compilers that reads the lane and answers once."""
    words = (f"name={name}", "small=1", f"batch={batch}")
    variables = {**SCALAR, **registry.variables, **LANE}
    return run("serve.py", *words, place=place, compilers=False, prepared=True, **variables)


def test_what_a_service_compiled_is_published_when_it_is_quiet_and_again_later(
    tmp_path: Path, registry: Served
) -> None:
    name = "team/asyougo"
    with service(tmp_path / "first", name, **registry.publisher, **READWRITE) as first:
        first.ask(4)
        [published] = wait_for(lambda: first.lines("published"))
        assert published["files"] > 0 and published["message"].startswith(
            f"{name}:latest: published into the lane unproven: "
        )
        [entry] = entries(registry, name)
        assert (entry.lane, entry.target) == ("unproven", "service"), (
            "the trunk has nothing that nobody proved"
        )
        first.ask(6)
        wait_for(lambda: len(first.lines("published")) == 2)
        assert first.process.poll() is None
        warnings = [line["event"] for line in first.lines() if line["level"] == "warning"]
        assert warnings == ["not_restored"], "nothing was there at the start, and nothing else was wrong"
    # Another process, which restored this, adds a shape: its publication keeps the others'.
    with service(tmp_path / "second", name, **registry.publisher, **READWRITE) as second:
        second.ask(4)
        wait_for(lambda: second.lines("hit"))
        second.ask(7)
        wait_for(lambda: second.lines("published"))
    for batch in (4, 6, 7):
        result = reader(tmp_path / f"reader-{batch}", registry, name, batch)
        assert result.answer["state"] == "hit" and result.compilers == [], result.answer
        assert result.answer["observed"]["compilations"] == 0
    assert len(entries(registry, name)) == 1


def test_one_of_two_replicas_compiles_and_the_other_waits_for_its_publication(
    tmp_path: Path, registry: Served
) -> None:
    """Nobody calls publish(). Both start at once, on fresh hosts, with a token for their lane alone."""
    variables = {**registry.publisher, **READWRITE, "CACHESVC_DEADLINE": "120"}
    variables["CACHESVC_TOKEN"] = token(registry, lane="unproven")
    with ExitStack() as stack:
        replicas = [
            stack.enter_context(service(tmp_path / str(number), "team/replicas", **variables))
            for number in range(2)
        ]
        for replica in replicas:
            replica.say(4)
        published = wait_for(lambda: [one for one in replicas if one.lines("published")])
        [other] = [one for one in replicas if one not in published]
        [hit] = wait_for(lambda: other.lines("hit"))
        assert (hit["compilations"], hit["state"]) == (0, "hit")
        time.sleep(8)  # longer than it takes until a quiet process publishes
        assert len(published) == 1 and other.lines("published") == other.lines("compiled") == []
    [entry] = entries(registry, "team/replicas")
    with Remote(registry.url, registry.token) as remote:
        revisions = json.loads(remote.raw(f"/v1/entries/{entry.entry}/revisions", 1 << 20))
    assert len(revisions) == 1


def token(registry: Served, **fields: str) -> str:
    body = {"label": "service", "role": "write", "namespace": "team", **fields}
    headers = {"Authorization": f"Bearer {registry.token}"}
    return str(httpx.post(f"{registry.url}/v1/tokens", json=body, headers=headers).json()["secret"])


@pytest.mark.parametrize(
    ("missing", "reason"),
    [
        (
            "key",
            "there is no signing key (set CACHESVC_SIGNING_KEY or CACHESVC_SIGNER, or CACHESVC_MODE=read)",
        ),
        ("role", "the token may only report (use one of the role write, or CACHESVC_MODE=read)"),
        ("lane", "the token may write into the lane pr-1 only, not into unproven (set CACHESVC_LANE=pr-1)"),
    ],
)
def test_a_service_that_may_not_publish_says_so_once_and_nobody_waits_for_it(
    tmp_path: Path, registry: Served, missing: str, reason: str
) -> None:
    name = f"team/refused-{missing}"
    refused = {**registry.publisher, **READWRITE, "CACHESVC_DEADLINE": "60"}
    if missing == "key":
        del refused["CACHESVC_SIGNING_KEY"]
    else:
        fields = {"role": "report"} if missing == "role" else {"lane": "pr-1"}
        refused["CACHESVC_TOKEN"] = token(registry, **fields)
    with service(tmp_path / "refused", name, **refused) as first:
        first.ask(4)
        with service(tmp_path / "other", name, **registry.publisher, **READWRITE) as second:
            second.ask(4)
            wait_for(lambda: second.lines("published"))
            assert not [line for line in second.lines() if "waits for" in line["message"]]
        [line] = first.lines("not_published")
        assert line["level"] == "warning" and first.lines("published") == []
        assert line["message"] == f"{name}:latest: nothing that this process compiles is published: {reason}"


def test_attach_says_the_mode_and_zero_seconds_leave_it_to_publish(tmp_path: Path, registry: Served) -> None:
    variables = {**registry.publisher, **READWRITE, "CACHESVC_PUBLISH_AFTER": "0"}
    with service(tmp_path / "never", "team/never", **variables) as silent:
        silent.ask(4)
        code = (
            "import cachesvc_client; s = cachesvc_client.attach('team/by-mode', mode='readwrite'); s.wait(60)"
        )
        code += "; print(s.right.ask(), s.config.lane)"
        env = {**environment(tmp_path / "by-mode"), **registry.publisher}
        python = prepared_python((), env)
        done = subprocess.run([*python, "-c", code], env=env, capture_output=True, text=True, timeout=120)
        assert done.stdout.split() == ["True", "unproven"], done.stderr
        time.sleep(8)
        assert silent.lines("published") == silent.lines("not_published") == []
    assert entries(registry, "team/never") == []
