"""Run the processes of one batch of rows, each on a host of its own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.hosts import QUICK, Failed, Host

ROOT = Path(__file__).parents[3]
CLIENT = "HUNT_CLIENT"
"""The variable that names another folder of the client under test."""


def commit_of_client() -> str:
    """Return the commit of the client under test; an empty text if it is in no repository."""
    command = ["git", "-C", os.environ.get(CLIENT, str(ROOT)), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def batches(rows: Sequence[Mapping[str, Any]], size: int) -> Iterator[list[Mapping[str, Any]]]:
    """Yield rows that the same processes can try: those whose processes differ in the same way."""
    alike: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        facts = [row["variables"], row["flags"], row["lowered"]]
        facts += [row["direction"]] if row["variables"] or row["flags"] else []
        alike.setdefault(json.dumps(facts), []).append(row)
    for members in alike.values():
        count = -(-len(members) // size)
        yield from (members[start::count] for start in range(count))


def run(
    python: Path,
    rows: Sequence[Mapping[str, Any]],
    cases: Path,
    folder: Path,
    frames: bool,
    serving: bool = False,
    also: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Build, record and try the rows of a batch. ``also``: more variables of its processes. Raises ``Failed``
    if a process fails."""
    folder.mkdir(parents=True)
    from . import client

    public = client.new_key(folder / "signing.key")
    batch = {"cases": str(cases), "rows": rows, "frames": frames, "serving": serving}
    batch["lowered"] = rows[0]["lowered"]
    path = folder / "batch.json"
    path.write_text(json.dumps(batch))
    direction = rows[0]["direction"]
    for what, side in (("build", "builder"), ("record", "builder"), ("try", "service")):
        if what == "record" and not frames:
            continue
        differs = side == direction and bool(rows[0]["variables"] or rows[0]["flags"])
        variables = {
            "CACHESVC_TRUSTED_KEYS": public,
            **(also or {}),
            **(rows[0]["variables"] if differs else {}),
        }
        flags = tuple(rows[0]["flags"]) if differs else ()
        _worker(python, folder / what, variables, flags, what, path)
    return [json.loads(line) for line in (folder / "tried.jsonl").read_text().splitlines()]


def _worker(
    python: Path, place: Path, variables: Mapping[str, str], flags: Sequence[str], *arguments: Any
) -> None:
    common = {
        **QUICK,
        "TORCHINDUCTOR_VEC_ISA_OK": "0",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
    }
    module("worker", python, place, {**common, **variables}, flags, arguments)


def module(
    name: str,
    python: Path,
    place: Path,
    variables: Mapping[str, str],
    flags: Sequence[str] = (),
    arguments: Sequence[Any] = (),
) -> None:
    """Run a module of this package. Raises ``Failed`` if it fails."""
    client = os.environ.get(CLIENT, str(ROOT / "client"))
    paths = os.pathsep.join([str(ROOT), client])
    command = [str(python), *flags, "-m", f"tests.differences.hunt.{name}", *map(str, arguments)]
    if not any(flag.startswith("-W") for flag in flags):
        command[1:1] = ["-W", "ignore"]
    host = Host(place)
    result = subprocess.run(
        command,
        env=host.environment() | {"PYTHONPATH": paths} | dict(variables),
        cwd=place / "work",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise Failed(f"{' '.join(command)}: status {result.returncode}\n{result.stderr[-3000:]}")
