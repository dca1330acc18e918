"""``python -m tests.golden.release``: write what this version writes, for every later version to read.

A release runs it once: ``release-VERSION.tar.xz`` has a registry's data folder, bundles, a node's store and a
login, and ``names-VERSION.json`` what people and programs call. What is there is replaced only by
``--again``, which is for a version that is not published.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import cachesvc_client
from cachesvc.settings import Settings
from tests.documents.markdown import DOCS
from tests.e2e.registries import Served, prepare, serve
from tools.release_files import ROOT, VERSION

HERE = Path(__file__).parent
REFERENCE = DOCS / "reference"
sys.path[:0] = [str(ROOT / "tests/bundle")]
NAME = "team/bert"
OLD = {"CACHESVC_MAX_AGE": "36500d"}
"""Lets revisions count that were signed years ago."""


def main() -> None:
    """Write both files. End with a message if one is there."""
    target = HERE / f"release-{VERSION}.tar.xz"
    if target.exists() and "--again" not in sys.argv:
        raise SystemExit(f"{target} exists: what a published version wrote stays as it is")
    (HERE / f"names-{VERSION}.json").write_text(json.dumps(names(), indent=1, sort_keys=True) + "\n")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / VERSION
        write(place)
        with tarfile.open(target, "w:xz") as packed:
            packed.add(place, place.name)


def write(place: Path) -> None:
    """Run a registry, a publisher, a service and an administrator, and leave their folders in ``place``."""
    from packing import KEY, make_pack

    from cachesvc_client.bundle.file import write_bundle

    prepare(place, KEY.text)
    bundles = place / "bundles"
    bundles.mkdir()
    for name, lane in (("first", None), ("second", None), ("lane", "pr-1")):
        sequence = 1_700_000_000_000 + len(name)
        pack, manifest = make_pack(place, sequence=sequence, lane=lane)
        write_bundle(bundles / f"{name}.cachesvc", KEY.sign(manifest), pack)
        pack.unlink()
    with serve(place, prepared=False) as served:
        for path in sorted(bundles.iterdir()):
            cachesvc(place, served, "push", path)
        # Nothing of it may end by itself before a later version reads it.
        keep = ("--keep-days", "none", "--keep-revisions", "none", "--unused-days", "none")
        cachesvc(place, served, "admin", "namespaces", "set", "team", *keep)
        words = ("tokens", "create", "--label", "service", "--role", "report", "-n", "team")
        token = cachesvc(place, served, "admin", *words, "--never", "--json")
        (place / "report.token").write_text(json.loads(token)["secret"])
        cachesvc(place, served, "pull", NAME, "--all", "--into", place / "pulled")
        cachesvc(place, served, "node", "team/*", "--once", "--store", place / "store")
        cachesvc(
            place,
            served,
            "login",
            served.url,
            "--token-stdin",
            "--trust",
            f"team={KEY.public}",
            typed=served.token,
        )
        answers = {
            words: json.loads(cachesvc(place, served, *words.split(), "--json"))
            for words in ("ls", f"ls {NAME}", f"show {NAME}", "admin signers list")
        }
        (place / "answers.json").write_text(json.dumps(answers, indent=1))
    with closing(sqlite3.connect(place / "data/index.sqlite3")) as index:
        index.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for leftover in ("log", "ready.json", "data/reserve"):  # the last is room for a full disk, made anew
        (place / leftover).unlink()


def cachesvc(place: Path, served: Served, *words: object, typed: str = "") -> str:
    """Run a command as the user whose folders lie in ``place``, and return what it printed."""
    variables = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("CACHESVC_", "XDG_"))},
        **served.variables,
        **OLD,
        "HOME": str(place / "home"),
        "CACHESVC_STORE": str(place / "store"),
    }
    (place / "home").mkdir(exist_ok=True)
    command = [sys.executable, "-m", "cachesvc", *map(str, words)]
    done = subprocess.run(command, env=variables, input=typed, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


def names() -> dict[str, Any]:
    """Return what people and programs call by name: of Python, variables, settings, commands and routes."""
    functions = {name: getattr(cachesvc_client, name) for name in cachesvc_client.__all__}
    variables = (REFERENCE / "variables.md").read_text().split("| `CACHESVC_")[1:]
    return {
        "python": {
            name: [str(parameter) for parameter in inspect.signature(function).parameters]
            for name, function in functions.items()
            if callable(function)
        },
        "variables": sorted(f"CACHESVC_{row.partition('`')[0]}" for row in variables),
        "settings": sorted(Settings.model_fields),
        "commands": options((REFERENCE / "commands.md").read_text()),
        "routes": sorted(
            re.findall(r"^\| `([A-Z]+ /\S+?)`", (REFERENCE / "rest.md").read_text(), re.MULTILINE)
        ),
    }


def options(page: str) -> dict[str, list[str]]:
    """Return every command of the generated page with its options."""
    parts = [part.partition("\n") for part in page.split("\n### ")[1:]]
    return {
        name: sorted(set(re.findall(r"^\| `[^`|]*?(--[\w-]+)", text, re.MULTILINE)))
        for name, _, text in parts
    }


if __name__ == "__main__":
    main()
