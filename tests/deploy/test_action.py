"""Run the composite action against a real registry, with a tiny real model, as GitHub's runner runs it.

GitHub itself is not there: `composite` does what its runner does, and `github_api` takes the comments.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.registries import Served, serve
from tests.warm.conftest import TINY
from tools.release import copy_sources

from .charts import ROOT
from .composite import Ran, as_runner, run_action
from .github_api import READ_TOKEN, TOKEN, Comments, comments_api

ACTION = ROOT / "deploy" / "github" / "action"
SPEC = """\
name = "team/tiny"

[[target]]
id = "tiny"
factory = "models:tiny"
args = {width = 8}
inputs = {a = {x = {shape = [4, 8]}}}
device = "cpu"
tracing = "always"
runs = 1
[target.env]
OMP_NUM_THREADS = "1"
TORCHINDUCTOR_VEC_ISA_OK = "0"
TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS = "0"
"""
SPEC_LINE = 3


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("registry"), variables=as_runner({})) as served:
        yield served


@pytest.fixture
def comments() -> Iterator[Comments]:
    with comments_api() as running:
        yield running


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return the folder of a job, with a checked-out repository."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    shutil.copy(TINY / "models.py", workspace)
    (workspace / "warm.toml").write_text(SPEC)
    return tmp_path


def job(place: Path, comments: Comments | None = None, **event: object) -> dict[str, str]:
    """Return the variables of a job of org/app; of a pull request, if there is an API for comments."""
    if comments is not None:
        event = {"pull_request": {"number": 7}, **event}
    (place / "event.json").write_text(json.dumps(event))
    variables = {
        "GITHUB_EVENT_PATH": str(place / "event.json"),
        "GITHUB_REPOSITORY": "org/app",
        "GITHUB_RUN_ID": "4711",
        "GITHUB_SERVER_URL": "https://git.example",
        "GITHUB_SHA": "c" * 40,
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
        **({"GITHUB_API_URL": comments.url} if comments else {}),
    }
    return as_runner({"PYTHONPATH": f"{ROOT}:{ROOT / 'client'}", **variables})


def act(place: Path, environ: dict[str, str], *, job_token: str = TOKEN, **inputs: str) -> Ran:
    given = {"install": "none", "python": sys.executable, **inputs}
    words = {name.replace("_", "-"): value for name, value in given.items()}
    return run_action(ACTION, words, environ, place, token=job_token)


@pytest.mark.compiles
def test_a_push_publishes_and_a_pull_request_is_told_what_it_makes_cold(
    registry: Served, place: Path, comments: Comments
) -> None:
    key = Path(registry.signing_key).read_text().strip()
    access = {"registry": registry.url, "trusted_keys": registry.trust, "token": registry.token}
    pushed = act(place, job(place), signing_key=key, **access)
    assert pushed.ok, pushed.log
    assert (pushed.outputs["warm"], pushed.outputs["targets"], pushed.outputs["targets-failed"]) == (
        "true",
        "1",
        "0",
    )
    digest = pushed.outputs["revision"]
    assert digest.startswith("sha256:")
    assert json.loads(pushed.outputs["revisions"]) == {"tiny/default": digest}
    assert f"published as {digest}" in pushed.summary and "# Warm report: team/tiny:latest" in pushed.summary
    assert pushed.annotations == []
    report = json.loads(Path(pushed.outputs["report"]).read_text())
    assert report["targets"][0]["line"] == SPEC_LINE and report["commit"] == "c" * 40

    # The same commit in a pull request: all is warm, and a comment of another job says so.
    said = str(place / "workspace" / "reports" / "check.json")
    checked = act(place, job(place), check="true", report=said, **access)
    assert checked.ok and checked.outputs["revision"] == "", checked.log
    told = act(place, job(place, comments), merge="reports", comment="true")
    assert told.ok, told.log
    [comment] = comments.rows
    assert "1 of 1 targets are warm" in comment["body"]
    assert "https://git.example/org/app/actions/runs/4711" in comment["body"]

    # A change of the model: the job fails, the line of the target is annotated, the comment is another.
    spec = place / "workspace" / "warm.toml"
    spec.write_text(spec.read_text().replace("width = 8", "width = 16").replace("[4, 8]", "[4, 16]"))
    changed = act(place, job(place), check="true", report=said, **access)
    assert not changed.ok and changed.outputs["exit-status"] == "9", changed.log
    [(level, properties, message)] = changed.annotations
    assert (level, properties["file"], properties["line"]) == ("warning", "warm.toml", str(SPEC_LINE))
    assert properties["title"] == "tiny/default is cold" and "with a difference in" in message
    act(place, job(place, comments), merge="reports", comment="true")
    [comment] = comments.rows
    assert "0 of 1 targets are warm (1 cold)" in comment["body"]
    for ran in (pushed, checked, changed):
        assert key not in ran.log + ran.summary and registry.token not in ran.log + ran.summary
        assert TOKEN not in ran.log + ran.summary
    assert key not in Path(pushed.outputs["report"]).read_text()


HOSTILE_MODEL = """\
import glob, subprocess
from models import tiny as honest

def tiny(**arguments):
    lines = {{"ENV": "BASH_ENV={evil}", "PATH": "{place}/bin", "OUTPUT": "report={place}/other.json"}}
    write = ""
    for name, line in lines.items():
        write += f"for file in {place}/temp/GITHUB_{{name}}-*; do echo {{line}} >> $file; done; "
    subprocess.run(["bash", "-c", write], check=True)
    forever = f"touch {place}/lives; for turn in $(seq 300); do {{write}} sleep 0.1; done"
    subprocess.Popen(["setsid", "bash", "-c", f"({{forever}}) &"])
    while not glob.glob("{place}/lives"):
        pass
    return honest(**arguments)
"""


@pytest.mark.compiles
def test_a_model_s_code_changes_no_later_step(registry: Served, place: Path) -> None:
    """It writes where the runner looks for variables, programs and outputs, and goes on after its end."""
    (place / "bin").mkdir()
    for name in ("evil.sh", "bin/bash", "bin/mkdir"):
        (place / name).write_text(f"#!/bin/sh\ntouch {place}/ran\n")
        (place / name).chmod(0o755)
    workspace = place / "workspace"
    (workspace / "hostile.py").write_text(HOSTILE_MODEL.format(evil=place / "evil.sh", place=place))
    (workspace / "warm.toml").write_text(SPEC.replace("models:tiny", "hostile:tiny"))
    access = {"registry": registry.url, "trusted_keys": registry.trust, "token": registry.token}
    ran = act(place, job(place), check="true", **access)
    assert (place / "lives").exists(), ran.log
    assert ran.steps["report"]["outcome"] != "skipped" and "# Warm report" in ran.summary, ran.log
    assert not (place / "ran").exists() and ran.outputs["report"].startswith(f"{place}/temp/")
    time.sleep(0.5)
    assert [path.read_text() for path in (place / "temp").glob("GITHUB_ENV-*")] == ["", ""]


def test_what_an_earlier_job_left_among_the_user_s_packages_is_not_run(place: Path, tmp_path: Path) -> None:
    """As a pull request may, on a machine that is used again: a .pth file runs with each start of Python."""
    home, folder, marker = tmp_path / "home", tmp_path / "environment", tmp_path / "ran"
    options = ("--without-pip", "--system-site-packages")
    subprocess.run([sys.executable, "-m", "venv", *options, folder], check=True)
    [packages] = (folder / "lib").glob("python*/site-packages")
    ours = (sysconfig.get_path("purelib"), ROOT, ROOT / "client")
    (packages / "ours.pth").write_text("".join(f"{path}\n" for path in ours))
    left = home / ".local/lib" / packages.parent.name / "site-packages"
    left.mkdir(parents=True)
    (left / "left.pth").write_text(f"import pathlib; pathlib.Path({str(marker)!r}).touch()\n")
    environ = {**job(place), "HOME": str(home), "PIP_NO_INDEX": "1"}
    python = folder / "bin" / "python"
    subprocess.run([python, "-P", "-c", ""], env=environ, check=True)
    assert marker.exists(), "it runs where nothing keeps it out"
    marker.unlink()
    reports_of(place, h200="warm")
    for inputs in ({"spec": "none.toml"}, {"merge": "reports"}, {"install": "cachesvc-that-is-not-there"}):
        ran = act(place, environ, **{"python": str(python), **inputs})
        assert ran.log and not marker.exists(), ran.log


def test_a_mistake_in_the_spec_is_annotated_at_its_line(place: Path) -> None:
    spec = place / "workspace" / "warm.toml"
    spec.write_text(spec.read_text().replace("runs = 1", 'runs = "%0A::error::x,y"'))
    ran = act(place, job(place))
    assert not ran.ok and ran.outputs["exit-status"] == "2"
    [(level, properties, message)] = ran.annotations
    assert (level, properties["file"], properties["line"]) == ("error", "warm.toml", "10")
    assert "runs" in message and "'%0A::error::x,y' is not" in message
    assert "nothing was warmed" in ran.summary


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({"check": "yes"}, "the input check is true or false"),
        ({"comment": "True"}, "the input comment is true or false"),
        ({"comment": "true"}, "a comment needs a job of its own"),
        ({"targets": "bert"}, "no target 'bert'"),
        ({"arguments": "--forse"}, "No such option"),
        ({"spec": "none.toml"}, "none.toml"),
        ({"merge": "reports"}, "no report"),
    ],
)
def test_a_wrong_input_fails_with_a_line(place: Path, inputs: dict[str, str], says: str) -> None:
    (place / "workspace" / "reports").mkdir()
    ran = act(place, job(place), **inputs)
    assert not ran.ok and says in ran.log, ran.log
    assert any(level == "error" for level, *_ in ran.annotations), ran.log
    assert "Traceback" not in ran.log


HOSTILE = '$(touch pwned)"; touch pwned; "`touch pwned` ${IFS} * -x'
"""A text that runs a command, if it stands in a script within quotes."""


@pytest.mark.parametrize(
    "names",
    [
        ("spec", "registry", "trusted_keys", "token", "signing_key", "oidc", "report"),
        ("targets", "arguments"),
        ("merge", "runners"),
    ],
)
def test_no_input_becomes_a_command(place: Path, names: tuple[str, ...]) -> None:
    ran = act(place, job(place), **dict.fromkeys(names, HOSTILE))
    assert not ran.ok
    assert not list(place.rglob("pwned")), ran.log


def reports_of(place: Path, **runners: str) -> None:
    """Write a report for each runner, with a target of this status."""
    from cachesvc.warm.report import render as report
    from cachesvc.warm.report.head import ReportHead
    from cachesvc.warm.verdict.results import Outcome

    folder = place / "workspace" / "reports"
    folder.mkdir(exist_ok=True)
    for runner, status in runners.items():
        facts = {"torch": "2.13.0+cu130", "gpu": runner, "python_abi": "cpython-312"}
        head = ReportHead("team/tiny:latest", "warm.toml", facts, "3.12.1", target_lines={"tiny": SPEC_LINE})
        document = report.document(head, [Outcome("tiny/default", status, (f"because of {runner}",))])
        (folder / f"{runner}.json").write_text(json.dumps(document))


def test_the_reports_of_a_matrix_become_one_comment(place: Path, comments: Comments) -> None:
    reports_of(place, h200="warm", l4="fresh")
    for _ in range(110):
        comments.add("a comment")
    merge = {"merge": "reports", "runners": "h200 l4\n", "comment": "true"}
    ran = act(place, job(place, comments), **merge)
    assert ran.ok and ran.annotations == [], ran.log
    assert (ran.outputs["targets"], ran.outputs["targets-warm"], ran.outputs["report"]) == ("2", "2", "")
    assert "| 2.13.0+cu130 | h200 | cpython-312 | warm |" in ran.summary
    reports_of(place, l4="failed")
    ran = act(place, job(place, comments), **{**merge, "runners": "h200 l4 b200"})
    assert not ran.ok and ran.outputs["exit-status"] == "9"
    assert [(level, row["title"]) for level, row, _ in ran.annotations] == [
        ("error", "no report of b200"),
        ("error", "cachesvc warm"),
    ]
    [mine] = [row["body"] for row in comments.rows if row["body"] != "a comment"]
    assert "no report of b200" in mine and "| l4 | cpython-312 | failed |" in mine


@pytest.mark.parametrize("token", [READ_TOKEN, "ghs_unknown", ""])
def test_a_token_that_may_not_comment_costs_a_warning_only(
    place: Path, comments: Comments, token: str
) -> None:
    reports_of(place, h200="warm")
    ran = act(place, job(place, comments), job_token=token, merge="reports", comment="true")
    assert ran.ok, ran.log
    [(level, _, message)] = ran.annotations
    assert level == "warning" and message.startswith("no comment: ")
    assert comments.rows == [] and (not token or token not in ran.log)


def test_without_a_pull_request_nothing_is_asked(place: Path, comments: Comments) -> None:
    reports_of(place, h200="warm")
    environ = {**job(place, ref="refs/heads/main"), "GITHUB_API_URL": comments.url}
    ran = act(place, environ, merge="reports", comment="true")
    assert ran.ok and comments.requests == [] and "runs for no pull request" in ran.log


@pytest.fixture
def without_torch(tmp_path: Path) -> Path:
    """Return the Python of a fresh environment with the packages of this one, but for torch and cachesvc."""
    folder = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    [packages] = (folder / "lib").glob("python*/site-packages")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        name = entry.name.lower()
        left_out = name.startswith(("torch", "triton")) or "cachesvc" in name or entry.suffix == ".pth"
        if not left_out:
            (packages / entry.name).symlink_to(entry)
    return folder / "bin" / "python"


def test_the_action_installs_its_own_commit(place: Path, without_torch: Path) -> None:
    """And a merge needs no torch, so it runs on a small machine."""
    sources = place / "actions"
    copy_sources(sources)
    shutil.copytree(ROOT / "deploy", sources / "deploy", dirs_exist_ok=True)
    reports_of(place, h200="warm")
    environ = {**job(place), "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    environ.pop("PYTHONPATH")
    inputs = {"python": str(without_torch), "merge": "reports"}
    ran = run_action(sources / "deploy" / "github" / "action", inputs, environ, place)
    assert ran.ok and ran.outputs["warm"] == "true", ran.log
    where = "import cachesvc, importlib.util; print(cachesvc.__file__, importlib.util.find_spec('torch'))"
    done = subprocess.run([without_torch, "-P", "-c", where], env=environ, capture_output=True, text=True)
    assert done.stdout.startswith(str(without_torch.parents[1])) and done.stdout.strip().endswith("None")
    assert os.access(without_torch.parent / "cachesvc", os.X_OK)


def test_what_cannot_be_installed_fails_the_job_and_reports_nothing(place: Path) -> None:
    environ = {**job(place), "PIP_NO_INDEX": "1"}
    ran = act(place, environ, install="cachesvc-that-is-not-there==1.0")
    assert not ran.ok and "cachesvc-that-is-not-there" in ran.log
    assert [step["outcome"] for step in ran.steps.values()] == ["failure", "skipped", "skipped"]
