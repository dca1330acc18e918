"""Run the builder once: a real registry, entries of `cachesvc warm`, and entries that claim to be of other
machines.

Then run the consumers: fresh processes, or the restore of a consumer that only asks."""

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

from benchmarks.hosts import trap
from cachesvc_client import kinds
from cachesvc_client.bundle.pack import SourceFile
from cachesvc_client.bundle.seal import PublicKey, SigningKey
from cachesvc_client.config.settings import Config
from cachesvc_client.environment.detect import detect
from cachesvc_client.http.registry import Remote
from cachesvc_client.node.installed import RestoreResult
from cachesvc_client.node.store import NodeStore
from cachesvc_client.publication.build_bundle import Draft, build_bundle
from cachesvc_client.publication.publish_bundle import publish_bundle
from cachesvc_client.queries.explain import explain
from cachesvc_client.restore.accept import accept_name
from cachesvc_client.restore.install import install_revision
from cachesvc_client.restore.request import NameRequest
from cachesvc_client.restore.settings import Inquiry, RestoreSettings, RestoreTarget
from cachesvc_client.trust.accept import Acceptance
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import CacheSvcError, Incompatible
from cachesvc_client.wire.manifest.records import Workload
from cachesvc_client.wire.names import Name, Target

from ..e2e.harness import environment
from ..e2e.registries import Served, serve
from .rows import KERNELS, Row

PROGRAMS = Path(__file__).parent / "programs"
GOLDEN = Path(__file__).parents[1] / "golden" / "fingerprints-1.json"
WARMED = "team/matrix"
BASE = {"OMP_NUM_THREADS": "2", "TORCHINDUCTOR_VEC_ISA_OK": "1"}
"""Variables of the builder and of the consumers, which share a precompiled header."""
COMPILES = ("compiles", "retraced", "uncached")
TOLERANCE = 64
"""The allowed difference, in units of the last place of the largest output."""


@dataclass
class Outcome:
    """Holds the outcome of a row. ``reason``: the first reason. ``problem``: how the outcome differs from the
    expected one."""

    row: Row
    state: str
    reason: str = ""
    problem: str = ""


@dataclass
class World:
    place: Path
    registry: Served
    machines: dict[str, dict[str, Any]] = field(default_factory=dict)
    _groups: dict[str, Future[dict[str, dict[str, Any]]]] = field(default_factory=dict)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2))

    def begin(self, rows: Iterable[Row]) -> None:
        """Start the consumers of these rows, two at a time."""
        grouped: dict[str, list[Row]] = {}
        for row in rows:
            if row.group:
                grouped.setdefault(row.group, []).append(row)
        longest_first = sorted(grouped.items(), key=lambda item: -len({row.change for row in item[1]}))
        for group, members in longest_first:
            self._groups[group] = self._pool.submit(self._run_group, group, members)

    def outcome(self, row: Row) -> Outcome:
        """Return the outcome of a row. Raise only errors of the test itself."""
        if row.group:
            if row.group not in self._groups:
                self.begin([row])
            answer = self._groups[row.group].result()[row.change]
            if answer.get("facts"):
                [nearest, *_] = explain(self.config, Name.parse(WARMED), here=answer["facts"]).entries
                answer["explained"] = [one.factor for one in nearest.reasons]
            return judge_process(row, answer)
        return self._restore_and_explain(row)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    # Consumers --------------------------------------------------------------------------------

    def _run_group(self, group: str, rows: list[Row]) -> dict[str, dict[str, Any]]:
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
        """Run a consumer. If a hit is expected, run it without a g++ and with compilers that only record that
        they were called."""
        env = {**environment(place), **self.registry.variables, "CACHESVC_DEADLINE": "60"}
        env["PYTHONPATH"] = os.pathsep.join([str(PROGRAMS), env["PYTHONPATH"]])
        env |= variables
        if hit:
            env["PATH"] = str(trap(place / "trap"))
        result = subprocess.run(
            [python, str(PROGRAMS / "consumer.py"), WARMED, *changes],
            cwd=place / "work",
            env=env,
            capture_output=True,
            text=True,
            timeout=560,
            check=False,
        )
        answers = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
        called = place / "trap" / "called"
        for answer in answers:
            answer["trapped"] = called.read_text() if called.exists() else ""
            answer["log"] = result.stderr[-1500:]
        missing = [name for name in changes if name not in {answer["row"] for answer in answers}]
        return answers + [{"row": name, "error": result.stderr[-1500:]} for name in missing]

    def _restore_and_explain(self, row: Row) -> Outcome:
        """Restore with another fingerprint, and ask `explain`; neither needs torch."""
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
            settings = RestoreSettings(Acceptance([PublicKey(self.registry.trust)]), fingerprint)
            target = RestoreTarget(NodeStore(Path(folder, "store")), lambda: roots)
            try:
                for one in accept_name(NameRequest(name), Inquiry(remote, settings, target, restored)):
                    if (installed := install_revision(one, target, restored)) is not None:
                        restored.installed.append(installed)
            except CacheSvcError as raised:
                error = raised
            files = [path for root in roots.values() for path in root.rglob("*") if path.is_file()]
        nearest = explain(self.config, name, here=fingerprint).entries[0]
        explained = nearest.reasons if row.expect == "told" else nearest.differences
        return judge_restore(row, restored, error, bool(files), [one.factor for one in explained])

    @property
    def config(self) -> Config:
        return Config.read({**self.registry.variables, "HOME": str(self.place)})


def judge_process(row: Row, answer: dict[str, Any]) -> Outcome:
    """Compare the answer of a process with the row's expectation, by counts and numbers."""
    if "error" in answer:
        return Outcome(row, "error", answer["error"][-300:], "the consumer failed")
    reason = answer["reasons"][0] if answer["reasons"] else ""
    quiet = not (answer["compiled"] or answer["tuned"] or answer["compilers"] or answer["trapped"])
    named_factors = (reason.partition(":")[0], *answer["differences"][:1], *answer.get("explained", ())[:1])
    # The log line, the report and `explain` name it.
    named = bool(row.factor) and named_factors == (row.factor,) * 3
    right = answer["difference"] <= TOLERANCE * answer["eps"]
    checks = {
        "hit": (answer["state"] == "hit" and quiet, "not a hit"),
        "retraced": (quiet and named, f"compiled, or {row.factor} is not named first"),
        "compiles": (
            answer["compiled"] > 0 and answer["state"] in ("inert", "partial") and named,
            f"not compiled, or {row.factor} is not named first",
        ),
        "uncached": (answer["compiled"] > 0 and answer["state"] in ("inert", "partial"), "not compiled"),
        "invisible": (True, ""),
    }
    holds, problem = checks[row.expect]
    if not right:
        problem, holds = f"numbers differ by {answer['difference']:.3g}", False
    return Outcome(row, answer["state"], reason, "" if holds else problem)


def judge_restore(
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
    """Start everything until the end of the block, and end every started process."""
    with serve(place) as registry:
        new_world = World(place, registry)
        try:
            _warm(new_world)
            _other_machines(new_world)
            yield new_world
        finally:
            new_world.close()


def _warm(matrix_world: World) -> None:
    """Run the builder by the command that people use."""
    result = subprocess.run(
        [sys.executable, "-m", "cachesvc", "warm", str(PROGRAMS / "warm.toml"), "-j", "2"],
        env={**environment(matrix_world.place / "builder"), **matrix_world.registry.publisher, **BASE},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    config = matrix_world.config
    with Remote(config.url or "", config.token) as remote:
        matrix_world.machines["cpu"] = dict(remote.entries(Name.parse(WARMED))[0].fingerprint)


def _other_machines(matrix_world: World) -> None:
    """Publish entries of machines that are not here: real packs and signatures, other fingerprints."""
    h200 = json.loads(GOLDEN.read_text())["h200"]["fingerprint"]
    cpu = matrix_world.machines["cpu"]
    matrix_world.machines |= {"gpu": h200, "newer": cpu, "unknown": cpu, "older": cpu}
    old = {name: cpu[name] for name in ("torch", "python_abi", "platform", "cpu_isa", "cpu_flags", "schema")}
    graphs = {"device": ["cuda:0"], "grad": ["no_grad"], **KERNELS["as built"]}
    _publish(matrix_world, "gpu", {**h200, "schema": 1}, ("gpu",), graphs)
    _publish(matrix_world, "newer", {**cpu, "schema": 99, "colour": "red"}, ("host",))
    _publish(matrix_world, "unknown", {**cpu, "colour": "red", "shades": ["dark", "x" * 5000]}, ("host",))
    _publish(matrix_world, "older", old, ("host",))


def _publish(
    matrix_world: World,
    name: str,
    fingerprint: dict[str, Any],
    scopes: tuple[str, ...],
    graphs: dict[str, Any] | None = None,
) -> None:
    key = SigningKey.load(Path(matrix_world.registry.signing_key))
    path = matrix_world.place / f"{name}.cachesvc"
    content = b"not a graph, and never loaded here"
    record = SourceFile("inductor", f"fxgraph/aa/f{'a' * 40}/{'b' * 40}", content, 0o644)
    workload = Workload(script=Digest.of(name.encode()))
    draft = Draft(
        Name.parse(f"team/{name}"), Target("made"), fingerprint, workload, scopes, asked=graphs or {}
    )
    build_bundle([record], draft, key, path)
    with Remote(matrix_world.registry.url, matrix_world.registry.token) as remote:
        publish_bundle(remote, path, key)


def _other_venv(place: Path) -> str:
    """Return the Python of this environment under another path: a prefix of its own, whose library folder is
    a link."""
    folder = place / "venv"
    (folder / "bin").mkdir(parents=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (folder / "lib" / version).mkdir(parents=True)
    site = Path(sys.prefix) / "lib" / version / "site-packages"
    (folder / "lib" / version / "site-packages").symlink_to(site, target_is_directory=True)
    shutil.copy(Path(sys.prefix) / "pyvenv.cfg", folder)
    (folder / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
    return str(folder / "bin" / "python")
