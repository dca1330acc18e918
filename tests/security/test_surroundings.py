"""Files and variables around a process: what isolated Python obeys, and a login file that others can read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.registries import client

REPOSITORY = Path(__file__).parents[2]
IMPORT = f"import sys; sys.path.insert(0, {str(REPOSITORY / 'client')!r}); import cachesvc_client.bootstrap"


@pytest.mark.parametrize("option", ["-I", "-E"])
def test_whoever_sets_variables_reaches_no_isolated_interpreter(tmp_path: Path, option: str) -> None:
    log = tmp_path / "processes"
    log.touch()
    child = "import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', ''])"
    environ = {**os.environ, "CACHESVC_OBSERVE": str(log)}
    program = f"{IMPORT}; {child}"  # what the .pth file imports; it asks the same question
    subprocess.run([sys.executable, option, "-c", program], env=environ, check=True, cwd=tmp_path)
    assert log.read_text() == ""
    subprocess.run([sys.executable, "-c", program], env=environ, check=True, cwd=tmp_path)
    assert sys.executable in log.read_text(), "without the option the variable counts"


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620, 0o604])
def test_another_user_of_the_machine_reads_no_login(tmp_path: Path, mode: int) -> None:
    login = tmp_path / ".config/cachesvc/login.json"
    login.parent.mkdir(parents=True)
    login.write_text('{"format":"cachesvc.login/1"}')
    login.chmod(mode)
    done = client("pull", "team/x", "--into", str(tmp_path / "out"), HOME=str(tmp_path))
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert f"chmod 600 {login}" in done.stderr, done.stderr
    login.chmod(0o600)
    assert "chmod" not in client("pull", "team/x", "--into", str(tmp_path / "out"), HOME=str(tmp_path)).stderr
