"""Test a rollout: a name is warm for the torch of today, and becomes warm for the next torch before the first
service has it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.hosts import trap
from cachesvc_client.bundle.seal import SigningKey
from tests.e2e.registries import prepare
from tests.e2e.registries import serve as serve_registry

from .environments import python_of
from .services import HERE, run_command, serve

SPEC = str(HERE / "warm.toml")
pytestmark = [pytest.mark.compiles, pytest.mark.timeout(900)]


@pytest.mark.long
def test_the_next_torch_is_warm_before_its_first_service(tmp_path: Path) -> None:
    today, following = sys.executable, python_of("2.15.0")
    reports = tmp_path / "reports"
    reports.mkdir()
    prepare(tmp_path, SigningKey.generate().text)
    with serve_registry(tmp_path) as served:

        def warm(python: Path | str, place: str) -> None:
            words = ("warm", SPEC, "--json")
            done = run_command(python, tmp_path / place, *words, **served.publisher)
            assert done.returncode == 0, done.stdout + done.stderr
            (reports / f"{place}.json").write_text(done.stdout)

        def coverage(*words: str) -> tuple[int, dict[str, str]]:
            done = run_command(
                today, tmp_path / "ops", "coverage", "team/x", "--json", *words, **served.variables
            )
            rows = json.loads(done.stdout)["environments"]
            return done.returncode, {
                row["facts"]["torch"].partition("+")[0]: row["cells"][0]["state"] for row in rows
            }

        def demand_hit(python: Path | str, place: str) -> None:
            path = trap(tmp_path / place / "trap")
            variables = {**served.variables, "PATH": str(path)}
            service = serve(python, tmp_path / place, "attach-first", "wait", **variables)
            assert service.code == 0 and service.answer["right"], service.err[-4000:]
            found = service.answer["state"], service.answer["compilations"]
            assert found == ("hit", 0), service.err[-4000:]
            assert not (tmp_path / place / "trap" / "called").exists(), "a compiler was started"

        warm(today, "builder_of_today")
        (tmp_path / "pod").mkdir()
        facts = run_command(following, tmp_path / "pod", "doctor", "--json", **served.variables).stdout
        (tmp_path / "next.json").write_text(facts)
        mine = json.loads(facts)["fingerprint"]["torch"].partition("+")[0]
        with_next = ("--environment", str(tmp_path / "next.json"))
        [now] = coverage()[1]
        assert coverage(*with_next) == (9, {now: "warm", mine: "cold"})
        warm(following, "builder_of_the_next_torch")
        assert coverage(*with_next) == (0, {now: "warm", mine: "warm"})
        merged = run_command(today, tmp_path / "ops", "warm", SPEC, "--env-matrix", str(reports))
        assert merged.returncode == 0, merged.stdout + merged.stderr
        assert merged.stdout.startswith("team/x:latest: 2 of 2 are warm, in 2 environments\n")
        demand_hit(following, "first_pod")
        demand_hit(today, "a_pod_of_today")
