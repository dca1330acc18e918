"""Test the merge of reports of several environments, by the command. The reports are what `warm` writes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from cachesvc.warm.report import render as report
from cachesvc.warm.report.head import ReportHead
from cachesvc.warm.verdict.results import Outcome
from tests.warm.conftest import command

SPEC = """name = "team/bert"
[[target]]
id = "bert"
factory = "models:bert"
inputs = {a = {x = {shape = [3, 8]}}}
[[target]]
id = "vit"
factory = "models:vit"
inputs = {a = {x = {shape = [3, 8]}}}
"""
BOTH = (Outcome("bert/default", "warm"), Outcome("vit/default", "fresh", ("published already",)))
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def facts(torch: str) -> dict[str, str]:
    return {"torch": torch, "cpu_isa": "avx2", "python_abi": "cpython-311"}


@pytest.fixture
def run(tmp_path: Path, plain_environment: dict[str, str]) -> Run:
    """Return a function that merges the folder ``reports``."""
    (tmp_path / "reports").mkdir()
    (tmp_path / "warm.toml").write_text(SPEC)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command("warm", tmp_path / "warm.toml", "--env-matrix", "reports", *words),
            cwd=tmp_path,
            env=plain_environment,
            capture_output=True,
            text=True,
        )

    return run


def write(
    place: Path, file: str, torch: str, outcomes: Sequence[Outcome], name: str = "team/bert:latest"
) -> None:
    document = report.document(ReportHead(name, "warm.toml", facts(torch), "3.11.9"), outcomes)
    (place / "reports" / file).write_text(json.dumps(document))


def test_all_is_warm_in_every_environment(run: Run, tmp_path: Path) -> None:
    write(tmp_path, "new.json", "2.15.0", BOTH)
    write(tmp_path, "today.json", "2.13.0", BOTH)
    done = run()
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "team/bert:latest: 4 of 4 are warm, in 2 environments",
        "  torch   device    python       bert/default  vit/default",
        "  2.13.0  cpu avx2  cpython-311  warm          fresh",
        "  2.15.0  cpu avx2  cpython-311  warm          fresh",
    ]


def test_what_failed_or_is_missing_somewhere_is_named(run: Run, tmp_path: Path) -> None:
    failed = Outcome("bert/default", "failed", ("a <b> | \x1b[2Jc",))
    write(tmp_path, "today.json", "2.13.0", BOTH)
    write(tmp_path, "new.json", "2.15.0", [failed])
    done = run("--report", "out.md")
    assert done.returncode == 9, done.stderr
    assert done.stdout.splitlines()[-2:] == [
        "bert/default is failed on 2.15.0, cpu avx2 (new): a <b> | ?[2Jc",
        "vit/default is missing on 2.15.0, cpu avx2 (new)",
    ]
    markdown = (tmp_path / "out.md").read_text()
    assert "| 2.15.0 | cpu avx2 | cpython-311 | failed | missing |" in markdown and "<b>" not in markdown
    document = json.loads(run("--json").stdout)
    assert document["warm"] is False
    assert document["environments"][1]["targets"] == {"bert/default": "failed", "vit/default": "missing"}


def test_a_runner_without_a_report_is_named(run: Run, tmp_path: Path) -> None:
    write(tmp_path, "today.json", "2.13.0", BOTH)
    assert run("--runner", "today").returncode == 0
    done = run("--runner", "today", "--runner", "gpu<b>", "--report", "out.md")
    assert done.returncode == 9, done.stderr
    summary, *_, problem = done.stdout.splitlines()
    assert summary.endswith("2 of 2 are warm, in 1 environments; 1 runners without a report")
    assert problem == "no report of gpu<b>: its job failed, or did not keep it"
    assert "no report of gpu" in (tmp_path / "out.md").read_text()
    document = json.loads(run("--runner", "gpu", "--json").stdout)
    assert (document["warm"], document["absent"]) == (False, ["gpu"])


def test_a_runner_without_a_matrix_is_a_mistake(tmp_path: Path, plain_environment: dict[str, str]) -> None:
    (tmp_path / "warm.toml").write_text(SPEC)
    words = command("warm", tmp_path / "warm.toml", "--runner", "gpu")
    done = subprocess.run(words, env=plain_environment, capture_output=True, text=True)
    assert done.returncode == 2 and "--runner goes with --env-matrix" in done.stderr


@pytest.mark.parametrize(
    ("text", "status", "says"),
    [
        (None, 4, "no report (*.json)"),
        ("[" * 10_000, 2, "not JSON"),
        ("[]", 2, "no report of cachesvc.warm/2 with its environment"),
        (
            '{"format": "cachesvc.warm/2", "name": "team/bert:latest", "targets": []}',
            2,
            "with its environment",
        ),
    ],
)
def test_what_is_no_report_is_refused_in_one_line(
    run: Run, tmp_path: Path, text: str | None, status: int, says: str
) -> None:
    if text is not None:
        (tmp_path / "reports" / "x.json").write_text(text)
    done = run()
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    assert says in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("text", ["", '{"error": {"code": "not_found", "message": "no such spec"}}'])
def test_a_run_that_failed_before_it_had_a_target_is_named_with_its_reason(
    run: Run, tmp_path: Path, text: str
) -> None:
    write(tmp_path, "today.json", "2.13.0", BOTH)
    (tmp_path / "reports" / "new.json").write_text(text)
    done = run()
    assert done.returncode == 9, done.stderr
    assert "2 of 2 are warm, in 1 environments; 1 runners without a target" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("new: nothing was warmed: ")


def test_a_report_on_another_name_is_refused(run: Run, tmp_path: Path) -> None:
    write(tmp_path, "x.json", "2.13.0", BOTH, name="team/other:latest")
    done = run()
    assert done.returncode == 2 and "a report on team/other:latest" in done.stderr
