"""Test that processes which Python children start are counted: the children write them to their parent's
log."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from cachesvc_client.hooks.child_processes import EVERY_PROCESS, python_path

CHILD = "import subprocess; subprocess.run(['true'])"
NESTED = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}])"
TRUE = shutil.which("true")
SPAWNED = """\
import multiprocessing, os, subprocess, sys
def work():
    subprocess.run(['true'])
if __name__ == '__main__':
    from cachesvc_client.hooks import counters
    observer = counters.start(audit=True)
    worker = multiprocessing.get_context('spawn').Process(target=work)
    worker.start(); worker.join()
    print(*observer.snapshot().processes)
"""


def observe(tmp_path: Path, program: str, audit: bool = True, **variables: str):
    """Run a program. Return the names of the processes that it started, the number of compiler processes, and
    the value of its variable ``answer``."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("CACHESVC_")}
    whole = (
        "import json, os, subprocess, sys\n"
        "from cachesvc_client.hooks import counters\n"
        f"observer, answer = counters.start(audit={audit}), None\n"
        f"{program}\n"
        "seen = observer.snapshot()\n"
        "names = [os.path.basename(name) for name in seen.processes]\n"
        "print(json.dumps([names, seen.compiler_processes, answer]))"
    )
    result = subprocess.run(
        [sys.executable, "-c", whole],
        env={**environ, "HOME": str(tmp_path), "TMPDIR": str(tmp_path), **variables},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


PYTHON = os.path.basename(sys.executable)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("subprocess.run(['true'])", ["true"]),
        (f"subprocess.run([{TRUE!r}], close_fds=False)", ["true"]),  # by posix_spawn: two audit events
        (f"os.waitpid(os.posix_spawn({TRUE!r}, ['true'], os.environ), 0)", ["true"]),
        (f"subprocess.run([sys.executable, '-c', {CHILD!r}])", [PYTHON, "true"]),
        (f"subprocess.run([sys.executable, '-c', {NESTED!r}])", [PYTHON, PYTHON, "true"]),
        (f"os.fork() or os.execv({TRUE!r}, ['true'])\nos.wait()", ["true"]),
        ("os.fork() or [subprocess.run(['true']), os._exit(0)]\nos.wait()", ["true"]),
    ],
    ids=[
        "itself",
        "spawned by subprocess",
        "spawned",
        "a child",
        "a grandchild",
        "a fork that becomes it",
        "a fork",
    ],
)
def test_a_program_is_listed_whichever_process_of_the_job_starts_it(tmp_path, program, expected):
    assert observe(tmp_path, program)[0] == expected


def test_a_spawned_worker_is_reached(tmp_path):
    (tmp_path / "job.py").write_text(SPAWNED)
    result = subprocess.run([sys.executable, "job.py"], cwd=tmp_path, capture_output=True, text=True)
    assert "true" in result.stdout.split(), result.stderr


def test_a_compiler_in_a_child_is_a_compiler_process(tmp_path):
    child = "import subprocess; subprocess.run(['g++', '-dumpversion'])"
    (tmp_path / "g++").write_text("#!/bin/sh\n")
    (tmp_path / "g++").chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    observation = observe(tmp_path, f"subprocess.run([sys.executable, '-c', {child!r}])", PATH=path)
    assert observation[:2] == [[PYTHON, "g++"], 1]


def test_many_children_at_once_lose_no_line(tmp_path):
    child = "import subprocess\nfor _ in range(20): subprocess.run(['true'])"
    names = observe(
        tmp_path,
        f"all = [subprocess.Popen([sys.executable, '-c', {child!r}]) for _ in range(4)]\n"
        "for one in all: one.wait()",
    )[0]
    assert names.count("true") == 80 and len(names) == 84


def test_an_observer_counts_from_its_start(tmp_path):
    run = f"subprocess.run([sys.executable, '-c', {CHILD!r}])"
    assert observe(tmp_path, f"{run}\nobserver = counters.start(audit=True)\n{run}")[0] == [PYTHON, "true"]


def test_the_log_ends_with_its_process_and_later_children_go_on(tmp_path):
    late = "import time, subprocess; time.sleep(0.3); subprocess.run(['true']); open('went on', 'w')"
    names = observe(
        tmp_path,
        "answer = os.environ['CACHESVC_OBSERVE']\n"
        f"child = subprocess.Popen([sys.executable, '-c', {late!r}])\n"
        "os.unlink(answer)\n"
        "child.wait()",
    )
    assert names[0] == [PYTHON] and (tmp_path / "went on").exists()
    assert not list(tmp_path.glob("cachesvc-observe-*")), "the child does not create the log again"
    _, _, log = observe(tmp_path, "answer = os.environ['CACHESVC_OBSERVE']")
    assert Path(log).parent == tmp_path and not Path(log).exists()


def test_without_audit_nothing_is_set_and_nothing_listed(tmp_path):
    """Services observe without audit."""
    before = "before = dict(os.environ), list(sys.path)\nobserver = counters.start()\n"
    after = "answer = before == (dict(os.environ), sys.path)"
    run = f"subprocess.run([sys.executable, '-c', {CHILD!r}])\n"
    names, _, same = observe(tmp_path, before + run + after, audit=False)
    assert (names, same) == ([], True)


def test_python_path_has_our_folder_first_and_once():
    ours = str(EVERY_PROCESS)
    assert python_path("") == ours
    assert python_path(os.pathsep.join(["a", ours, "b"])) == os.pathsep.join([ours, "a", "b"])


@pytest.mark.compiles
def test_inductors_compile_workers_are_reached(tmp_path):
    """PyTorch starts one process with ``sys.path`` as PYTHONPATH, and forks the pool's workers from it."""
    program = (
        "from torch._inductor.compile_worker.subproc_pool import SubprocPool\n"
        "pool = SubprocPool(1)\n"
        "before = len(observer.snapshot().processes)\n"
        "pool.submit(subprocess.run, ['g++', '-dumpversion'], stdout=subprocess.DEVNULL).result(100)\n"
        "pool.shutdown()\n"
        "answer = [os.path.basename(name) for name in observer.snapshot().processes][before:]"
    )
    _, _, answer = observe(tmp_path, program)
    assert answer == ["g++"]


def test_warms_worker_lists_what_a_script_starts_through_another_python(tmp_path):
    pytest.importorskip("cachesvc.warm.spec.spec")
    from cachesvc.warm.launcher import Launcher
    from cachesvc.warm.spec.plan import plan
    from cachesvc.warm.spec.spec import parse_spec
    from cachesvc.warm.worker.phase import PhaseRequest

    script = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {CHILD!r}], check=True)\n"
    (tmp_path / "job.py").write_text(script)
    text = 'name = "team/job"\n[[target]]\nid = "job"\nscript = "job.py"\n'
    [job] = plan(parse_spec(text, tmp_path / "warm.toml"))
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        result = Launcher().run(PhaseRequest("compile", job), Path(folder), {})
    assert not result.error, result.trace
    assert [os.path.basename(name) for name in result.observation.processes][-2:] == [PYTHON, "true"]
