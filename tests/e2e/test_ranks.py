"""Test the ranks of one job: their files make one revision, the node downloads it once, and all ranks hit or
none does."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.http.registry import Remote
from cachesvc_client.wire.manifest.records import Manifest

from .harness import SCALAR, ProgramResult, run
from .registries import Served, prepare, serve

pytestmark = pytest.mark.compiles

NAME = "team/ranks"


def torchrun(place: Path, ranks: int, *arguments: str, **more) -> ProgramResult:
    launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
    return run("rank.py", *arguments, place=place, launcher=launcher, **SCALAR, **more)


def answers(result: ProgramResult) -> list[dict]:
    """Return the answers of all ranks, in the order of the ranks."""
    lines = [json.loads(line) for line in result.out.splitlines() if line.startswith("{")]
    assert lines, result.err[-4000:]
    return sorted(lines, key=lambda answer: answer["rank"])


@dataclass
class PublishedRanks:
    """Holds one revision that two ranks published, as each rank printed it."""

    registry: Served
    ranks: list[dict]
    manifest: Manifest


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PublishedRanks]:
    folder, key = tmp_path_factory.mktemp("ranks"), SigningKey.generate()
    prepare(folder, key.text)
    with serve(folder) as served:
        variables = {**served.publisher, "CACHESVC_MODE": "readwrite"}
        builders = answers(torchrun(folder / "builder", 2, f"name={NAME}", "publish=1", **variables))
        yield PublishedRanks(served, builders, _manifest(served, key, builders[0]["entry"]))


def _manifest(served: Served, key: SigningKey, entry: str) -> Manifest:
    from cachesvc_client.bundle.check import check_envelope
    from cachesvc_client.environment.detect import detect
    from cachesvc_client.wire.names import Namespace, ShortName, Tag
    from cachesvc_client.wire.requests.protocol import ResolveRequest

    fingerprint = detect({"OMP_NUM_THREADS": "2", **SCALAR})
    with Remote(served.url, served.token) as remote:
        request = ResolveRequest(Namespace("team"), ShortName("ranks"), fingerprint, (Tag("latest"),))
        [revision] = remote.resolve(request).revisions
    envelope = revision.envelope.encode()
    verified = check_envelope(envelope, trusted=[key.public], expected=None, now=0.0)
    assert str(verified.manifest.entry) == entry
    return verified.manifest


def test_two_ranks_publish_one_revision_with_shared_files_once(published: PublishedRanks) -> None:
    first, second = published.ranks
    assert first["state"] == second["state"] == "miss" and first["compilations"] and second["compilations"]
    assert (first["revision"], first["entry"]) == (second["revision"], second["entry"])
    files, workload = published.manifest.files, published.manifest.workload
    assert workload.ranks == 2
    assert {file.ranks for file in files} == {(), (0,), (1,)}
    assert len({file.path for file in files}) == len(files)


def test_ranks_hit_with_their_own_files_and_the_node_downloads_once(
    published: PublishedRanks, tmp_path: Path
) -> None:
    result = answers(
        torchrun(
            tmp_path,
            2,
            f"name={NAME}",
            f"folders={tmp_path / 'folders'}",
            compilers=False,
            **published.registry.variables,
        )
    )
    assert [(answer["state"], answer["compilations"]) for answer in result] == [("hit", 0)] * 2, result
    pack = published.manifest.pack.size
    assert sorted(answer["moved"] for answer in result) == [0, pack]
    for rank, answer in enumerate(result):
        own = {file.path for file in published.manifest.files if not file.ranks or rank in file.ranks}
        assert answer["files"] == len(own) < len(published.manifest.files)
        there = Path(answer["folder"])
        for file in published.manifest.files:
            assert (there / file.path).exists() == (file.path in own), (rank, file.path)


def test_ranks_publish_once_by_themselves_when_they_are_quiet(
    published: PublishedRanks, tmp_path: Path
) -> None:
    """The revision is in the lane of what nobody has proven, and holds the files of both ranks."""
    words = ("name=team/quiet-ranks", "small=1")
    mode = {"CACHESVC_MODE": "readwrite", "CACHESVC_PUBLISH_AFTER": "5"}
    builders = answers(
        torchrun(tmp_path / "one", 2, *words, "stay=20", **published.registry.publisher, **mode)
    )
    assert [answer["state"] for answer in builders] == ["miss", "miss"]
    lane = {**published.registry.variables, "CACHESVC_LANE": "unproven"}
    readers = answers(torchrun(tmp_path / "two", 2, *words, compilers=False, **lane))
    assert [(answer["state"], answer["compilations"]) for answer in readers] == [("hit", 0)] * 2, readers


def test_ranks_that_learn_their_rank_late_agree_too(published: PublishedRanks, tmp_path: Path) -> None:
    """Variables alone attach ranks of `torch.multiprocessing.spawn`: RANK is never set."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    result = answers(
        run(
            "rank.py",
            f"port={port}",
            "small=1",
            place=tmp_path,
            compilers=False,
            before=(sys.executable, "-m", "cachesvc_client", "run", NAME, "--"),
            **SCALAR,
            **published.registry.variables,
        )
    )
    assert [(answer["state"], answer["compilations"]) for answer in result] == [("hit", 0)] * 2, result
    jobs = tmp_path / "home" / ".cache" / "cachesvc" / "v1" / "jobs"
    [state] = [json.loads(path.read_text()) for path in jobs.glob("*/state.json")]
    assert state["outcome"] == {"agreed": True, "why": ""} and sorted(state["votes"]) == ["0", "1"]
