"""Code that one team's service runs on a node is never run by a service that does not trust that team."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cachesvc_client.bundle.seal import SigningKey
from tests.e2e.registries import Served, client, prepare, serve

from .attacker import Made, folders, hostile_pickle, running_python, runs, start
from .conftest import NAME

pytestmark = pytest.mark.compiles


@dataclass
class Teams:
    """A registry with two teams: ``a`` has published hostile code under the keys of what ``b`` compiles."""

    served: Served
    a: str
    b: str

    def variables(self, trusted: str) -> dict[str, str]:
        return {**self.served.variables, "CACHESVC_TRUSTED_KEYS": trusted}


@pytest.fixture
def teams(honest: Made, marker: Path, tmp_path: Path) -> Iterator[Teams]:
    prepare(tmp_path, SigningKey.generate().text)
    hostile = honest.signed("team-a/model", tmp_path / "hostile.cachesvc", SigningKey.generate(), marker)
    with serve(tmp_path) as served:
        for made, namespace in ((hostile, "team-a"), (honest, "team-b")):
            made.key.save(tmp_path / f"{namespace}.key")
            added = client("admin", "signers", "add", made.trusted, "-n", namespace, **served.variables)
            assert added.returncode == 0, added.stderr
            publisher = {**served.variables, "CACHESVC_SIGNING_KEY": str(tmp_path / f"{namespace}.key")}
            pushed = client("push", str(made.bundle), **publisher)
            assert pushed.returncode == 0, pushed.stderr
        yield Teams(served, hostile.trusted, honest.trusted)


def test_another_teams_code_is_neither_run_nor_there(teams: Teams, marker: Path, tmp_path: Path) -> None:
    place = tmp_path / "node"
    place.mkdir()
    with running_python("service.py", "team-a/model", place=place, **teams.variables(teams.a)):
        before = runs(marker)
        assert before > 0, "team A trusts its own code, and ran it"
        theirs = set(folders(place))
        with running_python("service.py", NAME, place=place, **teams.variables(teams.b)) as service:
            answer = service.answer
            assert runs(marker) == before, "team B ran team A's code"
            assert (answer["state"], answer["compilations"]) == ("hit", 0), answer
            assert answer["difference"] < 1e-5 and answer["revisions"] == ["team-b/model:latest"]
            hostile = hostile_pickle(marker)
            for folder in set(folders(place)) - theirs:
                for path in folder.rglob("*"):
                    assert not path.is_file() or path.read_bytes() != hostile, path
    missed = start("service.py", "team-b/nothing", place=place, **teams.variables(teams.b))
    assert runs(marker) == before and missed["state"] == "miss" and missed["difference"] < 1e-5, missed


def test_a_child_with_another_trust_does_not_use_its_parents_folder(
    teams: Teams, marker: Path, tmp_path: Path
) -> None:
    """A launcher passes its variables on, with the names of its private folders among them."""
    place = tmp_path / "node"
    place.mkdir()
    with running_python("service.py", "team-a/model", place=place, **teams.variables(teams.a)) as parent:
        before = runs(marker)
        assert before > 0
        pid = parent.process.pid
        assert os.path.exists(f"/proc/{pid}")
        [folder] = [path for path in folders(place) if list(path.glob("inductor/fxgraph"))]
        inherited = {
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
            "TRITON_CACHE_DIR": str(folder / "inductor/triton/0"),
        }
        answer = start("service.py", NAME, place=place, **teams.variables(teams.b), **inherited)
    assert runs(marker) == before and answer["state"] == "hit" and answer["difference"] < 1e-5, answer


def test_a_second_attach_adds_nothing_to_a_folder_that_others_share(
    honest: Made, marker: Path, tmp_path: Path
) -> None:
    """Without torch: two bundles hold other content under the same paths."""
    place = tmp_path / "node"
    place.mkdir()
    second = honest.signed("team-a/model", tmp_path / "second.cachesvc", SigningKey.generate(), marker)
    variables = {"CACHESVC_TRUSTED_KEYS": f"{honest.trusted},{second.trusted}"}
    first, both = [{"bundle": str(honest.bundle)}], [{"bundle": str(one.bundle)} for one in (honest, second)]
    with running_python("attached.py", json.dumps(first), place=place, **variables) as one:
        shared = Path(one.answer["folders"]["inductor"])
        before = {path: path.read_bytes() for path in shared.rglob("*") if path.is_file()}
        answer = start("attached.py", json.dumps(both), place=place, **variables)
        assert len(answer["installed"]) == 2 and answer["folders"]["inductor"] != str(shared), answer
        assert {path: path.read_bytes() for path in shared.rglob("*") if path.is_file()} == before
    paths = {file.path for file in second.manifest.files if file.kind == "inductor"}
    assert paths and all((Path(answer["folders"]["inductor"]) / path).is_file() for path in paths)
