"""The builder's side, once: a real registry, entries that `cachesvc warm` made, and entries that say that
they are of other machines. And the consumers: fresh processes, or the restore of one that only asks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.hosts import QUICK, trap
from cachesvc_client import kinds
from cachesvc_client.bundle.pack import SourceFile
from cachesvc_client.bundle.seal import PublicKey, SigningKey
from cachesvc_client.commands.explain import explain
from cachesvc_client.config import Config
from cachesvc_client.environment.detect import detect
from cachesvc_client.http.registry import Remote
from cachesvc_client.node.installed import RestoreResult
from cachesvc_client.node.store import NodeStore
from cachesvc_client.publication.build_bundle import Draft, build_bundle
from cachesvc_client.publication.publish_bundle import publish_bundle
from cachesvc_client.restore.plan import NameRequest, RestoreContext
from cachesvc_client.restore.revision_restore import accept_revisions
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import CacheSvcError, Incompatible
from cachesvc_client.wire.names import Name, Target
from cachesvc_client.wire.records import Workload

from ..e2e.harness import environment
from ..e2e.registries import Served, serve
from .rows import KERNELS, Row

PROGRAMS = Path(__file__).parent / "programs"
GOLDEN = Path(__file__).parents[1] / "golden" / "fingerprints-1.json"
WARMED = "team/matrix"
BASE = {"OMP_NUM_THREADS": "2", **QUICK}
"""Variables of builder and consumers alike."""
COMPILES = ("compiles", "retraced")
TOLERANCE = 64
"""Units of the last place, of the largest output."""


@dataclass
class Outcome:
    """What was seen of a row. ``said``: the first reason. ``problem``: how it is not what is expected."""

    row: Row
    state: str
    said: str = ""
    problem: str = ""


@dataclass
class World:
    place: Path
    registry: Served
    machines: dict[str, dict[str, Any]] = field(default_factory=dict)
    _groups: dict[str, Future[dict[str, dict[str, Any]]]] = field(default_factory=dict)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2))

    def begin(self, rows: Iterable[Row]) -> None:
        """Starts the consumers of these rows, two at a time."""
        grouped: dict[str, list[Row]] = {}
        for row in rows:
            if row.group:
                grouped.setdefault(row.group, []).append(row)
        longest_first = sorted(grouped.items(), key=lambda item: -len({row.change for row in item[1]}))
        for group, members in longest_first:
            self._groups[group] = self._pool.submit(self._consumed, group, members)

    def outcome(self, row: Row) -> Outcome:
        """What happened; raises only what is wrong with the test itself."""
        if row.group:
            if row.group not in self._groups:
                self.begin([row])
            seen = self._groups[row.group].result()[row.change]
            if seen.get("facts"):
                [nearest, *_] = explain(self.config, Name.parse(WARMED), here=seen["facts"]).entries
                seen["explained"] = [one.factor for one in nearest.reasons]
            return judge_process(row, seen)
        return self._asked(row)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    # Consumers --------------------------------------------------------------------------------

    def _consumed(self, group: str, rows: list[Row]) -> dict[str, dict[str, Any]]:
        changes = list(dict.fromkeys(row.change for row in rows))
        place = self.place / "consumers" / group.replace(" ", "-").replace("=", "-").replace("/", "-")
        variables = {**BASE, **rows[0].variables, "FACTS": json.dumps(rows[0].facts)}
        python = sys.executable
        if group == "venv":
            python = _other_venv(place)
        if group == "own folder":
            variables["TORCHINDUCTOR_CACHE_DIR"] = str(place / "own")
        if group == "mtimes":
            self._run(place, python, changes, variables, hit=True)
            for path in place.rglob("*"):
                os.utime(path, (1.0, 1.0), follow_symlinks=False)
        hit = not any(row.expect in COMPILES for row in rows)
        answers = self._run(place, python, changes, variables, hit=hit)
        return {answer["row"]: answer for answer in answers}

    def _run(
        self, place: Path, python: str, changes: list[str], variables: dict[str, str], *, hit: bool
    ) -> list[dict[str, Any]]:
        """Where a hit is expected, without a g++, and with compilers that only tell that they were called."""
        env = {**environment(place), **self.registry.variables, "CACHESVC_DEADLINE": "60"}
        env["PYTHONPATH"] = os.pathsep.join([str(PROGRAMS), env["PYTHONPATH"]])
        env |= variables
        if hit:
            env["PATH"] = str(trap(place / "trap"))
        done = subprocess.run(
            [python, str(PROGRAMS / "consumer.py"), WARMED, *changes],
            cwd=place / "work",
            env=env,
            capture_output=True,
            text=True,
            timeout=560,
            check=False,
        )
        answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        called = place / "trap" / "called"
        for answer in answers:
            answer["trapped"] = called.read_text() if called.exists() else ""
            answer["log"] = done.stderr[-1500:]
        missing = [name for name in changes if name not in {answer["row"] for answer in answers}]
        return answers + [{"row": name, "error": done.stderr[-1500:]} for name in missing]

    def _asked(self, row: Row) -> Outcome:
        """A restore with another fingerprint, and what `explain` says; no torch is needed for either."""
        here = {**self.machines[row.of], **row.facts}
        if row.variables:
            here |= detect({**BASE, **row.variables})
        fingerprint = {name: value for name, value in here.items() if value is not None}
        name = Name.parse(WARMED if row.of == "cpu" else f"team/{row.of}")
        restored, error = RestoreResult(), None
        with (
            tempfile.TemporaryDirectory(dir=self.place) as folder,
            Remote(self.registry.url, self.registry.token) as remote,
        ):
            roots = {kind: Path(folder, kind) for kind in kinds.RULES}
            means = RestoreContext(
                NodeStore(Path(folder, "store")),
                [PublicKey(self.registry.trust)],
                fingerprint,
                kinds.RULES,
                lambda: roots,
            )
            try:
                accept_revisions(NameRequest(name), remote, means, restored)
                restored.installed.extend(one for held in means.revisions if (one := held.install(None)))
            except CacheSvcError as raised:
                error = raised
            files = [path for root in roots.values() for path in root.rglob("*") if path.is_file()]
        nearest = explain(self.config, name, here=fingerprint).entries[0]
        explained = nearest.reasons if row.expect == "told" else nearest.differences
        return judge_asked(row, restored, error, bool(files), [one.factor for one in explained])

    @property
    def config(self) -> Config:
        return Config.read({**self.registry.variables, "HOME": str(self.place)})


def judge_process(row: Row, seen: dict[str, Any]) -> Outcome:
    """Against the row's expectation, by counts and numbers."""
    if "error" in seen:
        return Outcome(row, "error", seen["error"][-300:], "the consumer failed")
    said = seen["reasons"][0] if seen["reasons"] else ""
    quiet = not (seen["compiled"] or seen["tuned"] or seen["compilers"] or seen["trapped"])
    told = (said.partition(":")[0], *seen["differences"][:1], *seen.get("explained", ())[:1])
    named = bool(row.factor) and told == (row.factor,) * 3  # in the log line, the report and `explain`
    right = seen["difference"] <= TOLERANCE * seen["eps"]
    checks = {
        "hit": (seen["state"] == "hit" and quiet, "not a hit"),
        "retraced": (quiet and named, f"compiled, or {row.factor} is not named first"),
        "compiles": (
            seen["compiled"] > 0 and seen["state"] in ("inert", "partial") and named,
            f"not compiled, or {row.factor} is not named first",
        ),
        "invisible": (True, ""),
    }
    holds, problem = checks[row.expect]
    if not right:
        problem, holds = f"numbers differ by {seen['difference']:.3g}", False
    return Outcome(row, seen["state"], said, "" if holds else problem)


def judge_asked(
    row: Row, restored: RestoreResult, error: CacheSvcError | None, files: bool, explained: list[str]
) -> Outcome:
    if row.expect in ("installed", "told"):
        named = explained[:1] == ([row.factor] if row.factor else [])
        holds = error is None and bool(restored.installed) and files and named
        problem = "" if holds else f"refused, or not told so ({explained})"
        return Outcome(row, "installed" if files else "refused", str(error or ""), problem)
    named = bool(restored.rejected) and restored.rejected[0].differences[0].factor == row.factor
    holds = isinstance(error, Incompatible) and not files and named and explained[:1] == [row.factor]
    problem = "" if holds else f"installed, or {row.factor} is not named first ({explained})"
    return Outcome(row, "refused" if not files else "installed", str(error or ""), problem)


@contextmanager
def world(place: Path) -> Iterator[World]:
    """Everything, until the end of the block; ends what it started."""
    with serve(place) as registry:
        made = World(place, registry)
        try:
            _warm(made)
            _other_machines(made)
            yield made
        finally:
            made.close()


def _warm(made: World) -> None:
    """The builder: the command that people use."""
    done = subprocess.run(
        [sys.executable, "-m", "cachesvc", "warm", str(PROGRAMS / "warm.toml"), "-j", "2"],
        env={**environment(made.place / "builder"), **made.registry.publisher, **BASE},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    config = made.config
    with Remote(config.url or "", config.token) as remote:
        made.machines["cpu"] = dict(remote.entries(Name.parse(WARMED))[0].fingerprint)


def _other_machines(made: World) -> None:
    """Entries of machines that are not here: real packs and signatures, other fingerprints."""
    h200 = json.loads(GOLDEN.read_text())["h200"]["fingerprint"]
    cpu = made.machines["cpu"]
    made.machines |= {"gpu": h200, "newer": cpu, "unknown": cpu, "older": cpu}
    old = {name: cpu[name] for name in ("torch", "python_abi", "platform", "cpu_isa", "cpu_flags", "schema")}
    asked = {"device": ["cuda:0"], "grad": ["no_grad"], **KERNELS["as built"]}
    _publish(made, "gpu", {**h200, "schema": 1}, ("gpu",), asked)
    _publish(made, "newer", {**cpu, "schema": 99, "colour": "red"}, ("host",))
    _publish(made, "unknown", {**cpu, "colour": "red", "shades": ["dark", "x" * 5000]}, ("host",))
    _publish(made, "older", old, ("host",))


def _publish(
    made: World,
    name: str,
    fingerprint: dict[str, Any],
    scopes: tuple[str, ...],
    asked: dict[str, Any] | None = None,
) -> None:
    key = SigningKey.load(Path(made.registry.signing_key))
    path = made.place / f"{name}.cachesvc"
    content = b"not a graph, and never loaded here"
    record = SourceFile("inductor", f"fxgraph/aa/f{'a' * 40}/{'b' * 40}", content, 0o644)
    workload = Workload(script=Digest.of(name.encode()))
    draft = Draft(
        Name.parse(f"team/{name}"), Target("made"), fingerprint, workload, scopes, asked=asked or {}
    )
    build_bundle([record], draft, key, path)
    with Remote(made.registry.url, made.registry.token) as remote:
        publish_bundle(remote, path, key)


def _other_venv(place: Path) -> str:
    """This environment under another path: a prefix of its own, whose library folder is a link."""
    folder = place / "venv"
    (folder / "bin").mkdir(parents=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (folder / "lib" / version).mkdir(parents=True)
    site = Path(sys.prefix) / "lib" / version / "site-packages"
    (folder / "lib" / version / "site-packages").symlink_to(site, target_is_directory=True)
    shutil.copy(Path(sys.prefix) / "pyvenv.cfg", folder)
    (folder / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
    return str(folder / "bin" / "python")
