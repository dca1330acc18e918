"""Test several runs for one entry: a real registry and real claims, over processes with scripted answers, and
the command itself."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from cachesvc.cli.bundles import push_bundle
from cachesvc.warm import claims
from cachesvc.warm.context import RegistryAccess, Sealing, WarmContext
from cachesvc.warm.run import run
from cachesvc.warm.spec.plan import plan
from cachesvc.warm.spec.spec import parse_spec
from cachesvc.warm.verdict.results import Outcome
from cachesvc.warm.worker.phase import PhaseResult
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.config.settings import Config
from cachesvc_client.http.registry import Remote
from cachesvc_client.trust.accept import Acceptance
from cachesvc_client.wire.errors import Unavailable
from cachesvc_client.wire.names import Name
from tests.e2e.registries import Served, prepare, serve

from .conftest import command
from .test_run import A, Answer, Scripted
from .test_warm import TARGET, spec, warm  # noqa: F401 - spec is a fixture

CLAIM_SECONDS = 2
SPEC = '[[target]]\nid = "x"\nfactory = "m:f"\ntracing = "always"\n'


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("registry")
    prepare(folder, SigningKey.generate().text)
    (folder / "registry.toml").write_text(f"claim_seconds = {CLAIM_SECONDS}\n")
    with serve(folder, "--config", str(folder / "registry.toml")) as server:
        yield server


class Partitioned(Remote):
    """Is a real connection whose renewals of claims fail once ``silent`` is set."""

    def __init__(self, *arguments: str, silent: threading.Event) -> None:
        super().__init__(*arguments, timeout=60)
        self._silent = silent

    def call(self, method, path, *arguments, **more):
        if self._silent.is_set() and path.endswith("/renew"):
            raise Unavailable("the network is down")
        return super().call(method, path, *arguments, **more)


class Timed(Scripted):
    """Ends its compile when the test sets ``may_end``."""

    def __init__(self, *answers: Answer) -> None:
        super().__init__(*answers)
        self.compiles, self.may_end = threading.Event(), threading.Event()

    def run(self, request, folder: Path, extra, *, keep: bool = False) -> PhaseResult:
        if request.phase == "compile":
            self.compiles.set()
            assert self.may_end.wait(60)
        return replace(super().run(request, folder, extra, keep=keep), fingerprint={"torch": "2.13.0"})


@dataclass
class Run:
    """Is one CI job."""

    launcher: Timed
    outcome: Future[Outcome]
    steps: list[str] = field(default_factory=list)
    silent: threading.Event = field(default_factory=threading.Event)

    def wait_for_step(self, word: str) -> None:
        until = time.monotonic() + 30
        while not any(word in step for step in self.steps):
            assert time.monotonic() < until and not self.outcome.done(), (self.steps, self.outcome)
            time.sleep(0.02)


@pytest.fixture
def start(served: Served, tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Return a function that starts a run of one target in a thread."""
    name = Name.parse(f"team/{tmp_path.name.lower().replace('_', '-')}")
    (job,) = plan(parse_spec(f'name = "{name}"\n{SPEC}', tmp_path / "w.toml"))
    pool, running_python = ThreadPoolExecutor(4), []

    def begin(*answers: Answer, may_end: bool = False, served: Served = served, **more) -> Run:
        key = SigningKey.load(Path(served.signing_key))
        launcher = Timed(*(answers or (Answer((A,)), Answer())))
        ci_run = Run(launcher, Future())
        remote = Partitioned(served.url, served.token, silent=ci_run.silent)
        registry = RegistryAccess(remote, Acceptance((key.public,)))
        context = WarmContext(
            name, launcher, lambda _, step: ci_run.steps.append(step), registry, Sealing(key), **more
        )
        if may_end:
            launcher.may_end.set()
        ci_run.outcome = pool.submit(lambda: run([job], context)[0])
        running_python.append(ci_run)
        return ci_run

    yield begin
    for ci_run in running_python:
        ci_run.launcher.cancel()
        ci_run.launcher.may_end.set()
    pool.shutdown()


def test_the_second_run_waits_for_the_first_and_takes_its_publication(start) -> None:
    first = start()
    first.launcher.compiles.wait(30)
    second = start()
    second.wait_for_step("waiting for ")
    time.sleep(CLAIM_SECONDS + 1)  # The claim is renewed.
    assert not second.outcome.done()
    first.launcher.may_end.set()
    published = time.monotonic()
    outcome, other = first.outcome.result(30), second.outcome.result(30)
    assert time.monotonic() - published < 5
    assert (outcome.status, other.status) == ("warm", "fresh")
    assert other.reasons[0].startswith("published by another run meanwhile")
    assert (second.launcher.phases, other.files_after) == (["eager"], outcome.files_after)
    [step] = [step for step in second.steps if step.startswith("waiting")]
    assert f"process {os.getpid()}, which has been compiling it for" in step


def test_what_cannot_be_published_is_kept_for_a_push(start, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / "own"
    folder.mkdir()
    key = SigningKey.generate()
    prepare(folder, key.text)
    with serve(folder) as own:
        first = start(served=own)
        assert first.launcher.compiles.wait(30)
    first.launcher.may_end.set()  # the registry is gone when the entry is proven
    outcome = first.outcome.result(60)
    assert (outcome.status, outcome.error_status) == ("failed", Unavailable.exit_status), outcome
    [note] = [note for note in outcome.notes if "cachesvc push " in note]
    path = Path(note.rpartition("cachesvc push ")[2])
    with serve(folder) as again:
        config = Config(url=again.url, token=own.token, trusted_keys=(key.public,))
        assert push_bundle(config, path).created


def test_after_a_failed_run_the_next_starts_at_once(start) -> None:
    first = start(Answer((), error="it does not compile"))
    first.launcher.compiles.wait(30)
    second = start(may_end=True)
    second.wait_for_step("waiting for ")
    began = time.monotonic()
    first.launcher.may_end.set()
    assert first.outcome.result(30).status == "failed"
    assert second.outcome.result(30).status == "warm"
    assert time.monotonic() - began < CLAIM_SECONDS + 2


def test_a_waiting_run_can_be_interrupted(start) -> None:
    first = start()
    first.launcher.compiles.wait(30)
    second = start()
    second.wait_for_step("waiting for ")
    second.launcher.cancel()
    assert second.outcome.result(claims.POLL_SECONDS + 5).status == "cancelled"
    first.launcher.may_end.set()
    assert first.outcome.result(30).status == "warm"


def test_force_needs_no_claim(start) -> None:
    first = start()
    first.launcher.compiles.wait(30)
    forced = start(may_end=True, task="force").outcome.result(30)
    assert forced.status == "warm"
    first.launcher.may_end.set()
    outcome = first.outcome.result(30)
    assert outcome.status == "warm" and outcome.revision != forced.revision


def test_a_silent_run_learns_that_another_run_has_published(start) -> None:
    first = start()
    first.launcher.compiles.wait(30)
    first.silent.set()
    second = start(may_end=True).outcome.result(30)
    assert second.status == "warm"
    first.launcher.may_end.set()
    outcome = first.outcome.result(30)
    assert outcome.status == "fresh" and "silent for too long" in outcome.reasons[0], outcome
    assert any("was taken over" in step for step in first.steps) or "given back" in str(first.steps)


def test_a_silent_run_publishes_its_entry_if_the_other_gave_up(start) -> None:
    first = start()
    first.launcher.compiles.wait(30)
    first.silent.set()
    second = start(Answer((), error="it does not compile"))
    assert second.launcher.compiles.wait(30), "the other run has taken over"
    first.launcher.may_end.set()
    first.wait_for_step("waiting for ")
    first.silent.clear()
    second.launcher.may_end.set()
    assert second.outcome.result(30).status == "failed"
    outcome = first.outcome.result(30)
    assert outcome.status == "warm" and outcome.revision
    assert first.launcher.phases == ["eager", "compile", "replay"], "nothing is compiled twice"


@pytest.mark.compiles
@pytest.mark.long
def test_an_interrupted_command_releases_its_claim_to_the_next(registry, spec, tmp_path) -> None:  # noqa: F811
    """Two real runs of the command start at once, and the first is interrupted while it compiles."""
    path = spec(TARGET)
    # Other tests use this registry too.
    path.write_text(path.read_text().replace("team/tiny", "team/interrupted"))
    first = _started(registry, path, tmp_path / "first")
    _wait_for_text(first, tmp_path / "first", "tiny/default: compile\n")
    second = _started(registry, path, tmp_path / "second")
    _wait_for_text(second, tmp_path / "second", "tiny/default: waiting for ")
    first.send_signal(signal.SIGINT)
    assert first.wait(60) == 130
    assert second.wait(200) == 0, (tmp_path / "second").read_text()
    log = (tmp_path / "second").read_text()
    assert log.index("waiting for") < log.index("tiny/default: compile\n") < log.index("publish")
    assert warm(registry, path, "--json").targets["tiny/default"]["status"] == "fresh"


def _started(env: dict[str, str], path: Path, log: Path) -> subprocess.Popen[bytes]:
    with open(log, "wb") as out:
        return subprocess.Popen(command("warm", path), env=env, stdout=out, stderr=out)


def _wait_for_text(process: subprocess.Popen[bytes], log: Path, word: str) -> None:
    until = time.monotonic() + 120
    while word not in log.read_text():
        assert process.poll() is None and time.monotonic() < until, log.read_text()
        time.sleep(0.05)
