"""The registry dies in the middle of a download: SIGKILL, after a certain byte."""

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
    """What the builder compiled, with as much beside it that does not compress as makes it long."""
    rules, roots = RULES, {"inductor": built.folder}
    found = {"inductor": rules["inductor"].files_in(built.folder)}
    filler = SourceFile("inductor", f"fxgraph/zz/f{'z' * 50}/{'z' * 50}", os.urandom(FILLER))
    like = built.manifest(built.bundle)
    draft = Draft(Name.parse(BIG), Target("big"), like.fingerprint, like.workload, like.scopes)
    path = tmp_path / "big.cachesvc"
    build_bundle([*capture(found, rules, roots), filler], draft, built.key, path)
    return path


@pytest.fixture
def way() -> Iterator[Relay]:
    """Leads to the registry that a test names."""
    with relay() as opened:
        yield opened


def _serve(place: Path, registry: Served, way: Relay, *arguments: str, **more):
    variables = {**registry.variables, "CACHESVC_URL": way.url, **more.pop("variables", {})}
    return run("serve.py", f"name={BIG}", *arguments, place=place, **more, **variables)


def test_the_service_compiles_and_the_next_one_goes_on_where_it_stopped(
    tmp_path: Path, built: Built, big: Path, way: Relay
) -> None:
    folder = tmp_path / "registry"
    prepare(folder, built.key.text)
    with serve(folder) as registry:
        done = client("push", str(big), **registry.publisher)
        assert done.returncode == 0, done.stderr
        way.target, way.limit, way.at_limit = registry.address, CUT, registry.process.kill
        first = _serve(tmp_path, registry, way, "small=1", variables=QUICK)
        assert registry.process.poll() is not None, "it was killed by then"
    answer = first.answer
    assert answer["state"] == "miss" and answer["eager_difference"] < 1e-5
    assert answer["observed"]["compilations"] > 0
    assert "127.0.0.1" in " ".join(answer["reasons"]) and "Traceback" not in first.err, first.err
    [partial] = [
        path for path in (tmp_path / "home").rglob("*") if path.is_file() and path.stat().st_size > CUT // 2
    ]
    kept = partial.stat().st_size
    assert not list((tmp_path / "home").rglob("fxgraph/zz")), "nothing of half a pack is installed"

    way.sent = 0
    with serve(folder) as again:
        way.target = again.address
        second = _serve(tmp_path, registry, way, f"expect={built.expect}", compilers=False)
    answer = second.answer
    assert answer["state"] == "hit" and answer["same_as_builder"], answer
    assert second.compilers == [] and answer["observed"]["compilations"] == 0
    size = built.manifest(big).pack.size
    assert answer["bytes_moved"] == size - kept, "the rest, and nothing twice"
    assert way.sent < size - kept + (1 << 20)
