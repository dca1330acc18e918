"""The faults that are injected into the folders of cachesvc, and the run of a service with one of them.

A cell is right if the service prints the numbers that it prints without cachesvc, and ends with status 0."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.harness import WARMED, environment, run
from tests.prepared import COMPILES, prepared_python

HERE = Path(__file__).parent
SERVICE = HERE / "service.py"
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "faults.json"
"""What the last runs of the cells did."""
MOMENTS = ("later compile", "first compile", "install", "start", "exit")
CHANGES = "create,write,mkdir,rename,link,unlink,chmod,utime,fsync"
EVERY = f"{CHANGES},open,read,stat,list,flock,mmap,mmapexec,exec,statfs"


def _errors(functions: str, *names: str) -> dict[str, str]:
    """Return a fault for each error, which every call answers from the moment on."""
    return {f"{functions}: {name}": f"{functions} {getattr(errno, name)} 1 0" for name in names}


FAULTS: dict[str, str] = {
    **_errors("create", "EACCES", "EDQUOT", "EIO", "EMFILE", "ENOSPC", "EPERM", "EROFS", "ESTALE"),
    **_errors("open", "EACCES", "EIO", "ENOENT", "ESTALE"),
    **_errors("read", "EIO", "ESTALE"),
    **_errors("write", "EDQUOT", "EFBIG", "EIO", "ENOSPC", "ESTALE"),
    **_errors("rename", "EACCES", "EIO", "ENOSPC", "EXDEV"),
    **_errors("mmapexec", "EPERM"),
    **_errors("mmap", "ENODEV"),
    **_errors("flock", "EIO", "ENOLCK", "ENOSYS", "EOPNOTSUPP"),
    **_errors("exec", "EACCES", "ENOMEM"),
    **_errors("mkdir", "EDQUOT", "EMLINK", "EROFS"),
    **_errors("stat", "EIO", "ESTALE"),
    **_errors("unlink", "EBUSY"),
    **_errors("link", "EPERM"),
    **_errors("fsync", "EIO"),
    **_errors("utime", "EPERM"),
    **_errors("chmod", "EPERM"),
    **_errors("list", "EIO"),
    **_errors("statfs", "ENOSYS"),
    "one write: EIO": f"write {errno.EIO} 1 1",
    "one create: ENOSPC": f"create {errno.ENOSPC} 1 1",
    "every change: EROFS": f"{CHANGES} {errno.EROFS} 1 0",
    "every call: ESTALE": f"{EVERY} {errno.ESTALE} 1 0",
    "files emptied": "empty",
    "files cut in half": "cut",
    "files cut to a tenth": "stub",
    "files overwritten": "overwrite",
    "files removed": "remove_files",
    "folders removed": "remove",
    "folders replaced by files": "replace",
}
"""What is injected: a value of FAULT (inject.c), or a name of DAMAGES (service.py)."""


@dataclass(frozen=True)
class Cell:
    """What a service did with a fault: ``broken`` is empty if it did what it does without cachesvc."""

    broken: str
    failed: int
    """How many calls failed."""
    state: str
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def said(self) -> str:
        """Return what became of the service in a word: what its report says, or where PyTorch went on."""
        if self.broken:
            return "broken"
        return (
            "own folder" if any("goes on in its own folder" in line for line in self.warnings) else self.state
        )


def injector(folder: Path) -> Path:
    """Compile inject.c into a folder."""
    library = folder / "inject.so"
    command = ["gcc", "-O1", "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, HERE / "inject.c", "-ldl"]
    subprocess.run(command, check=True)
    return library


def reference(place: Path, library: Path) -> dict[str, list[float]]:
    """Return what the service prints without cachesvc."""
    return run(str(SERVICE), "trains=3", place=place, prepared=True, **WARMED, LD_PRELOAD=str(library)).answer


def run_cell(
    place: Path,
    library: Path,
    bundle: Path,
    trusted: str,
    fault: str,
    moment: str,
    expected: dict[str, list[float]],
    *more: str,
    prepared: bool = True,
) -> Cell:
    """Run the service with a fault from a moment on.

    ``more``: more arguments of the service. ``prepared``: in an interpreter that has imported torch."""
    place.mkdir(parents=True)
    below = [place / "home/.cache/cachesvc", place / f"tmp/cachesvc-{os.geteuid()}"]
    variables = {
        **WARMED,
        "LD_PRELOAD": str(library),
        "FAULT_BELOW": ":".join(map(str, below)),
        "FAULT_LOG": str(place / "failed"),
        "CACHESVC_TRUSTED_KEYS": trusted,
        "CACHESVC_LOG": "warning",
    }
    env = {**environment(place), **variables}
    python = prepared_python(COMPILES, env) if prepared else [sys.executable]
    start = [*python, str(SERVICE), f"bundle={bundle}"]
    if moment == "start" and " " not in FAULTS[fault]:  # what is damaged is what an earlier start left
        subprocess.run([*start, "moment="], cwd=place / "work", env=env, capture_output=True, check=True)
    command = [*start, *more, f"moment={moment}", f"fault={FAULTS[fault]}", f"report={place}/report"]
    try:
        done = subprocess.run(
            command, cwd=place / "work", env=env, capture_output=True, text=True, timeout=240, check=False
        )
        code, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as error:
        code, out, err = 124, "", (error.stderr or b"").decode(errors="replace")
    broken = ""
    if code:
        broken = f"status {code}: {(err.strip().splitlines() or [''])[-1][:300]}"
    elif any(expected[part] != numbers for part, numbers in json.loads(out).items()):
        broken = "other numbers"
    failed = (place / "failed").read_text().splitlines() if (place / "failed").exists() else []
    told = json.loads((place / "report").read_text()) if (place / "report").exists() else {}
    warnings = tuple(line for line in err.splitlines() if line.strip())
    return Cell(broken, len(failed), told.get("state", ""), tuple(told.get("reasons", ())), warnings)
