"""Test a start under a name with many entries of which it needs one, the oldest: by real processes."""

from __future__ import annotations

import dataclasses
import io
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.load.large_name import fill
from cachesvc_client.bundle.check import check_envelope
from cachesvc_client.bundle.file import open_bundle
from cachesvc_client.http.registry import Remote
from cachesvc_client.publication.build_bundle import next_sequence
from cachesvc_client.publication.publish_bundle import delivery
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Target
from cachesvc_client.wire.requests.protocol import FEW_RESOLVED

from .conftest import NAME, Built, folder_of_the_run
from .harness import SCALAR, ProgramResult, run
from .registries import Served, client, prepare, serve, wait_for

pytestmark = pytest.mark.compiles
ENTRIES = 2 * FEW_RESOLVED
OTHER = "other/float32/default"
SMALL = "small/float32/default"


@pytest.fixture(scope="module")
def other(
    small: Built, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """A bundle of another function, by the same signer."""
    place = folder_of_the_run(request, tmp_path_factory) / f"other-{os.getpid()}"
    bundle = place / "other.cachesvc"
    place.mkdir()
    done = run("build.py", str(bundle), str(small.key_file), NAME, "other", place=place, **SCALAR)
    assert done.code == 0, done.err[-4000:]
    return bundle, OTHER


def _publish(registry: Served, small: Built, bundle: Path, target: str) -> None:
    """Publish a bundle as another target."""
    envelope, offset = open_bundle(bundle)
    manifest = check_envelope(envelope, trusted=[small.key.public], expected=None, now=0).manifest
    statement = dataclasses.replace(
        manifest.statement, target=Target(target), sequence=next_sequence(manifest.statement.sequence)
    )
    workload = dataclasses.replace(manifest.workload, script=Digest.of(target.encode()))
    manifest = dataclasses.replace(manifest, statement=statement, workload=workload)
    pack = io.BytesIO(bundle.read_bytes()[offset:])
    with Remote(registry.url, registry.token) as remote, delivery(remote, manifest, pack, 0) as commit:
        commit(small.key.sign(manifest), None)


@pytest.fixture(scope="module")
def registry(
    small: Built, other: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """Serves two real functions, the oldest entries of ``ENTRIES`` that fit."""
    with _filled(tmp_path_factory.mktemp("registry"), small, other) as served:
        yield served


@contextmanager
def _filled(folder: Path, small: Built, other: tuple[Path, str], prepared: bool = True) -> Iterator[Served]:
    prepare(folder, small.key.text)
    with serve(folder, prepared=prepared) as served:
        pushed = client("push", str(small.bundle), **served.publisher)
        assert pushed.returncode == 0, pushed.stderr
        _publish(served, small, *other)
        fill(served.url, served.token, small.key, small.bundle, 2, ENTRIES)
        yield served


def _start(place: Path, registry: Served, functions: str, *arguments: str, **more: object) -> ProgramResult:
    variables = {**SCALAR, **registry.variables, **more}
    return run(
        "many_entries.py",
        f"name={NAME}",
        f"functions={functions}",
        *arguments,
        place=place,
        prepared=True,
        **variables,  # type: ignore[arg-type]
    )


def test_a_fresh_host_moves_the_one_pack_that_it_needs(
    tmp_path: Path, small: Built, registry: Served
) -> None:
    """And the next start of the same program on the node restores it before its first compile."""
    first = _start(tmp_path, registry, "small", compilers=False, CACHESVC_LOG="info")
    answer = first.answer
    assert (answer["state"], answer["right"], answer["at_start"]) == ("hit", True, []), answer
    assert first.compilers == [] and answer["observed"]["processes"] == []
    pack = small.manifest(small.bundle).pack.size
    assert pack <= answer["moved"] <= 1.2 * pack
    assert list(answer["used"]) == [SMALL] and answer["used"][SMALL] > 0
    assert f"of {ENTRIES} more, what a compile asks for" in first.err
    assert f"{SMALL} brought for what is compiled now" in first.err
    assert "of 1 revision used" in first.err
    second = _start(tmp_path, registry, "small", compilers=False).answer
    assert (second["state"], second["moved"], second["at_start"]) == ("hit", 0, [SMALL])


def test_two_threads_that_compile_at_once_get_one_revision_each(tmp_path: Path, registry: Served) -> None:
    answer = _start(tmp_path, registry, "small,other", compilers=False).answer
    assert (answer["state"], answer["right"]) == ("hit", True), answer
    assert sorted(answer["used"]) == [OTHER, SMALL] and all(answer["used"].values())


def test_a_graph_that_nobody_published_is_compiled_and_the_others_still_come(
    tmp_path: Path, registry: Served
) -> None:
    answer = _start(tmp_path, registry, "new,small,newer").answer
    assert (answer["state"], answer["right"]) == ("partial", True)
    assert answer["observed"]["torch"]["graphs_compiled"] == 2
    assert list(answer["used"]) == [SMALL] and "of 1 revision used" in answer["line"]


def test_the_canary_watches_what_comes_late(tmp_path: Path, registry: Served) -> None:
    answer = _start(tmp_path, registry, "small", "canary=1", compilers=False).answer
    assert (answer["state"], answer["right"]) == ("hit", True)
    assert not any("not called" in reason for reason in answer["reasons"])


@pytest.mark.parametrize("way", ["killed", "stopped"])
def test_a_registry_that_is_lost_after_the_restore_costs_a_deadline_at_most(
    tmp_path: Path, small: Built, other: tuple[Path, str], way: str
) -> None:
    """The service compiles then, and says why."""
    ready, go = tmp_path / "ready", tmp_path / "go"
    with _filled(tmp_path / "registry", small, other, prepared=False) as registry:
        with ThreadPoolExecutor(1) as pool:
            lost = pool.submit(
                _start,
                tmp_path,
                registry,
                "small,new",
                f"ready={ready}",
                f"go={go}",
                CACHESVC_DEADLINE="2",
            )
            wait_for(lambda: ready.exists() or lost.done())
            os.kill(registry.process.pid, signal.SIGKILL if way == "killed" else signal.SIGSTOP)
            go.touch()
            result = lost.result()
        if way == "stopped":
            os.kill(registry.process.pid, signal.SIGCONT)
    answer = result.answer
    assert (answer["state"], answer["right"], answer["status"]) == ("miss", True, "restored"), answer
    assert any("not asked for more" in reason for reason in answer["reasons"]), answer["reasons"]
    assert "not asked for what is compiled now" in result.err
    assert answer["seconds"]["asked"] < 2 + 1, "both threads waited within one deadline of two seconds"
