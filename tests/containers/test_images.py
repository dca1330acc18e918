"""What the images hold, and what they do not: measured on the images that buildah made of the Dockerfile."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.charts import ROOT

from .conftest import Image
from .engine import BASE, RESTRICTED

USER = 10001
COMPILERS = re.compile(
    r"^([\w-]+-)?(cc|c\+\+|gcc|g\+\+|clang|clang\+\+|ld|as|nvcc|ptxas|rustc|go)(-[\d.]+)?$"
)
LARGEST = {"client": 60 << 20, "server": 200 << 20}
"""Bytes that an image may add to its base. Measured on 2026-11-25: 46 and 163 MB."""


@pytest.fixture(params=["client", "server"])
def image(request: pytest.FixtureRequest) -> Image:
    built: Image = request.getfixturevalue(f"{request.param}_image")
    return built


def paths(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield each path below a root, as it is named in the container, with its status."""
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder) / name
            yield "/" + str(path.relative_to(root)), path.lstat()


def added(image: Image) -> dict[str, os.stat_result]:
    """Return what an image has and its base has not."""
    with image.engine.files(BASE) as base:
        there = {path for path, _ in paths(base)}
    with image.engine.files(image.tag) as root:
        return {path: status for path, status in paths(root) if path not in there}


def test_an_image_adds_its_programs_and_nothing_that_gives_rights(image: Image) -> None:
    new = added(image)
    places = {path.split("/")[1] for path in new if not any(lent.startswith(path) for lent in image.lent)}
    assert places == ({"venv", "data"} if "client" not in image.tag else {"venv"})
    kept = {path: status for path, status in new.items() if path.startswith(("/venv", "/data"))}
    special = stat.S_ISUID | stat.S_ISGID
    assert [path for path, status in kept.items() if status.st_mode & special] == []
    ours = [path for path, status in kept.items() if (status.st_uid, status.st_gid) != (0, 0)]
    assert ours == [path for path in kept if path == "/data"]
    anybody = [p for p, s in kept.items() if s.st_mode & stat.S_IWOTH and not stat.S_ISLNK(s.st_mode)]
    assert anybody == [], "whoever runs in the container may change these"
    assert [path for path in kept if COMPILERS.match(Path(path).name)] == [], "a compiler"
    assert [path for path in kept if path.endswith("site-packages/pip")] == []
    assert [path for path in kept if re.search(r"site-packages/cachesvc_client/.*\.pyc$", path)], (
        "no bytecode"
    )
    size = sum(status.st_size for status in kept.values())
    print(f"{image.tag} adds {size / 1e6:.0f} MB in {len(kept)} paths to its base")
    assert size < LARGEST["client" if "client" in image.tag else "server"], size


def test_an_image_says_who_runs_it_and_nothing_of_the_machine_that_built_it(image: Image) -> None:
    told = image.engine.configuration(image.tag)
    config = told["Config"]
    assert config["User"] == f"{USER}:{USER}"
    labels = {
        name: value for name, value in config["Labels"].items() if name.startswith("org.opencontainers.")
    }
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert labels["org.opencontainers.image.title"] == Path(image.tag.partition(":")[0]).name
    assert labels["org.opencontainers.image.description"]
    names = {variable.partition("=")[0] for variable in config["Env"]}
    server = {"HOME", "CACHESVC_SERVER_HOST", "CACHESVC_SERVER_DATA"}
    expected = {"PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "PATH"}
    assert names == (expected if "client" in image.tag else expected | server)
    history = str(told.get("History"))
    for lent in image.lent:
        assert lent not in history


def test_the_health_check_and_the_entry_of_the_server(server_image: Image) -> None:
    told = server_image.engine.configuration(server_image.tag)
    config, check = told["Config"], told["Healthcheck"]
    assert (config["Entrypoint"], config["Cmd"]) == (["cachesvc"], ["serve"])
    assert (list(config["Volumes"]), list(config["ExposedPorts"])) == (["/data"], ["8750/tcp"])
    assert config["StopSignal"] == "SIGTERM"
    assert (check["Test"][:3], check["Interval"], check["Timeout"]) == (
        ["CMD", "python", "-c"],
        10_000_000_000,
        3_000_000_000,
    )


def test_a_planted_compiler_would_be_found(server_image: Image, tmp_path: Path) -> None:
    engine = server_image.engine
    file = tmp_path / "Dockerfile"
    file.write_text(
        f"FROM {server_image.tag}\nUSER 0\n"
        "RUN cp /bin/true /venv/bin/g++-12 && cp /bin/true /venv/bin/x && chmod 4755 /venv/bin/x\n"
    )
    tag = engine.build(tmp_path, tag="localhost/cachesvc-planted:1")
    planted = Image(engine, tag, server_image.lent)
    with pytest.raises(AssertionError, match="/venv/bin/x"):
        test_an_image_adds_its_programs_and_nothing_that_gives_rights(planted)
    with pytest.raises(AssertionError, match=r"g\+\+-12"):
        assert [path for path in added(planted) if COMPILERS.match(Path(path).name)] == []


def test_the_thin_client_works_alone(client_image: Image, server_image: Image) -> None:
    engine, tag = client_image.engine, client_image.tag
    version = re.search(r'__version__ = "(.*)"', (ROOT / "client/cachesvc_client/__init__.py").read_text())
    assert version
    assert engine.once(tag, "--version") == (0, f"cachesvc-client {version[1]}\n")
    assert engine.once(tag, "environment")[0] == 0
    assert engine.once(server_image.tag, "keygen", "/tmp/key")[0] == 0
    status, text = engine.once(server_image.tag, "keygen", "/key")
    assert (status != 0, "Read-only file system" in text, text.count("\n")) == (True, True, 1), text
    code = (
        "import importlib.util as u, sys; sys.exit(bool(u.find_spec('cachesvc') or u.find_spec('fastapi')))"
    )
    python = (*RESTRICTED, "--entrypoint", "python")
    assert engine.once(tag, "-c", code, options=python)[0] == 0, "the thin image holds the server"
    attached = "import sys; sys.exit('cachesvc_client.bootstrap' not in sys.modules)"
    assert engine.once(tag, "-c", attached, options=python)[0] == 1
    for variable in ("CACHESVC_NAME=/x", "CACHESVC_BUNDLE=/x"):
        status, text = engine.once(tag, "-c", attached, options=(*python, "--env", variable))
        assert status == 0, "its .pth file does nothing"
