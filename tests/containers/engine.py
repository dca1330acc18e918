"""Build images with buildah and run containers with podman, in a storage that is deleted with the tests."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

VARIABLE = "CACHESVC_TEST_CONTAINERS"
"""If it is not set, the tests are skipped: they take minutes, and root."""
PROGRAMS = ("buildah", "podman", "runc")
BASE = "docker.io/library/python:3.12-slim-bookworm"
"""The name of the stand-in for the base, which the Dockerfile names by its digest."""
RESTRICTED = (
    "--read-only",
    # Podman would mount writable folders besides, which Docker and Kubernetes do not.
    "--read-only-tmpfs=false",
    # And it would name the user in /etc/passwd, which they do not either.
    "--passwd=false",
    *("--tmpfs", "/tmp", "--cap-drop", "all", "--security-opt", "no-new-privileges"),
)
"""How the documents and the compose file run an image of the project."""
_SECONDS = 60


_MOUNTS = ["unshare", "--mount", "--pid", "--net", "--fork", "mount", "-t", "tmpfs", "tmpfs", "/tmp"]
"""Makes the namespaces of a container, and mounts a folder in them."""


def unavailable(message: str) -> NoReturn:
    """End the test: fail it where the variable says that containers are required, and skip it elsewhere."""
    if os.environ.get(VARIABLE) == "required":
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


def check_machine() -> None:
    """Skip the test, or fail it, if this machine cannot run containers."""
    if not os.environ.get(VARIABLE):
        pytest.skip("containers take minutes and root: make test-containers runs them")
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        unavailable(f"{', '.join(missing)} not installed (apt-get install {' '.join(missing)})")
    if os.geteuid() != 0:
        unavailable("only root may mount a read-only root: sudo make test-containers")
    if subprocess.run(_MOUNTS, capture_output=True, check=False).returncode:
        unavailable("root may mount nothing here, or make no namespaces")


@contextlib.contextmanager
def memory_folder() -> Iterator[Path]:
    """Mount a folder in memory, at most 4 GiB: a build writes and syncs ten thousands of files, and to delete
    them from a disk takes a minute.

    Its path is short: podman takes no folder of state of more than 50 characters."""
    with tempfile.TemporaryDirectory(prefix="cachesvc-", dir="/tmp", ignore_cleanup_errors=True) as place:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4g,mode=0755", "tmpfs", place], check=True)
        try:
            yield Path(place)
        finally:
            subprocess.run(["umount", "--lazy", place], check=True)


def _run(command: list[str], seconds: float, place: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TMPDIR": str(place)}
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False, env=env)


@dataclass(frozen=True)
class Engine:
    """Holds images, containers, volumes and networks below ``place``."""

    place: Path

    @property
    def _storage(self) -> list[str]:
        folders = ["--root", str(self.place / "images"), "--runroot", str(self.place / "run")]
        return [*folders, "--storage-driver", "overlay"]

    def buildah(self, *words: object, seconds: float = 600) -> str:
        """Run buildah, which must end well, and return what it prints."""
        done = _run(["buildah", *self._storage, *map(str, words)], seconds, self.place)
        assert done.returncode == 0, f"buildah {words}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
        return done.stdout

    def podman_result(self, *words: object, seconds: float = _SECONDS) -> subprocess.CompletedProcess[str]:
        """Run podman and return how it ended."""
        # crun of Debian 12 refuses a machine that has both versions of cgroups; runc does not.
        options = ["--runtime", "runc", "--cgroup-manager", "cgroupfs", "--events-backend", "file"]
        options += ["--network-config-dir", str(self.place / "networks"), "--tmpdir", str(self.place / "tmp")]
        return _run(["podman", *self._storage, *options, *map(str, words)], seconds, self.place)

    def podman(self, *words: object, seconds: float = _SECONDS) -> str:
        """Run podman, which must end well, and return what it prints."""
        done = self.podman_result(*words, seconds=seconds)
        assert done.returncode == 0, f"podman {words}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
        return done.stdout.strip()

    def check(self, image: str) -> None:
        """Skip the tests, or fail them, if this machine starts no container of an image."""
        status, printed = self.once(image, "true")
        if status:
            unavailable(f"this machine starts no container: {printed[-1000:]}")

    def build(self, context: Path, *options: object, tag: str) -> str:
        """Build an image of the Dockerfile's own format, which has the health check, and return its tag."""
        words = ["bud", "--isolation", "chroot", "--network", "host", "--pull=never", "--format", "docker"]
        self.buildah(*words, *options, "-t", tag, context)
        return tag

    def configuration(self, image: str) -> dict[str, Any]:
        """Return what an image says of itself."""
        [loaded] = json.loads(self.podman("image", "inspect", image))
        assert isinstance(loaded, dict)
        return loaded

    @contextlib.contextmanager
    def files(self, image: str) -> Iterator[Path]:
        """Mount an image and return the folder of its root."""
        yield Path(self.podman("image", "mount", image))
        self.podman("image", "unmount", image)

    def volume(self, name: str) -> Path:
        """Return the folder of a named volume."""
        return Path(self.podman("volume", "inspect", name, "--format", "{{.Mountpoint}}"))

    def once(self, image: str, *command: object, options: tuple[object, ...] = RESTRICTED) -> tuple[int, str]:
        """Run a container until it ends. Return its status and all that it printed."""
        done = self.podman_result("run", "--rm", *_limits(), *options, image, *command)
        return done.returncode, done.stdout + _without_notes(done.stderr)

    @contextlib.contextmanager
    def started(
        self, image: str, *command: object, name: str, options: tuple[object, ...] = RESTRICTED
    ) -> Iterator[Container]:
        """Start a container that goes on, and remove it with the block."""
        self.podman("run", "-d", "--name", name, *_limits(), *options, image, *command)
        try:
            yield Container(self, name)
        finally:
            self._remove(name)

    def _remove(self, name: str) -> None:
        """Remove a container. The first attempt fails if the container ends while podman kills it."""
        attempt = self.podman_result("rm", "-f", "-v", "-t", "2", name)
        if attempt.returncode:
            self.podman("rm", "-f", "-v", "-i", name)


def _limits() -> list[str]:
    """Return the options that keep podman from raising limits, for which root may lack the right."""
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ["--ulimit", f"nofile={min(1024, files)}:{files}", "--ulimit", "nproc=4096:4096"]


def _without_notes(errors: str) -> str:
    """Return a container's errors without podman's own remarks, such as that there is no systemd here."""
    return "".join(line for line in errors.splitlines(keepends=True) if not line.startswith("time="))


@dataclass(frozen=True)
class Container:
    """Is a container that was started."""

    engine: Engine
    name: str

    def inspect(self, template: str) -> str:
        return self.engine.podman("inspect", self.name, "--format", template)

    def logs(self) -> str:
        done = self.engine.podman_result("logs", self.name)
        return done.stdout + _without_notes(done.stderr)

    def run(self, *command: object, user: str = "") -> tuple[int, str]:
        """Run a command in the container. Return its status and all that it printed."""
        options = ["--user", user] if user else []
        done = self.engine.podman_result("exec", *options, self.name, *command)
        return done.returncode, done.stdout + _without_notes(done.stderr)

    def healthy(self) -> bool:
        """Run the health check of the image once, as an engine does every some seconds."""
        return self.engine.podman_result("healthcheck", "run", self.name).returncode == 0

    def wait_for_health(self) -> None:
        """Wait until the health check passes. Fail with the logs if the container ends before."""
        until = time.monotonic() + _SECONDS
        while not self.healthy():
            assert self.inspect("{{.State.Status}}") == "running", self.logs()
            assert time.monotonic() < until, self.logs()
            time.sleep(0.3)

    def stop(self, seconds: int) -> tuple[int, float]:
        """Send the image's signal, and SIGKILL after ``seconds``. Return the status of the process, and the
        seconds that it took."""
        begin = time.monotonic()
        self.engine.podman("stop", "-t", seconds, self.name)
        return int(self.inspect("{{.State.ExitCode}}")), time.monotonic() - begin
