"""What a service says of its restore without being asked, and that the registry learns it however the service
ends: real servers, real workers, real signals."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.prepared import COMPILES, prepared_python
from tests.python_process import running_python
from tools.markdown import DOCS

from .conftest import NAME
from .harness import PROGRAMS, SCALAR, environment, run
from .registries import Served, client, free_url, more, starts, wait_for

pytestmark = pytest.mark.compiles


@pytest.fixture
def variables(tmp_path: Path, registry: Served) -> dict[str, str]:
    """Of a fresh host."""
    return {**environment(tmp_path), **SCALAR, **registry.variables, "NAME": NAME}


def ask(process: subprocess.Popen[str], batch: int) -> None:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{batch}\n")
    process.stdin.flush()
    assert process.stdout.readline() == f"{batch}\n"


def stats(variables: dict[str, str]) -> tuple[dict[str, int], str]:
    """Return what `cachesvc-client stats` says of the starts on this host: outcomes, and the last reason."""
    program = [sys.executable, "-m", "cachesvc_client", "stats", "--json"]
    done = subprocess.run(program, env=variables, capture_output=True, text=True, timeout=60, check=True)
    answer = json.loads(done.stdout)
    [row] = answer["rows"] or [{"names": f"{NAME}:latest"}]
    assert row["names"] == f"{NAME}:latest"
    last = answer["last_compiled"]
    counts = {name: row[name] for name in ("starts", "hits", "partial", "inert", "miss") if row.get(name)}
    return counts, last["why"] if last else ""


def test_a_later_compile_is_a_warning_and_one_start_stays_one(
    tmp_path: Path, registry: Served, variables: dict[str, str]
) -> None:
    before = starts(registry)
    err = tmp_path / "err"
    python = prepared_python(COMPILES, variables)
    with running_python(["batches.py", NAME], tmp_path, variables, PROGRAMS, python) as process:
        ask(process, 4)
        wait_for(lambda: starts(registry) == more(before, hit=1))
        assert err.read_text() == "", "a hit is no warning"
        assert stats(variables) == ({"starts": 1, "hits": 1}, "")
        ask(process, 6)
        [line] = wait_for(lambda: err.read_text().splitlines())
        count = r"\(\d+ compilations? so far\)"
        assert re.match(
            f"cachesvc: {NAME}:latest: compiled here after a restore {count}: shapes: here ", line
        ), line
        assert "warm these shapes too" in line, line
        wait_for(lambda: starts(registry) == more(before, partial=1))
        ask(process, 7)
        assert process.poll() is None
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0
    assert err.read_text().splitlines() == [line], "once, not for each graph"
    assert starts(registry) == more(before, partial=1)
    counts, why = stats(variables)
    assert counts == {"starts": 1, "partial": 1} and why.startswith("shapes: here "), why


@pytest.mark.parametrize("end", ["SIGTERM", "os._exit"])
def test_a_program_that_runs_no_exit_function_was_counted_while_it_lived(
    tmp_path: Path, registry: Served, variables: dict[str, str], end: str
) -> None:
    """A hit is told at once, and what was compiled after it once the program was quiet for five seconds."""
    before = starts(registry)
    python = prepared_python(COMPILES, variables)
    with running_python(["batches.py", NAME], tmp_path, variables, PROGRAMS, python) as process:
        ask(process, 4)
        ask(process, 8)
        begin = time.monotonic()
        wait_for(lambda: starts(registry) == more(before, partial=1))
        assert time.monotonic() - begin < 10
        if end == "SIGTERM":
            process.send_signal(signal.SIGTERM)
        else:
            assert process.stdin is not None
            process.stdin.close()
        assert process.wait(60) == (-signal.SIGTERM if end == "SIGTERM" else 0)
    assert starts(registry) == more(before, partial=1)


def test_a_hit_is_one_line_where_the_log_is_asked_for(tmp_path: Path, variables: dict[str, str]) -> None:
    python, variables = prepared_python(COMPILES, variables), {**variables, "CACHESVC_LOG": "info"}
    with running_python(["batches.py", NAME], tmp_path, variables, PROGRAMS, python) as process:
        ask(process, 4)
        wait_for(lambda: "hit" in (tmp_path / "err").read_text())
        lines = (tmp_path / "err").read_text().splitlines()
    assert all(line.startswith("cachesvc: ") for line in lines), lines
    said = [line for line in lines if ": hit: " in line]
    assert len(said) == 1 and said[0].startswith(f"cachesvc: {NAME}:latest: hit: nothing compiled, "), lines
    assert "artifacts of 1 revision used, " in said[0] and said[0].endswith(" s saved")


@pytest.mark.parametrize(
    ("level", "said"),
    [
        ("loud", ["cachesvc: CACHESVC_LOG: 'loud': allowed: debug, info, warning, json"]),
        ("warning", []),
        ("", []),
    ],
)
def test_the_level_of_the_log(variables: dict[str, str], level: str, said: list[str]) -> None:
    code = f"import cachesvc_client; cachesvc_client.attach({NAME!r}).wait(60)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**variables, "CACHESVC_LOG": level},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr.splitlines()) == (0, said)


def test_a_log_of_json_has_one_object_a_line_with_the_documented_fields(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    python, variables = prepared_python(COMPILES, variables), {**variables, "CACHESVC_LOG": "json"}
    with running_python(["batches.py", NAME], tmp_path, variables, PROGRAMS, python) as process:
        ask(process, 4)
        wait_for(lambda: '"hit"' in (tmp_path / "err").read_text())
        ask(process, 6)
        wait_for(lambda: '"compiled"' in (tmp_path / "err").read_text())
    restored, hit, compiled = map(json.loads, (tmp_path / "err").read_text().splitlines())
    assert [line["event"] for line in (restored, hit, compiled)] == ["restored", "hit", "compiled"]
    assert [line["level"] for line in (restored, hit, compiled)] == ["info", "info", "warning"]
    for line in (restored, hit, compiled):
        assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"]), line
        assert line["names"] == [f"{NAME}:latest"] and line["message"].startswith(NAME)
        assert line["process"] == hit["process"] > 1
        page = (DOCS / "reference" / "variables.md").read_text()
        assert [field for field in line if f"| `{field}` |" not in page] == [], "each field is documented"
    assert restored["files"] > 0 and restored["bytes_moved"] > 0 and len(restored["revisions"]) == 1
    assert (hit["state"], hit["compilations"], hit["reasons"]) == ("hit", 0, []) and hit["artifacts_used"] > 0
    assert compiled["state"] == "partial" and compiled["compilations"] > 0
    assert compiled["reasons"][0].startswith("shapes: here ")


def test_a_wrong_name_is_one_line_in_the_log_and_the_first_reason_of_the_report(
    tmp_path: Path, registry: Served
) -> None:
    """On a host that has hit under the right name before."""
    hit = run(
        "serve.py",
        f"name={NAME}",
        "small=1",
        place=tmp_path,
        prepared=True,
        **SCALAR,
        **registry.variables,
    )
    assert hit.answer["state"] == "hit"
    wrong = run(
        "serve.py",
        "name=team/typo",
        "small=1",
        place=tmp_path,
        prepared=True,
        **SCALAR,
        **registry.variables,
    )
    reason = "nothing is published as team/typo:latest (check the name, or publish it with cachesvc warm)"
    ours = [line for line in wrong.err.splitlines() if "team/typo" in line]
    assert ours == [f"cachesvc: team/typo:latest: not restored, this process compiles: {reason}"]
    assert wrong.answer["reasons"][0] == f"team/typo:latest: not restored: {reason}"
    variables = {**environment(tmp_path), **registry.variables}
    asked = client("explain", "team/typo", **variables)
    assert asked.returncode == 4 and asked.stderr == f"error: {reason}\n"
    assert reason in client("doctor", "team/typo", **variables).stdout
    spared = run(
        "serve.py",
        "name=team/typo",
        "small=1",
        place=tmp_path,
        prepared=True,
        **SCALAR,
        **registry.variables,
    )
    assert spared.answer["observed"]["compilations"] == 0, "the node has kept what it compiled"
    assert spared.answer["state"] == wrong.answer["state"] == "miss"
    assert spared.answer["reasons"][0] == wrong.answer["reasons"][0]


def test_of_a_quarantined_head_log_report_explain_doctor_and_registry_say_the_same(
    tmp_path: Path, registry: Served
) -> None:
    variables = {**environment(tmp_path), **SCALAR, **registry.variables}
    before = starts(registry)
    listed = json.loads(client("admin", "entries", "list", "team", "--json", **variables).stdout)["rows"]
    [head] = [entry["revision"] for entry in listed]
    assert client("explain", NAME, **variables).returncode == 0
    withheld = client("admin", "quarantine", "set", head, "--why", "wrong numbers", "--apply", **variables)
    assert withheld.returncode == 0, withheld.stderr
    why = "quarantine: here withheld by an operator (wrong numbers)"
    try:
        wait_for(lambda: client("explain", NAME, **variables).returncode == 4)
        explained = json.loads(client("explain", NAME, "--json", **variables).stdout)
        [entry] = explained["entries"]
        assert (entry["verdict"], entry["fits"]) == ("withheld", False)
        doctor = client("doctor", NAME, **variables)
        assert doctor.returncode == 1 and f"withheld is {entry['entry']['target']}: {why}" in doctor.stdout
        service = run("serve.py", f"name={NAME}", "small=1", place=tmp_path, prepared=True, **variables)
        [line] = [line for line in service.err.splitlines() if "not restored" in line]
        [reason] = [reason for reason in service.answer["reasons"] if "not restored" in reason]
        assert line.partition("compiles: ")[2] == reason.partition("not restored: ")[2]
        assert f"withheld is {entry['entry']['target']}: {why}" in line
        assert service.answer["state"] == "miss" and starts(registry) == before
        assert "wrong numbers" in client("admin", "quarantine", "list", **variables).stdout
    finally:
        client("admin", "quarantine", "release", head, **variables)
    assert wait_for(lambda: client("explain", NAME, **variables).returncode == 0)


ASGI = ["-m", "uvicorn", "web:app", "--host", "127.0.0.1", "--port"]
GUNICORN = ["-m", "gunicorn", "--timeout", "300", "--bind"]
SERVERS = {
    "uvicorn": [*ASGI, "{port}"],
    "uvicorn of two workers": [*ASGI, "{port}", "--workers", "2"],
    "gunicorn": [*GUNICORN, "127.0.0.1:{port}", "web:wsgi"],
    "gunicorn with workers of uvicorn": [
        *GUNICORN,
        "127.0.0.1:{port}",
        "-k",
        "uvicorn.workers.UvicornWorker",
        "web:app",
    ],
}


@pytest.mark.parametrize("server", SERVERS)
def test_the_registry_knows_a_start_that_sigterm_ended(
    tmp_path: Path, registry: Served, variables: dict[str, str], server: str
) -> None:
    """It is told while the server lives. gunicorn's own workers run exit functions, and tell the rest too."""
    before = starts(registry)
    url = free_url()
    command = [word.format(port=url.rpartition(":")[2]) for word in SERVERS[server]]

    def answer(batch: int) -> str:
        try:
            reply = httpx.get(f"{url}/{batch}", timeout=120)
        except httpx.TransportError:
            return ""
        return reply.text if reply.status_code == 200 else ""

    with running_python(command, tmp_path, variables, PROGRAMS) as process:
        assert wait_for(lambda: answer(4), 180).endswith(" 4"), (tmp_path / "err").read_text()
        wait_for(lambda: starts(registry) == more(before, hit=1))
        if server == "gunicorn":
            assert answer(6).endswith(" 6"), (tmp_path / "err").read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in (0, -signal.SIGTERM)
    assert "Traceback" not in (tmp_path / "err").read_text()
    last = {"partial": 1} if server == "gunicorn" else {"hit": 1}
    wait_for(lambda: starts(registry) == more(before, **last))
    told = client("admin", "stats", **registry.variables)
    assert told.returncode == 0 and "hit" in told.stdout, told.stdout


def test_a_warning_under_uvicorn_while_it_serves(tmp_path: Path, variables: dict[str, str]) -> None:
    url = free_url()
    command = [*ASGI, url.rpartition(":")[2]]

    def answer() -> bool:
        try:
            return httpx.get(f"{url}/9", timeout=120).status_code == 200
        except httpx.TransportError:
            return False

    python = prepared_python((*COMPILES, "uvicorn"), variables)
    with running_python(command, tmp_path, variables, PROGRAMS, python) as process:
        wait_for(answer, 180)
        err = tmp_path / "err"
        wait_for(lambda: f"{NAME}:latest: compiled here after a restore" in err.read_text())
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    assert err.read_text().count("compiled here after a restore") == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_the_lifespan_restores_before_the_start_and_tells_the_registry_at_the_end(
    tmp_path: Path, registry: Served, variables: dict[str, str], workers: int
) -> None:
    """The last process ends right after it compiled, seconds before it would be quiet."""
    before = starts(registry)
    url = free_url()
    command = [*ASGI, url.rpartition(":")[2], "--workers", str(workers), "--no-access-log"]
    command[command.index("web:app")] = "web_fastapi:app"
    err = tmp_path / "err"
    with running_python(command, tmp_path, variables, PROGRAMS) as process:
        wait_for(lambda: starts(registry) == more(before, hit=workers), 180)
        wait_for(lambda: err.read_text().count("Application startup complete") == workers)
        answered: set[int] = set()
        batches = iter(range(6, 60))  # what one process has compiled, the other loads
        while len(answered) < workers:
            answer = httpx.get(f"{url}/{next(batches)}", timeout=120).json()
            assert answer["first"] == 4, "the state of the own lifespan"
            answered.add(answer["process"])
        begin = time.monotonic()
        process.send_signal(signal.SIGTERM)
        status = process.wait(60)
        seconds = time.monotonic() - begin
        assert process.stdout is not None
        printed = process.stdout.read().splitlines()
    assert status in (0, -signal.SIGTERM) and "Traceback" not in err.read_text(), err.read_text()
    assert starts(registry) == more(before, partial=workers)
    restored = f"restore: {{'{NAME}:latest': 'restored'}}"
    assert sorted(printed) == ["own lifespan ended"] * workers + [restored] * workers
    assert seconds < 10, "the report takes a second at most; the machine may be busy"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_of_multiprocessing_reports_at_its_end(
    registry: Served, variables: dict[str, str], method: str
) -> None:
    before = starts(registry)
    command = [sys.executable, str(PROGRAMS / "forks.py"), NAME, method]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert starts(registry) == more(before, hit=1)


def test_a_rank_of_torchrun_reports_at_its_end(
    tmp_path: Path, registry: Served, variables: dict[str, str]
) -> None:
    before = starts(registry)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    command = [sys.executable, *torchrun, str(PROGRAMS / "serve.py"), f"name={NAME}", "small=1"]
    done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    assert starts(registry) == more(before, hit=1), os.linesep.join(done.stderr.splitlines()[-20:])
