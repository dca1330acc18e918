"""Test that the demo and the benchmark work on a tiny model, and that their messages follow from their
measurements."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import types
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from benchmarks import cold_start, demo, hosts, steps
from cachesvc.warm.spec.spec import load_spec
from tests.e2e.harness import WARMED

from .programs import run_quick

SPEC = f"""
name = "demo/tiny"
[[target]]
id = "tiny"
factory = "benchmarks.models:tiny"
paths = ["{hosts.ROOT}"]
runs = 1
""" + "".join(f'env.{name} = "{value}"\n' for name, value in WARMED.items())

SECONDS = {"first": 1.0, "process": 2.0}
OBSERVED = {"compilations": 0, "tuning_runs": 0, "compiler_processes": 0, "processes": {}}
RESTORED: dict[str, Any] = {
    "seconds": SECONDS,
    "observed": OBSERVED,
    "called": [],
    "same": True,
    "difference": 0.0,
    "cachesvc": {"state": "hit", "reasons": [], "bytes_moved": 0, "seconds": {"wait": 0.0, "hooks": 0.001}},
}


def _row(**changes: Any) -> dict[str, Any]:
    return {"model": "tiny", "ours": {**deepcopy(RESTORED), **changes}}


def test_a_clean_restore_has_no_problems() -> None:
    assert demo.problems(_row()) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"observed": OBSERVED | {"compilations": 2}}, "2 compilations"),
        ({"observed": OBSERVED | {"tuning_runs": 1}}, "1 tuning runs"),
        ({"observed": OBSERVED | {"compiler_processes": 1}}, "1 compilers run"),
        ({"called": ["ld -o x"]}, "ld -o x"),
        ({"same": False}, "output"),
        ({"cachesvc": RESTORED["cachesvc"] | {"state": "miss", "reasons": ["none fits"]}}, "none fits"),
    ],
)
def test_repeated_work_of_a_restored_process_is_reported(changes: dict[str, Any], expected: str) -> None:
    (problem,) = demo.problems(_row(**changes))
    assert expected in problem and problem.startswith("tiny: ")


def _result(**ours: Any) -> dict[str, Any]:
    restored = {"first": 1.0, "same": True, **OBSERVED, "runs": [RESTORED], **ours}
    pytorch = {"local warm, settled": 2.0, "mega-cache": 5.0, "cold": 10.0}
    return {
        "bytes": {"pack": 40, "resolve answer": 5, "mega-cache": 100, "zstd -3 of both": 50},
        "attach": [{"seconds": 0.03, "torch": False}],
        "methods": {"cachesvc": restored, **{name: {"first": first} for name, first in pytorch.items()}},
    }


def missed_targets(result: dict[str, Any]) -> list[str]:
    return [row["what"] for row in cold_start.targets(result) if not row["reached"]]


def test_targets_are_reached_or_reported_as_missed() -> None:
    assert missed_targets(_result()) == []
    assert missed_targets(_result(first=1.45)) == ["first output / local warm, settled"]
    assert missed_targets(_result(first=1.55))[1:] == ["first output / mega-cache", "first output / cold"]
    assert missed_targets(_result(compilations=1)) == ["compilations, tuning runs and compilers run"]
    assert missed_targets(_result(same=False)) == ["outputs that are not PyTorch's own compiled ones"]


def test_answers_lose_the_paths_of_the_machine() -> None:
    answer = {"observed": {"processes": ["/somewhere/bin/python", "g++", "g++"]}}
    assert cold_start.portable(answer) == {"observed": {"processes": {"python": 1, "g++": 2}}}


def test_hosts_share_nothing_that_changes_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CI", "CXX", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CACHESVC_NAME"):
        monkeypatch.setenv(name, "1")
    environment = hosts.Host(tmp_path).environment()
    assert not {"CI", "CXX", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CACHESVC_NAME"} & set(
        environment
    )
    assert environment["HOME"] == str(tmp_path / "home") and Path(environment["TMPDIR"]).is_dir()


def test_a_process_ends_with_its_block_and_so_do_its_children(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = f"sleep 600 & echo $! > {pid}; wait"
    with pytest.raises(KeyboardInterrupt), hosts.running_process(["sh", "-c", script]) as process:
        _until(lambda: pid.exists() and pid.read_text().strip())
        raise KeyboardInterrupt
    assert process.returncode is not None
    _until(lambda: not _runs(int(pid.read_text())))


@pytest.mark.compiles
def test_an_interrupted_demo_ends_every_process_that_it_started(tmp_path: Path) -> None:
    process = _demo(tmp_path)
    assert process.stderr is not None
    while "compile" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "interrupted" in errors
    assert list((tmp_path / "tmp").iterdir()) == []
    _until(lambda: not _processes_of(tmp_path))


@pytest.mark.compiles
def test_the_demo_restores_without_compiling(tmp_path: Path) -> None:
    process = _demo(tmp_path)
    out, errors = process.communicate(timeout=500)
    assert process.returncode == 0, errors[-3000:]
    assert "no restored process compiled anything" in out and "\x1b" not in out
    (line,) = (line for line in out.splitlines() if line.startswith("  tiny "))
    compiled = re.search(r"(\d+) / \d+ / 0 +(\d+) / \d+ / 0 .* yes$", line)
    assert compiled and int(compiled[1]) and int(compiled[2]), (
        "PyTorch's own cold start compiles, and the demo counts it"
    )


@pytest.mark.long
@pytest.mark.compiles
def test_the_benchmark_measures_a_tiny_model(tmp_path: Path) -> None:
    methods = ["cachesvc", "cachesvc, 2nd process"]
    report = run_quick("cold_start.py", tmp_path, "--methods", *methods)
    model_report = json.loads(report.read_text())["models"]["tiny/default"]
    assert set(model_report["methods"]) == {"cold", *methods}
    assert (
        model_report["methods"]["cold"]["compilations"]
        and model_report["methods"]["cold"]["compiler_processes"]
    )
    for method in methods:
        assert (
            model_report["methods"][method]["compilations"] == 0
            and model_report["methods"][method]["processes"] == 0
        )
    assert missed_targets(model_report) == [
        row["what"] for row in model_report["targets"] if not row["reached"]
    ]
    assert str(hosts.ROOT) not in report.read_text() and str(tmp_path) not in report.read_text()
    assert report.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def _demo(place: Path) -> subprocess.Popen[str]:
    (place / "tmp").mkdir()
    (place / "warm.toml").write_text(SPEC)
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "benchmarks.demo", "--spec", str(place / "warm.toml")],
        cwd=hosts.ROOT,
        env={**os.environ, "TMPDIR": str(place / "tmp")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _until(holds: Any, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _processes_of(place: Path) -> list[int]:
    """Return the processes whose command line or environment names a place, as those of the demo do."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        if int(folder.name) == os.getpid():
            continue
        try:
            text = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
        except OSError:
            continue
        if os.fsencode(place) in text and _runs(int(folder.name)):
            pids.append(int(folder.name))
    return pids


@pytest.mark.long
def test_the_benchmark_of_guards_times_a_process_with_frames_and_one_without(tmp_path: Path) -> None:
    """It ends with an error where no frames were given or the guards do not hold."""
    report = json.loads(run_quick("guards.py", tmp_path).read_text())
    assert report["parameters"] == 300
    assert all(0 < value < 10_000 for of in report["microseconds"].values() for value in of)


@pytest.mark.long
def test_the_benchmark_of_first_calls_measures_steps_and_a_sampled_start(tmp_path: Path) -> None:
    """It ends with an error where a process traces or compiles."""
    options = ("--first-calls", "--models", "tiny", "llama22", "--canary")
    report = json.loads(run_quick("guards.py", tmp_path, *options).read_text())
    sides = report["models"]["tiny"]
    assert set(sides) == {"this", "canary"}
    for side in sides.values():
        assert 0 < side["both"] < side["first"] and side["steps"]["guards made"] > 0
        assert side["calls"]["replay"] == side["calls"]["guards checked"] == 1


def test_steps_count_each_second_once_and_tell_what_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("cachesvc_client_of_a_test")

    class Outer:
        def run(self) -> int:
            time.sleep(0.02)
            return module.inner()  # type: ignore[no-any-return]

    module.Outer, module.inner = Outer, lambda: time.sleep(0.05) or 7  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    measured = steps.Steps(
        (f"outer={module.__name__}:Outer.run", f"inner={module.__name__}:inner", "no=absent:f")
    )
    measured.wrap()
    assert Outer().run() == 7
    answer = measured.answer()
    assert 0.02 <= answer["seconds"]["outer"] < 0.05 <= answer["seconds"]["inner"]
    assert answer["calls"] == {"outer": 1, "inner": 1} and "absent:f" in answer["not there"]


def test_the_demo_takes_the_models_that_are_named() -> None:
    spec = load_spec(demo.SPEC)
    assert [target.id for target in demo.choose(spec, ["vit", "bert"]).targets] == ["bert", "vit"]
    assert demo.choose(spec, []) == spec
    with pytest.raises(hosts.Failed, match=r"no model 'brt' in .*: choose from bert, llama, vit"):
        demo.choose(spec, ["brt"])
