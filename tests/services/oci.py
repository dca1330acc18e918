"""Run docker's registry of OCI images, which keeps everything in a folder of its own."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .process import absent, connects, folder, free_port, running, until


@contextlib.contextmanager
def oci_registry_server(
    *, deletes: bool = True, auth: dict[str, Any] | None = None, tls: tuple[Path, Path] | None = None
) -> Iterator[str]:
    """Return ``127.0.0.1:port`` of an empty registry. ``auth``: that section of its configuration; ``tls``:
    the files of its certificate and key."""
    program = shutil.which("docker-registry")
    if program is None:
        absent("docker-registry", "docker-registry")
    with folder("oci") as place:
        address = f"127.0.0.1:{free_port()}"
        http: dict[str, Any] = {"addr": address}
        if tls is not None:
            http["tls"] = {"certificate": str(tls[0]), "key": str(tls[1])}
        configuration = {
            "version": 0.1,
            "log": {"level": "warn"},
            "storage": {
                "filesystem": {"rootdirectory": str(place / "data")},
                "delete": {"enabled": deletes},
            },
            "http": http,
            **({"auth": auth} if auth else {}),
        }
        file = place / "config.yml"
        file.write_text(json.dumps(configuration))
        with running([program, "serve", str(file)], place) as process:
            until(lambda: connects(int(address.rpartition(":")[2])), process, place)
            yield address


def skopeo(*words: object) -> str:
    """Run skopeo without checks of policy and certificates, which are no part of these tests. Return what it
    prints."""
    program = shutil.which("skopeo")
    if program is None:
        absent("skopeo", "skopeo")
    command = [program, "--insecure-policy", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        pytest.fail(f"{command}: {done.stderr}")
    return done.stdout
