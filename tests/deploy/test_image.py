"""Run the Dockerfile's own steps in a folder: its COPY, RUN, ENV, USER, HEALTHCHECK, ENTRYPOINT and CMD.

No container engine is needed, and none is imitated further: the contents of the base image, layers and sizes
are not seen here. Absolute paths of the file (/src, /build, /venv, /data) become paths below the folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.services.certificate import certificate
from tests.services.process import folder, free_port

from .charts import ROOT

USER = 10001


@dataclass
class Image:
    """Holds the state of a stage: the variables that it sets and the commands that it runs."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)
    words: dict[str, list[str]] = field(default_factory=dict)
    user: str = ""
    shared: bool = True
    """Whether another user may run the Python of the image."""

    def placed(self, text: str) -> str:
        """Return a text with the file's absolute paths moved below ``root``."""
        return re.sub(r"(?<![\w./-])/(src|build|venv|data)\b", lambda match: f"{self.root}/{match[1]}", text)

    def environment(self, **more: str) -> dict[str, str]:
        inherited = {
            name: os.environ[name] for name in os.environ if name.startswith(("PIP_", "SSL_", "UV_"))
        }
        path = f"{self.root}/venv/bin:{self.root}/bin:/usr/bin:/bin"
        return {**inherited, **self.env, "PATH": path, "TMPDIR": f"{self.root}/tmp", **more}

    def as_user(self, command: list[str], **more: str) -> subprocess.Popen[str]:
        """Run a command as the image's user if this process may change its user, with only /data and /tmp
        writable."""
        change = (
            ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"] if os.getuid() == 0 else []
        )
        return subprocess.Popen(
            [*change, *command],
            env=self.environment(**more),
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def done(self, *command: str, **more: str) -> tuple[int, str]:
        process = self.as_user(list(command), **more)
        out, err = process.communicate(timeout=120)
        return process.returncode, out + err


def stages(file: Path) -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """Return the base and the instructions of each stage, with comments removed and continuations joined."""
    text = "\n".join(line for line in file.read_text().splitlines() if not line.startswith("#"))
    instructions_by_stage: dict[str, tuple[str, list[tuple[str, str]]]] = {}
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            instructions_by_stage[name] = (base, [])
            steps = instructions_by_stage[name][1]
        elif word:
            steps.append((word, rest.strip()))
    return instructions_by_stage


STAGES = stages(ROOT / "Dockerfile")


def allowed(source: str) -> bool:
    """Return whether .dockerignore lets a path into the build: it excludes everything that it does not
    name."""
    lines = (ROOT / ".dockerignore").read_text().split()
    assert "*" in lines
    return "!" + source.split("/")[0] in lines


def take(image: Image, stage: str) -> None:
    """Run the steps of a stage, after the steps of the stage that it builds on."""
    base, steps = STAGES[stage]
    if base in STAGES:
        take(image, base)
    for word, rest in steps:
        if word == "ENV":
            pairs = dict(part.split("=", 1) for part in rest.split())
            image.env |= {name: image.placed(value) for name, value in pairs.items() if name != "PATH"}
        elif word == "COPY" and not rest.startswith("--from"):
            *sources, target = rest.split()
            for source in sources:
                assert allowed(source), f"{source} is not in the build's context"
                to = image.root / "src" / target if len(sources) == 1 else image.root / "src" / target / ""
                _copy(ROOT / source, to / Path(source).name if target in ("./", "requirements/") else to)
        elif word == "RUN":
            command = image.placed(rest).replace("install -d -o 10001 -g 10001 -m 0700", "mkdir -p")
            result = subprocess.run(
                ["bash", "-euc", command],
                cwd=image.root / "src",
                env=image.environment(),
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
            )
            assert result.returncode == 0, f"RUN {rest}\n{result.stdout[-2000:]}{result.stderr[-4000:]}"
        elif word in ("ENTRYPOINT", "CMD"):
            image.words[word] = json.loads(rest)
        elif word == "HEALTHCHECK":
            image.words[word] = json.loads(rest.partition("CMD ")[2])
        elif word == "USER":
            image.user = rest


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        skip = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
        shutil.copytree(source, target, ignore=skip, dirs_exist_ok=True)
    else:
        shutil.copy(source, target)


def fresh(root: Path) -> Image:
    """Make an image with a Python that the image's user can run, as the base image has one."""
    for name in ("src", "bin", "tmp"):
        (root / name).mkdir(parents=True)
    root.parent.chmod(0o755)
    system = [path for path in ("/usr/local/bin/python3", "/usr/bin/python3") if _serves(path)]
    (root / "bin" / "python").symlink_to(system[0] if system else sys.executable)
    (root / "tmp").chmod(0o1777)
    return Image(root, shared=bool(system))


def _serves(path: str) -> bool:
    """Return whether a Python is usable: outside a user's private folder, new enough, and with venv."""
    if not os.path.exists(path) or os.path.realpath(path).startswith("/root"):
        return False
    code = "import ensurepip, sys; sys.exit(sys.version_info < (3, 11))"
    return subprocess.run([path, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def client() -> Iterator[Image]:
    with folder("client-image") as place:
        image = fresh(place / "root")
        take(image, "build-client")
        take(image, "client")
        yield image


@pytest.fixture(scope="module")
def server() -> Iterator[Image]:
    with folder("server-image") as place:
        image = fresh(place / "root")
        take(image, "build-server")
        take(image, "server")
        if os.getuid() == 0:
            os.chown(image.root / "data", USER, USER)
        yield image
        written = [path for path in image.root.rglob("*") if path.lstat().st_uid == USER]
        writable = (image.root / "data", image.root / "tmp")
        assert not [path for path in written if not any(map(path.is_relative_to, writable))]


def test_the_client_image_works_alone(client: Image) -> None:
    assert client.user == f"{USER}:{USER}"
    [program] = client.words["ENTRYPOINT"]
    status, text = client.done(program, "--version")
    assert (status, text.startswith("cachesvc-client ")) == (0, True), text
    assert client.done(program, "keygen", f"{client.root}/tmp/key")[0] == 0
    code = (
        "import importlib.util as u, sys; sys.exit(bool(u.find_spec('cachesvc') or u.find_spec('fastapi')))"
    )
    assert client.done("python", "-c", code)[0] == 0, "the thin image holds the server"
    attached = "import sys; sys.exit('cachesvc_client.bootstrap' not in sys.modules)"
    assert client.done("python", "-c", attached)[0] == 1
    for variable in ("CACHESVC_NAME", "CACHESVC_BUNDLE"):
        assert client.done("python", "-c", attached, **{variable: "/x"})[0] == 0, "its .pth file does nothing"
    size = sum(path.lstat().st_size for path in (client.root / "venv").rglob("*"))
    assert size < 60 << 20, f"{size >> 20} MiB"


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
def test_the_server_image_serves_is_healthy_and_ends(server: Image, tls: bool) -> None:
    assert server.user == f"{USER}:{USER}"
    port = str(free_port())
    variables = {"CACHESVC_SERVER_PORT": port, "CACHESVC_SERVER_HOST": "127.0.0.1"}
    if tls:
        variables |= _certificate(server.root / "tmp")
    check = server.words["HEALTHCHECK"]
    assert server.done(*check, **variables)[0] != 0, "healthy, and not started yet"
    process = server.as_user([*server.words["ENTRYPOINT"], *server.words["CMD"]], **variables)
    try:
        until = time.monotonic() + 60
        while server.done(*check, **variables)[0]:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until
        assert (server.root / "data" / "index.sqlite3").exists()
    finally:
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert f"{'https' if tls else 'http'}://127.0.0.1:{port}" in out
    assert server.done(*check, **variables)[0] != 0, "healthy, and ended"


def test_the_image_holds_the_commands_that_compose_and_chart_run(server: Image) -> None:
    entry = server.words["ENTRYPOINT"]
    assert server.done(*entry, "admin", "--local", "migrate", "--apply")[0] == 0
    assert server.done(*entry, "admin", "--local", "gc", "--apply")[0] == 0
    status, text = server.done(
        *entry, "admin", "--local", "tokens", "create", "--label", "x", "--role", "admin", "-n", "*"
    )
    assert (status, "csv_" in text) == (0, True), text
    assert server.done("python", "-c", "import boto3, psycopg, redis")[0] == 0


def test_a_folder_of_another_user_is_refused_in_one_line(server: Image) -> None:
    if os.getuid() != 0 or not server.shared:
        pytest.skip("needs root, to have a folder of another user's")
    entry = server.words["ENTRYPOINT"]
    status, text = server.done(*entry, "serve", CACHESVC_SERVER_DATA=str(server.root / "src"))
    assert (status, text.count("\n")) == (6, 1), text
    assert "not writable" in text or "Permission denied" in text


def test_the_image_has_bytecode_before_its_root_is_read_only(server: Image) -> None:
    package = next((server.root / "venv").glob("lib/python*/site-packages/cachesvc"))
    assert list(package.rglob("__pycache__/*.pyc"))


def _certificate(folder: Path) -> dict[str, str]:
    chain, key = certificate(folder)
    key.chmod(0o644)
    return {"CACHESVC_SERVER_TLS_CERTIFICATE": str(chain), "CACHESVC_SERVER_TLS_KEY": str(key)}
