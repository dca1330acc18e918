"""Test a registry that dies in the middle of a download, by SIGKILL after a certain byte."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.hosts import QUICK
from cachesvc_client.bundle.pack import SourceFile
from cachesvc_client.kinds import RULES
from cachesvc_client.node.capture import capture
from cachesvc_client.publication.build_bundle import Draft, build_bundle
from cachesvc_client.wire.names import Name, Target
from tests.services.relay import Relay, relay

from .conftest import Built
from .harness import run
from .registries import Served, client, prepare, serve

pytestmark = pytest.mark.compiles

BIG = "team/big"
CUT = 8 << 20
FILLER = 24 << 20


@pytest.fixture
def big(built: Built, tmp_path: Path) -> Path:
    """Make a bundle of the builder's files and of as much incompressible filler as makes the download
    long."""
    rules, roots = RULES, {"inductor": built.folder}
    paths = {"inductor": rules["inductor"].files_in(built.folder)}
    filler = SourceFile("inductor", f"fxgraph/zz/f{'z' * 50}/{'z' * 50}", os.urandom(FILLER))
    like = built.manifest(built.bundle)
    draft = Draft(Name.parse(BIG), Target("big"), like.fingerprint, like.workload, like.scopes)
    path = tmp_path / "big.cachesvc"
    build_bundle([*capture(paths, rules, roots), filler], draft, built.key, path)
    return path


@pytest.fixture
def registry_relay() -> Iterator[Relay]:
    """Open a relay to the registry that a test names."""
    with relay() as opened:
        yield opened


def _serve(place: Path, registry: Served, registry_relay: Relay, *arguments: str, **more):
    variables = {**registry.variables, "CACHESVC_URL": registry_relay.url, **more.pop("variables", {})}
    return run("serve.py", f"name={BIG}", *arguments, place=place, **more, **variables)


def test_the_service_compiles_and_the_next_start_resumes_the_download(
    tmp_path: Path, built: Built, big: Path, registry_relay: Relay
) -> None:
    folder = tmp_path / "registry"
    prepare(folder, built.key.text)
    with serve(folder, prepared=False) as registry:
        result = client("push", str(big), **registry.publisher)
        assert result.returncode == 0, result.stderr
        registry_relay.target, registry_relay.limit, registry_relay.at_limit = (
            registry.address,
            CUT,
            registry.process.kill,
        )
        first = _serve(tmp_path, registry, registry_relay, "small=1", prepared=True, variables=QUICK)
        assert registry.process.poll() is not None, "the registry was dead by then"
    answer = first.answer
    assert answer["state"] == "miss" and answer["eager_difference"] < 1e-5
    assert answer["observed"]["compilations"] > 0
    assert "127.0.0.1" in " ".join(answer["reasons"]) and "Traceback" not in first.err, first.err
    [partial] = [
        path for path in (tmp_path / "home").rglob("*") if path.is_file() and path.stat().st_size > CUT // 2
    ]
    partial_size = partial.stat().st_size
    assert not list((tmp_path / "home").rglob("fxgraph/zz")), "nothing of a partial pack is installed"

    registry_relay.sent = 0
    with serve(folder) as again:
        registry_relay.target = again.address
        words = (f"expect={built.expect}",)
        second = _serve(tmp_path, registry, registry_relay, *words, compilers=False, prepared=True)
    answer = second.answer
    assert answer["state"] == "hit" and answer["same_as_builder"], answer
    assert second.compilers == [] and answer["observed"]["compilations"] == 0
    size = built.manifest(big).pack.size
    assert answer["bytes_moved"] == size - partial_size, "the registry sent the rest, and no byte twice"
    assert registry_relay.sent < size - partial_size + (1 << 20)
