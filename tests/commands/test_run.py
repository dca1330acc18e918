"""Test ``run`` and the bootstrap: they reach every Python process of a job, and harm none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from cachesvc_client.commands.launch import environment
from cachesvc_client.hooks.child_processes import EVERY_PROCESS

CLIENT = Path(__file__).parents[2] / "client"
REACHED = "import sys; print('cachesvc_client.bootstrap' in sys.modules)"


def run(*words: object, **variables: str | None) -> subprocess.CompletedProcess[str]:
    """Run ``cachesvc-client run`` in a clean environment, with the client on PYTHONPATH only."""
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(CLIENT), **variables}
    return subprocess.run(
        [sys.executable, "-m", "cachesvc_client", "run", *map(str, words)],
        env={name: value for name, value in environ.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_command_runs_with_its_arguments_and_exit_status():
    program = f"{REACHED}; print(sys.argv[1:]); sys.exit(7)"
    result = run("team/bert", "--", sys.executable, "-c", program, "--lane", "x y")
    assert result.returncode == 7
    assert result.stdout.splitlines() == ["True", "['--lane', 'x y']"]


def test_options_become_variables():
    options = [
        "--tag-fallback",
        "v1",
        "--tag-fallback",
        "latest",
        "--mode",
        "readwrite",
        "--deadline",
        "3",
        "--strict",
    ]
    program = (
        "import os; ours = [name for name in os.environ if name.startswith('CACHESVC_')]\n"
        "print(*sorted(f'{name[9:]}={os.environ[name]}' for name in ours))"
    )
    result = run(
        *options,
        "--lane",
        "pr-1",
        "team/bert:sha",
        "--",
        sys.executable,
        "-c",
        program,
        CACHESVC_URL="https://x",
    )
    assert result.stdout.split() == [
        "DEADLINE=3",
        "LANE=pr-1",
        "MODE=readwrite",
        "NAME=team/bert:sha",
        "STRICT=1",
        "TAG_FALLBACK=v1,latest",
        "URL=https://x",
    ]


@pytest.mark.parametrize(
    ("flags", "level"), [((), "json"), (("-v",), "info"), (("-v", "--verbose"), "debug")]
)
def test_verbose_sets_the_level_of_the_log(flags, level):
    program = "import os; print(os.environ['CACHESVC_LOG'])"
    result = run(*flags, "team/bert", "--", sys.executable, "-c", program, "-v", CACHESVC_LOG="json")
    assert result.stdout == f"{level}\n", result.stderr


def test_spawned_workers_are_reached(tmp_path):
    (tmp_path / "job.py").write_text(
        "import multiprocessing, subprocess, sys\n"
        "def child(queue):\n"
        "    queue.put('cachesvc_client.bootstrap' in sys.modules)\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    queue = context.Queue()\n"
        "    process = context.Process(target=child, args=(queue,))\n"
        "    process.start()\n"
        "    print(queue.get(timeout=30)); process.join()\n"
        "    sys.stdout.flush()\n"
        f"    subprocess.run([sys.executable, '-c', {REACHED!r}])\n"
    )
    assert run("team/bert", "--", sys.executable, tmp_path / "job.py").stdout.splitlines() == ["True", "True"]


def test_the_jobs_own_sitecustomize_still_runs(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.theirs = __name__, __file__\n")
    program = f"{REACHED}; print(*sys.theirs); print(sys.modules['sitecustomize'].__file__); print(sys.path)"
    path = f"{tmp_path}{os.pathsep}{CLIENT}"
    result = run("team/bert", "--", sys.executable, "-c", program, PYTHONPATH=path)
    reached, theirs, module, search = result.stdout.splitlines()
    assert reached == "True"
    assert theirs == f"sitecustomize {tmp_path}/sitecustomize.py"
    assert module == f"{tmp_path}/sitecustomize.py"
    assert str(EVERY_PROCESS) not in search


def test_a_failing_sitecustomize_is_reported_as_without_cachesvc_and_harms_nothing(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("raise RuntimeError('theirs')\n")
    path = f"{tmp_path}{os.pathsep}{CLIENT}"
    result = run("team/bert", "--", sys.executable, "-c", REACHED, PYTHONPATH=path)
    assert result.stdout == "True\n"
    assert "theirs" in result.stderr


def test_interpreters_without_the_client_are_left_alone(tmp_path):
    variables = environment({"CACHESVC_NAME": "team/bert"}, {"PATH": os.environ["PATH"]})
    assert variables["PYTHONPATH"] == str(EVERY_PROCESS)
    venv.create(tmp_path / "other", with_pip=False)
    result = subprocess.run(
        [tmp_path / "other/bin/python", "-c", "print(1)"], env=variables, capture_output=True, text=True
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "1\n", "")


@pytest.mark.parametrize("flags", [["-I"], ["-S"], ["-E"]])
def test_interpreters_without_site_or_environment_still_start(flags):
    result = run("team/bert", "--", sys.executable, *flags, "-c", "print(1)")
    assert (result.returncode, result.stdout) == (0, "1\n")


def test_pythonpath_is_kept_and_has_our_folder_once():
    variables = environment({}, {"PYTHONPATH": f"/a{os.pathsep}{EVERY_PROCESS}{os.pathsep}/b"})
    assert variables["PYTHONPATH"].split(os.pathsep) == [str(EVERY_PROCESS), "/a", "/b"]
    assert environment({}, variables) == variables


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("team/bert", "--", "no-such-command"), 127, "error: no-such-command: command not found"),
        (("team/bert", "--", "/etc"), 126, "error: /etc: Permission denied"),
        (("team/bert", "--"), 2, "error: run: no command (cachesvc-client run NAME -- python serve.py)"),
        (("team/bert",), 2, "error: run: no command (cachesvc-client run NAME -- python serve.py)"),
        (
            ("--strict", "--deadline", "soon", "team/bert", "--", "true"),
            2,
            "error: CACHESVC_DEADLINE: 'soon': allowed: seconds, 0 to 3600",
        ),
    ],
)
def test_a_wrong_command_line_is_one_line(words, status, message):
    result = run(*words)
    assert (result.returncode, result.stderr.strip(), result.stdout) == (status, message, "")


WRONG = {
    "deadline": (("--deadline", "soon", "team/bert"), {}, "CACHESVC_DEADLINE: 'soon': allowed: seconds"),
    "mode": (("--mode", "wrong", "team/bert"), {}, "--mode: 'wrong'"),
    "an unknown option": (("--lanes=x", "team/bert"), {}, "no option --lanes (did you mean --lane?)"),
    "a malformed name": (("Team/Bert",), {}, "'Team'"),
    "no name": ((), {}, "required: name"),
    "url": (("team/bert",), {"CACHESVC_URL": "htp:/x"}, "CACHESVC_URL"),
    "key": (("team/bert",), {"CACHESVC_TRUSTED_KEYS": "ed25519:x"}, "CACHESVC_TRUSTED_KEYS"),
    "a relative store": (("team/bert",), {"CACHESVC_STORE": "store"}, "CACHESVC_STORE"),
}


@pytest.mark.parametrize(("words", "variables", "message"), WRONG.values(), ids=WRONG)
def test_the_command_starts_whatever_is_wrong_unless_it_is_strict(words, variables, message):
    program = f"import os; {REACHED}; print(os.environ['CACHESVC_MODE']); sys.exit(7)"
    command = ("--", sys.executable, "-c", program)
    result = run(*words, *command, **variables)
    assert (result.returncode, result.stdout.split()[-1]) == (7, "off")
    [line] = result.stderr.splitlines()
    assert line.startswith("cachesvc: not attached, the command compiles: ") and message in line
    for strict in (
        run("--strict", *words, *command, **variables),
        run(*words, *command, CACHESVC_STRICT="1", **variables),
    ):
        assert (strict.returncode, strict.stdout) == (2, "")
        [line] = strict.stderr.splitlines()
        assert line.startswith("error: ") and message in line


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A Python without the .pth file, and an agent: its sitecustomize runs no other one, and its launcher
    puts it first."""
    place = tmp_path_factory.mktemp("bare")
    venv.create(place / "venv", with_pip=False)
    (place / "agent").mkdir()
    (place / "agent/sitecustomize.py").write_text("agent = True\n")
    launcher = place / "agent-run"
    launcher.write_text(
        f"#!{sys.executable}\nimport os, sys\n"
        f"os.environ['PYTHONPATH'] = {str(place / 'agent')!r} + ':' + os.environ['PYTHONPATH']\n"
        "words = [word for word in sys.argv[1:] if word != 'run-program']\n"
        "os.execvp(words[0], words)\n"
    )
    launcher.chmod(0o755)
    return place


@pytest.mark.parametrize("words", [("agent-run",), ("agent-run", "run-program")])
def test_an_agent_that_goes_first_is_named_at_the_launch(bare, words):
    command = (bare / words[0], *words[1:], bare / "venv/bin/python", "-c", REACHED)
    result = run("team/bert", "--", *command)
    assert (result.returncode, result.stdout) == (0, "False\n"), "the program runs all the same"
    [line] = result.stderr.splitlines()
    assert f"does not attach: {bare / 'agent/sitecustomize.py'} goes first" in line
    assert "(install cachesvc-client with pip into that Python, or call cachesvc_client.attach())" in line


@pytest.mark.parametrize("flag", ["-I", "-ES"])
def test_a_python_that_reads_nothing_is_named_at_the_launch(bare, flag):
    result = run("team/bert", "--", bare / "venv/bin/python", flag, "-c", REACHED)
    assert result.stdout == "False\n" and f"python {flag} does not attach" in result.stderr


def test_an_agent_that_runs_the_next_sitecustomize_is_none_to_name(bare, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("agent = True\n")
    paths = f"{tmp_path}:{CLIENT}"
    result = run("team/bert", "--", bare / "venv/bin/python", "-c", REACHED, PYTHONPATH=paths)
    assert (result.stdout, result.stderr) == ("True\n", "")


def test_no_other_program_is_started_twice(bare, tmp_path):
    job = tmp_path / "submit"
    job.write_text(f"#!{sys.executable}\nopen({str(tmp_path / 'jobs')!r}, 'a').write('x')\n")
    job.chmod(0o755)
    run("team/bert", "--", job, "job", "submit", "--", bare / "venv/bin/python", "-c", REACHED)
    assert (tmp_path / "jobs").read_text() == "x"


def test_the_doctor_names_an_agent_that_goes_first(bare, monkeypatch):
    from cachesvc_client.commands import doctor

    monkeypatch.setattr(doctor, "has_pth", lambda: False)
    monkeypatch.setattr(sys, "executable", str(bare / "venv/bin/python"))
    behind = f"{EVERY_PROCESS}:{CLIENT}"
    monkeypatch.setenv("PYTHONPATH", f"{bare / 'agent'}:{behind}")
    check = doctor._bootstrap()
    assert (check.status, check.mend) == ("fail", doctor.REMEDY)
    assert check.found.startswith(f"{bare / 'agent/sitecustomize.py'} goes first")
    monkeypatch.setenv("PYTHONPATH", behind)
    assert doctor._bootstrap().status == "ok"


# The .pth file, as pip puts it into site-packages.


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build the wheel and the editable wheel from a copy, with the installed setuptools and without a
    network."""
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("build")
    shutil.copytree(
        CLIENT, folder / "client", ignore=shutil.ignore_patterns("*.egg-info", "build", "__pycache__")
    )
    program = "from setuptools import build_meta as b; b.build_wheel('../out'); b.build_editable('../edit')"
    for name in ("out", "edit"):
        (folder / name).mkdir()
    subprocess.run([sys.executable, "-c", program], cwd=folder / "client", check=True, capture_output=True)
    return next((folder / "out").glob("*.whl")), next((folder / "edit").glob("*.whl"))


@pytest.mark.parametrize("editable", [False, True])
def test_the_pth_file_is_installed_recorded_and_attaches_by_the_variable_alone(built, tmp_path, editable):
    wheel = built[editable]
    venv.create(tmp_path / "fresh", with_pip=False)
    python = tmp_path / "fresh/bin/python"
    ask = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip())
    with zipfile.ZipFile(wheel) as file:
        record = next(file.read(name).decode() for name in file.namelist() if name.endswith("RECORD"))
        file.extractall(packages)
    assert sum(line.startswith("cachesvc_client_bootstrap.pth,sha256=") for line in record.splitlines()) == 1
    observed = {"CACHESVC_OBSERVE": str(tmp_path / "log")}
    cases = ({"CACHESVC_NAME": "team/bert"}, "True\n"), (observed, "True\n"), ({}, "False\n")
    for variables, reached in cases:
        result = subprocess.run(
            [python, "-c", REACHED], env=variables, capture_output=True, text=True, check=True
        )
        assert result.stdout == reached
    # A partial or broken uninstallation is no error of the interpreter.
    for path in packages.glob("*cachesvc_client*"):
        if path.name != "cachesvc_client_bootstrap.pth":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    result = subprocess.run(
        [python, "-c", "print(1)"], env={"CACHESVC_NAME": "a/b"}, capture_output=True, text=True
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "1\n", "")


def test_nothing_is_imported_without_the_variable(built):
    """The line of the .pth file runs in every interpreter of the environment, also in those that never
    attach."""
    with zipfile.ZipFile(built[0]) as file:
        line = file.read("cachesvc_client_bootstrap.pth").decode()
    assert line.startswith("import os, sys; ")
    assert line.count("\n") == 1
    program = f"import sys\nbefore = set(sys.modules)\nexec({line!r})\nprint(set(sys.modules) - before)"
    result = subprocess.run(
        [sys.executable, "-c", program], env={}, capture_output=True, text=True, check=True
    )
    assert result.stdout == "set()\n"


def test_a_hint_names_the_program_that_the_user_has(tmp_path):
    for program, module in (("cachesvc", "cachesvc"), ("cachesvc-client", "cachesvc_client")):
        variables = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        for words, hint in (
            (("run", "team/bert"), f"({program} run NAME -- python serve.py)"),
            (("doctor",), "run: cachesvc login URL)"),
        ):
            result = subprocess.run(
                [sys.executable, "-m", module, *words],
                env=variables,
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert hint in result.stdout + result.stderr, (words, result)
