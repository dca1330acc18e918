"""Test the ranks of a job up to their first compile, with real processes, files and a registry, without
torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cachesvc_client.bundle.pack import SourceFile
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.environment.detect import detect
from cachesvc_client.http.registry import Remote
from cachesvc_client.publication.build_bundle import Draft, build_bundle
from cachesvc_client.publication.publish_bundle import publish_bundle
from cachesvc_client.wire.manifest.records import Manifest, Workload
from cachesvc_client.wire.names import Name, Target

from .harness import PROGRAMS, environment
from .registries import Served, free_url, prepare, serve

GRAPH = "fxgraph/ab/f" + "a" * 30 + "/" + "b" * 30
JOB = {"MASTER_ADDR": "localhost", "MASTER_PORT": "1"}


class Registry:
    """Serves two revisions: ``team/any`` serves any number of ranks, ``team/two`` has files for each of two
    ranks."""

    def __init__(self, served: Served, folder: Path) -> None:
        self.served = served
        key = SigningKey.load(Path(served.signing_key))
        self.any = self._publish("team/any", key, folder, [(), (), ()])
        self.two = self._publish("team/two", key, folder, [(), (0,), (1,)])

    def _publish(self, name: str, key: SigningKey, folder: Path, ranks: list[tuple[int, ...]]) -> Manifest:
        files = [SourceFile("inductor", f"{GRAPH}{n}", b"%d" % n, ranks=of) for n, of in enumerate(ranks)]
        draft = Draft(Name.parse(name), Target("t"), detect(), Workload(ranks=2), scopes=())
        path = folder / f"{name.replace('/', '-')}.cachesvc"
        manifest = build_bundle(files, draft, key, path)
        with Remote(self.served.url, self.served.token) as remote:
            publish_bundle(remote, path, key)
        return manifest


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    folder = tmp_path_factory.mktemp("registry")
    prepare(folder, SigningKey.generate().text)
    with serve(folder) as served:
        yield Registry(served, folder)


def ranks(
    place: Path,
    registry: Registry,
    name: str,
    number: int,
    apart: dict[int, dict[str, str]] | None = None,
    **more: str,
) -> list[dict]:
    """Return what each rank has when its compile goes on, on an empty node. All ranks live until the last one
    has answered."""
    common = {**environment(place), **registry.served.variables, **JOB, "WORLD_SIZE": str(number), **more}
    with ExitStack() as stack:
        processes = []
        for rank in range(number):
            own = {"RANK": str(rank), "TORCHINDUCTOR_CACHE_DIR": str(place / "folders" / str(rank))}
            process = subprocess.Popen(
                [sys.executable, str(PROGRAMS / "rank_waits.py"), name],
                env={**common, **own, **(apart or {}).get(rank, {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.communicate, "")
            processes.append(process)
        return [json.loads(process.stdout.readline()) for process in processes]


def there(place: Path, rank: int) -> list[str]:
    folder = place / "folders" / str(rank)
    return sorted(path.name[-1] for path in folder.glob("fxgraph/*/*/*"))


def test_four_ranks_install_and_the_node_downloads_once(registry: Registry, tmp_path: Path) -> None:
    result = ranks(tmp_path, registry, "team/any", 4)
    assert [answer["files"] for answer in result] == [3] * 4, result
    assert sorted(answer["moved"] for answer in result) == [0, 0, 0, registry.any.pack.size]
    assert [there(tmp_path, rank) for rank in range(4)] == [["0", "1", "2"]] * 4


def test_each_of_two_ranks_takes_its_own_files_and_the_shared_files(
    registry: Registry, tmp_path: Path
) -> None:
    result = ranks(tmp_path, registry, "team/two", 2)
    assert [answer["files"] for answer in result] == [2, 2], result
    assert [there(tmp_path, rank) for rank in range(2)] == [["0", "1"], ["0", "2"]]


def test_files_of_two_ranks_serve_no_four_ranks(registry: Registry, tmp_path: Path) -> None:
    """Otherwise ranks 2 and 3 would compile while ranks 0 and 1 hit."""
    result = ranks(tmp_path, registry, "team/two", 4)
    assert all("built by 2 ranks" in " ".join(answer["reasons"]) for answer in result), result
    assert [there(tmp_path, rank) for rank in range(4)] == [[]] * 4


@pytest.mark.parametrize(
    ("rank_1", "why"),
    [
        ({"CACHESVC_TRUSTED_KEYS": str(SigningKey.generate().public)}, "rank 1 of this node: signed by key"),
        ({"CACHESVC_URL": free_url()}, "rank 1 of this node:"),
        ({"CACHESVC_DEADLINE": "soon"}, "rank 1 of this node: CACHESVC_DEADLINE"),
        ({"ABSENT": "1"}, "rank 1 of this node was not ready in time"),
    ],
)
def test_no_rank_installs_if_one_rank_cannot(
    registry: Registry, tmp_path: Path, rank_1: dict[str, str], why: str
) -> None:
    result = ranks(tmp_path, registry, "team/any", 3, {1: rank_1}, CACHESVC_DEADLINE="6")
    for rank in (0, 2):
        assert why in " ".join(result[rank]["reasons"]), result[rank]
    assert [answer["files"] for answer in result] == [0, 0, 0]
    assert [there(tmp_path, rank) for rank in range(3)] == [[]] * 3
    packs = list((tmp_path / "home/.cache/cachesvc/v1/packs").iterdir())
    assert len(packs) == 1, "the next start of the job has the revision on this node"


def test_a_missing_name_of_one_rank_does_not_stop_the_other_names(registry: Registry, tmp_path: Path) -> None:
    names = {"CACHESVC_NAME": "team/nothing,team/any"}
    result = ranks(tmp_path, registry, "", 2, **names)
    assert [answer["files"] for answer in result] == [3, 3], result
    assert all("team/nothing" in " ".join(answer["reasons"]) for answer in result)


def test_a_single_process_waits_for_no_rank(registry: Registry, tmp_path: Path) -> None:
    [answer] = ranks(tmp_path, registry, "team/two", 1)
    assert answer["files"] == 3, answer
    assert not list((tmp_path / "home/.cache/cachesvc/v1/jobs").iterdir())


def test_ranks_of_a_job_on_unknown_nodes_wait_for_nobody(registry: Registry, tmp_path: Path) -> None:
    """The other ranks on this node are not known: each rank takes what it can, and sends no vote."""
    result = ranks(tmp_path, registry, "team/any", 2, {1: {"ABSENT": "1"}}, MASTER_ADDR="node-9")
    assert [answer["files"] for answer in result] == [3, 0]


def test_the_ranks_of_each_of_two_nodes_agree_separately(registry: Registry, tmp_path: Path) -> None:
    """Torchrun says that two of the four ranks run here."""
    apart = {rank: {"LOCAL_RANK": str(rank), "RANK": str(rank + 2)} for rank in range(2)}
    more = {"LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node-9"}
    own = {rank: {**apart[rank], "WORLD_SIZE": "4"} for rank in apart}
    result = ranks(tmp_path, registry, "team/any", 2, own, **more)
    assert [(answer["rank"], answer["files"]) for answer in result] == [(2, 3), (3, 3)], result
