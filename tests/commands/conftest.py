"""Start a real registry in a process of its own, and make signed bundles to put into it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from cachesvc.cli import COMMANDS
from cachesvc_client.bundle.file import write_bundle
from cachesvc_client.bundle.pack import SourceFile, write_pack
from cachesvc_client.bundle.seal import PublicKey, SigningKey
from cachesvc_client.environment.detect import detect
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest.provenance import Provenance
from cachesvc_client.wire.manifest.records import Manifest, Statement, Workload
from cachesvc_client.wire.names import Lane, Name, Target
from tests.e2e.registries import serve

pytest.importorskip("fastapi", reason="the registry's package is not installed")
REPOSITORY = Path(__file__).parents[2]


@dataclass
class Registry:
    url: str
    token: str
    key: SigningKey
    key_path: Path
    process: subprocess.Popen

    @property
    def trust(self) -> PublicKey:
        return self.key.public


@pytest.fixture(scope="session")
def registry(tmp_path_factory):
    folder = tmp_path_factory.mktemp("registry")
    with serve(folder, variables=clean_environment(folder)) as served:
        path = Path(served.signing_key)
        yield Registry(served.url, served.token, SigningKey.load(path), path, served.process)


@pytest.fixture
def second_registry(tmp_path_factory):
    """Start another registry than ``registry``."""
    folder = tmp_path_factory.mktemp("second")
    with serve(folder, variables=clean_environment(folder)) as served:
        yield served


def clean_environment(home: Path) -> dict[str, str]:
    """Return an environment without variables of cachesvc, without proxies, and with another home."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("CACHESVC_", "TORCH", "TRITON", "XDG_"))
        and not name.lower().endswith("_proxy")
        and name != "CI"  # CI alone changes PyTorch's keys, and `doctor` says so.
    }
    variables["HOME"] = str(home)
    variables["PYTHONPATH"] = f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'client'}"
    return variables


def program_of(words: Sequence[object]) -> str:
    """Return the module of the program that has a command: the client's, where it has it."""
    return "cachesvc_client" if words and words[0] in COMMANDS["client"] else "cachesvc"


@pytest.fixture
def command(tmp_path, registry):
    """Return a function that runs ``cachesvc-client``, or of commands that it has not ``cachesvc``, as a user
    of this registry and returns the exit status, stdout and stderr. ``typed``: standard input."""
    environment = clean_environment(tmp_path)
    environment |= {
        "CACHESVC_URL": registry.url,
        "CACHESVC_TOKEN": registry.token,
        "CACHESVC_TRUSTED_KEYS": registry.trust,
        "CACHESVC_STORE": str(tmp_path / "store"),
    }

    def run(*words: object, typed: str | None = None, **variables: str | None) -> tuple[int, str, str]:
        chosen = {**environment, **variables}
        result = subprocess.run(
            [sys.executable, "-m", program_of(words), *map(str, words)],
            input=typed,
            env={name: value for name, value in chosen.items() if value is not None},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return result.returncode, result.stdout, result.stderr

    return run


@pytest.fixture
def admin(tmp_path, registry):
    """Runs ``cachesvc admin``, which must succeed; returns its stdout."""
    environment = clean_environment(tmp_path)
    environment |= {"CACHESVC_URL": registry.url, "CACHESVC_TOKEN": registry.token}

    def run(*words: str) -> str:
        program = [sys.executable, "-m", "cachesvc", "admin", *words]
        done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def bundle(tmp_path, registry):
    """Return a function that makes a signed bundle file for this machine's fingerprint, changed by
    ``differs``.

    ``file``: the path inside Inductor's folder. No kind knows the default path, so nobody installs the
    file."""

    def make(
        name: str,
        target: str = "bert/default",
        *,
        content: bytes = b"kernel",
        file: str = "ab/cab.py",
        key: SigningKey | None = None,
        sequence: int | None = None,
        lane: str | None = None,
        path: Path | None = None,
        graphs: dict[str, list[str]] | None = None,
        provenance: Provenance | None = None,
        model: bytes | None = None,
        deferrable: bool | None = None,
        **differs: object,
    ) -> Path:
        parsed = Name.parse(name)
        pack = tmp_path / f"{Digest.of(content).hex[:12]}.pack"
        with open(pack, "wb") as out:
            contents = write_pack([SourceFile("inductor", file, content)], out)
        statement = Statement(
            parsed.namespace,
            parsed.name,
            Target(target),
            sequence or time.time_ns() // 1_000_000,
            tag=parsed.tag,
            lane=Lane(lane) if lane else None,
        )
        fingerprint = {**detect({}), "torch": "2.13.0+cpu", **differs}
        manifest = Manifest(
            statement,
            contents.pack,
            contents.frames,
            contents.files,
            fingerprint,  # type: ignore[arg-type]
            Workload(model=Digest.of(model))
            if model is not None
            else Workload(script=Digest.of(target.encode())),
            scopes=("host",),
            asked=graphs,
            deferrable=deferrable,
            attestation=provenance.statement(name, contents.pack.digest) if provenance else None,
        )
        file_path = path or tmp_path / f"{len(list(tmp_path.iterdir()))}.cachesvc"
        write_bundle(file_path, (key or registry.key).sign(manifest), pack)
        return file_path

    return make


@pytest.fixture
def log_of_a_service(tmp_path, registry):
    """Return a function that attaches a service without any logging configuration to a name, waits for the
    restore, and returns the lines on stderr."""
    environment = {
        **clean_environment(tmp_path),
        "CACHESVC_URL": registry.url,
        "CACHESVC_TOKEN": registry.token,
        "CACHESVC_TRUSTED_KEYS": registry.trust,
    }

    def run(name: str, **variables: str) -> list[str]:
        code = f"import cachesvc_client; cachesvc_client.attach({name!r}).wait(60)"
        result = subprocess.run(
            [sys.executable, "-c", code],
            env={**environment, **variables},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert result.returncode == 0, result.stderr
        return result.stderr.splitlines()

    return run
