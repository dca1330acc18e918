"""Test that the ranks of a job start without traces where their functions call the other ranks, and trace
where the job, one of its groups or a mesh is another one.

PyTorch's own guards miss most of these changes: ``get_rank`` is a constant in a trace, without a guard."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.environment.releases import release

from .harness import PROGRAMS, SCALAR, environment, run

pytestmark = pytest.mark.compiles

OF_GROUPS = {"world", "numbers", "named", "argument_only_read"}
"""Functions that call other ranks, and functions that only read a group."""
OF_MESHES = {"mesh_only_read", "tensor_parallel"}
CHANGES = {
    "another_backend": (OF_GROUPS | OF_MESHES, "process group '0' is cpu:gloo, ranks [0, 1]"),
    "another_order": (OF_GROUPS | OF_MESHES, "process group '1' is"),
    "one_more_group": (OF_GROUPS | OF_MESHES, "process group '2' is"),
    "another_group": ({"named", "argument_only_read"}, "NAMED differs: here '2' of cpu:gloo"),
    "another_mesh_name": (OF_MESHES, "MESH differs: here ('halves',)]"),
    "turned_mesh": (OF_MESHES, "MESH differs: here (1, 0), ('parts',)]"),
}
"""Change -> the functions that are traced then, and a part of the reason."""


class Warmed:
    """Holds the bundle that two ranks made of some forms of a program, and runs jobs that restore it."""

    def __init__(self, place: Path, program: str, forms: Iterable[str], tracing: str = "never") -> None:
        self.forms, script, self._program = {*forms}, PROGRAMS / program, program
        self._forms = " ".join(sorted(forms))
        (place / "warm.toml").write_text(
            f'name = "team/ranks"\n[[target]]\nid = "ranks"\ntracing = "{tracing}"\nnproc = 2\n'
            f'script = "{script}"\nenv = {{FORMS = "{self._forms}"}}\n'
        )
        command = [sys.executable, "-m", "cachesvc", "warm", str(place / "warm.toml"), "--json"]
        result = subprocess.run(
            [*command, "--out", str(place / "out")],
            env={**environment(place), **SCALAR, "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
            cwd=place / "work",
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
        [self._bundle] = (place / "out").iterdir()
        self._key = SigningKey.load(next((place / "home").rglob("signing.key"))).public

    def serve(self, place: Path, change: str, ranks: int = 2, forms: Iterable[str] = ()) -> list[dict]:
        """Return the answers of all ranks of a job on a fresh host. ``forms``: those to run, if not all."""
        launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
        asked = " ".join(sorted(forms)) or self._forms
        variables = {**SCALAR, "FORMS": asked, "CACHESVC_TRUSTED_KEYS": str(self._key)}
        compilers = change != "nothing"
        result = run(
            *(self._program, change, str(self._bundle)),
            place=place,
            launcher=launcher,
            compilers=compilers,
            **variables,
        )
        lines = [json.loads(line) for line in result.out.splitlines() if line.startswith("{")]
        assert len(lines) == ranks and result.code == 0, result.err[-4000:]
        return lines


@pytest.fixture(scope="module")
def warmed(tmp_path_factory: pytest.TempPathFactory) -> Warmed:
    import torch

    if release(torch.__version__) != "2.13":
        pytest.skip("other releases refuse other functions, each with a trace")
    return Warmed(tmp_path_factory.mktemp("frames_ranks"), "frames_ranks.py", OF_GROUPS | OF_MESHES)


def test_ranks_on_a_fresh_host_trace_nothing(tmp_path: Path, warmed: Warmed) -> None:
    """Both ranks have one cache folder, with the frames of both."""
    for answer in warmed.serve(tmp_path, "nothing"):
        assert answer["state"] == "hit", answer
        work = {form: (one["traces"], one["compilations"]) for form, one in answer["forms"].items()}
        assert work == dict.fromkeys(OF_GROUPS | OF_MESHES, (0, 0)), answer
        assert max(one["difference"] for one in answer["forms"].values()) < 1e-4, answer


@pytest.mark.parametrize("change", CHANGES)
def test_another_job_traces_with_right_numbers(tmp_path: Path, warmed: Warmed, change: str) -> None:
    traced, reason = CHANGES[change]
    answers = warmed.serve(tmp_path, change)
    for answer in answers:
        assert {form for form, one in answer["forms"].items() if one["traces"]} == traced, answer
        assert max(one["difference"] for one in answer["forms"].values()) < 1e-4, answer
    assert reason in " ".join(line for answer in answers for line in answer["explained"]), answers


def test_a_process_alone_does_not_get_the_frames_of_two_ranks(tmp_path: Path, warmed: Warmed) -> None:
    [answer] = warmed.serve(tmp_path, "of_one", ranks=1)
    assert all(one["traces"] and one["difference"] < 1e-4 for one in answer["forms"].values()), answer
    assert "the job is rank 0 of 1, and was rank 0 of 2" in " ".join(answer["explained"]), answer
