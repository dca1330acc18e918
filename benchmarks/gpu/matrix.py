"""Measure the workload matrix: the command line warms every row, and fresh processes restore it.

    python benchmarks/gpu/matrix.py --out DIR [--rows 1-4,15] [--budget 560]

For a machine without network: needs this tree, its requirements and torch. It starts an embedded registry.
*Prepare*: ``cachesvc warm`` for each row, several at once; for rows with baselines also a cold process of
PyTorch alone and one that fills a Redis cache. *Measure*, each process on a host of its own (empty HOME,
TMPDIR and folders), the builder's folders gone; alone where it is compared with others. What is timed starts
in the directory that was warmed for, as containers do, for cuDNN's kernels hold it:

    ours, ours again    restored from the registry, a PATH without compilers; then once more on that node
    ours audited        on one more host, in another directory, not timed: all started processes are listed
    local first/settled PyTorch alone over the cold process's folders, where they were made
    folder copy         TORCHINDUCTOR_CACHE_DIR copied to a fresh host, the folders it was made in gone
    mega-cache          load_cache_artifacts() on a fresh host
    Redis               PyTorch's remote cache, a redis-server of ours on loopback, on a fresh host

Without a GPU the rows are reduced. Writes ``matrix.json`` after every step, and ``logs.txt``; what does not
fit into the budget is left out and said so. Exit status 0 if every row hits.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import itertools
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).resolve().parent
TREE = HERE.parent.parent
sys.path[0:1] = [str(HERE), str(TREE), str(TREE / "client")]

import zstandard  # noqa: E402
from rows import Row, choose_rows, family  # noqa: E402

from benchmarks.cold_start import redis_bytes, redis_server  # noqa: E402
from benchmarks.conditions import gpus  # noqa: E402
from benchmarks.hosts import (  # noqa: E402
    Failed,
    Host,
    Registry,
    cachesvc,
    compile_packages,
    registry,
    running_process,
    trap,
    use_this_tree,
)
from cachesvc.cli.signals import interruptible  # noqa: E402

LOCAL = ("local first", "local settled")
MOVED = ("folder copy", "mega-cache", "Redis")
OURS = ("ours", "ours again", "ours audited")
METHODS = ("cold", *LOCAL, *MOVED, *OURS)
TIMED = METHODS[:-1]
STEPS = ("facts", "sharing", "kernel_edit")
COUNTS = ("compilations", "tuning_runs", "compiler_processes")
CUTS = ("none", "without both", "collector not held", "key when asked", "prime in the background")
EDITS = {
    "20": ("user_kernels.py", "_finished(total, scale),", "_finished(total, scale) + 1.0,", "triton_kernels"),
    "20 helper": ("user_kernels.py", "return total * scale", "return 2.0 * total * scale", "triton_kernels"),
    "20 constant": ("user_kernels.py", "tl.constexpr(0.0)", "tl.constexpr(1.0)", "triton_kernels"),
    "21": ("user_operators.py", "gradient * 2 * x", "gradient * 3 * x", "python_operators"),
}
"""For each edit of a row: the file, the text and its replacement, and the factor that must be named first.
The edits are of a Triton kernel's body, of a function that it calls and of a constant (which need a GPU), and
of an operator's gradient, which is in no key of PyTorch's."""
PROGRAM = re.compile(r"(?:^|(?<==))/[^ ]*/")
"""Matches the folders before a program's name, alone or as a variable's value."""
SWITCHES = ("FX_GRAPH", "AUTOGRAD", "AUTOTUNE")
GPU_SWITCHES = (*SWITCHES, "BUNDLED_AUTOTUNE")
"""PyTorch's remote caches; without Triton the bundled one fails the compile (torch 2.13)."""
Answer = dict[str, Any]


class Matrix:
    """Is one run over some rows; ``result`` is what the run writes."""

    def __init__(self, options: argparse.Namespace, scratch: Path, rows: list[Row]) -> None:
        self.options, self.scratch, self.rows = options, scratch, rows
        self.service = scratch / "service"
        self.service.mkdir()
        self.begin = time.monotonic()
        self.registry: Registry | None = None
        self.redis: str | None = None
        self.lock = threading.Lock()
        self.logs = (options.out / "logs.txt").open("w")
        self.result: Answer = {
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "reduced": not gpus(),
            "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "gpus": gpus()},
            "tracing": options.tracing,
            "at_once": {"prepared": options.jobs, "measured": options.measure},
            "rows": {row.id: {"title": row.title, "options": row.options, "runs": {}} for row in rows},
        }

    @property
    def spent(self) -> float:
        return time.monotonic() - self.begin

    @property
    def left(self) -> float:
        return float(self.options.budget - self.spent)

    def run(self) -> None:
        """Run all steps within the budget."""
        if self.options.bytecode:
            self.result["bytecode"] = compile_packages(self.scratch / "bytecode")
            print(f"[{self.spent:6.1f} s] bytecode of all packages", flush=True)
        with ExitStack() as stack:
            self.registry = stack.enter_context(registry(self.scratch / "registry"))
            self._start_redis(stack)
            for row in self.rows:
                (self.scratch / f"{row.id}.json").write_text(row.json())
            self._prepare()
            self._measure()
            if "kernel_edit" in self.options.steps:
                self.kernel_edit()
            for row in self.rows:
                if row.id in self.options.alone.split(","):
                    self.run_guarded(self.alone, row)
            for row in self.rows:
                if row.id in self.options.dissect.split(","):
                    self.run_guarded(self.dissect, row)
        self.result["spent"] = round(self.spent, 1)
        self.save()

    def _start_redis(self, stack: ExitStack) -> None:
        if not any(map(self.has_baselines, self.rows)) or "Redis" not in self.options.methods:
            return
        try:
            self.redis = stack.enter_context(redis_server(self.scratch))
        except (OSError, Failed) as error:
            self.result["redis"] = f"left out: {error}"

    def has_baselines(self, row: Row) -> bool:
        """Return whether a row is measured against PyTorch's own means."""
        selection = self.options.baselines
        return bool(
            row.anchor if selection == "anchors" else selection == "all" or row.id in selection.split(",")
        )

    # Prepare ----------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Warm all rows and make the starting points of the baselines, the longest first."""
        works: list[tuple[float, Callable[[Row], None], Row]] = []
        for row in self.rows:
            works.append((row.minutes * 2, self.warm, row))
            if self.has_baselines(row):
                works.append((row.minutes, self.cold, row))
                if self.redis:
                    works.append((row.minutes, self.fill, row))
        works.sort(key=lambda work: -work[0])
        with ThreadPoolExecutor(self.options.jobs + 1) as pool:
            variants = pool.submit(self.sharing) if "sharing" in self.options.steps else None
            list(pool.map(lambda work: self.run_guarded(work[1], work[2]), works))
        if variants is not None and (error := variants.exception()):
            self.result["sharing"] = {"error": f"{type(error).__name__}: {error}"[:2000]}
        if "facts" in self.options.steps:
            answer = self.step("facts", [HERE / "facts.py"], Host(self.scratch / "facts"), {}, 60)
            self.result["facts"] = answer
            self.save()

    def run_guarded(self, work: Callable[[Row], None], row: Row) -> None:
        """Run the work on one row; its errors do not lose the other rows."""
        try:
            work(row)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told and the run goes on
            name = getattr(work, "__name__", "round")
            self.entry(row)[f"error of {name}"] = f"{type(error).__name__}: {error}"[:2000]
        self.save()

    def entry(self, row: Row) -> Answer:
        new_entry: Answer = self.result["rows"][row.id]
        return new_entry

    @property
    def seconds_to_prepare(self) -> float:
        """Return the seconds that a preparation may still take."""
        return (
            float(min(self.options.prepare or 0.62 * self.options.budget, self.options.budget)) - self.spent
        )

    def warm(self, row: Row) -> None:
        """Warm one row through the command line, and keep the report of its target."""
        assert self.registry is not None
        seconds = self.seconds_to_prepare
        if seconds < 15:
            self.entry(row)["warm"] = {"status": "left out", "reasons": ["no time left"]}
            return
        keep = self.scratch / f"{row.id}-kept"
        keep.mkdir()
        spec = self.scratch / f"{row.id}.toml"
        spec.write_text(
            row.spec(self.scratch / f"{row.id}.json", keep, self.service, seconds, self.options.tracing)
        )
        answer = self.step(
            f"row {row.id} warm",
            [*cachesvc(["cachesvc", "warm", str(spec), "--json", "--force"])[1:]],
            Host(self.scratch / f"{row.id}-warm"),
            self.registry.builder | libraries(row, os.environ["PYTHONPATH"]),
            seconds,
            whole=True,
        )
        shutil.rmtree(self.scratch / f"{row.id}-warm", ignore_errors=True)
        target: Answer = (answer.pop("targets", None) or [{}])[0]
        dropped = ("compared", "measured", "bundle", "target")
        report = {name: value for name, value in target.items() if name not in dropped}
        report |= {name: answer[name] for name in ("error", "wall") if name in answer}
        report["phases"] = len(list(keep.glob("rank-0/*.pt")))
        if eager := [json.loads(path.read_text()) for path in sorted(keep.glob("*/eager.json"))]:
            report["against_eager"] = min(eager, key=lambda answer: answer["close"])
        self.entry(row)["warm"] = report

    def sharing(self) -> None:
        """Warm a family of variants into bundles and compare them (`sharing`)."""
        assert self.registry is not None
        bundles, spec = self.scratch / "bundles", self.scratch / "family.toml"
        bundles.mkdir()
        spec.write_text(family(len(self.result["machine"]["gpus"])))
        command = ["cachesvc", "warm", str(spec), "--json", "--force", "-j", "3", "--out", str(bundles)]
        host = Host(self.scratch / "family")
        answer = self.step(
            "sharing: warm",
            cachesvc(command)[1:],
            host,
            self.registry.builder,
            self.seconds_to_prepare,
            whole=True,
        )
        targets = answer.get("targets", [])
        self.result["sharing"] = {
            "warm": {target["target"]: [target["status"], *target["reasons"]] for target in targets},
            "error": answer.get("error"),
        }
        paths = sorted(map(str, bundles.glob("*.cachesvc")))
        if paths:
            report = self.options.out / "sharing.json"
            arguments = [HERE / "sharing.py", *paths, "--trust", self.registry.trust, "--json", report]
            self.step("sharing: compare", arguments, host, {}, 120)
        self.save()

    def builders(self, row: Row) -> Path:
        """Return the outputs of the process that made the published graphs: of finalise, if there was one."""
        finalised = self.entry(row).get("warm", {}).get("finalised")
        return self.scratch / f"{row.id}-kept" / "rank-RANK" / ("01.pt" if finalised else "00.pt")

    def cold(self, row: Row) -> None:
        """Run PyTorch alone on an empty host; the baselines start from its folders."""
        own = Host(self.scratch / f"{row.id}-own")
        variables = {"TORCHINDUCTOR_CACHE_DIR": str(own.folder / "cache")}
        mega = self.scratch / f"{row.id}.mega"
        answer = self.process(row, "cold", own, variables, "--save", mega, seconds=self.seconds_to_prepare)
        if "error" in answer:
            return
        shutil.copytree(own.folder / "cache", self.scratch / f"{row.id}-pristine")
        files = [path for path in (own.folder / "cache").rglob("*") if path.is_file()]
        data = mega.read_bytes()
        self.entry(row)["bytes"] = {
            "folder files": len(files),
            "folder": sum(path.stat().st_size for path in files),
            "mega-cache": len(data),
            "zstd -3 of mega-cache": len(zstandard.ZstdCompressor(level=3).compress(data)),
        }

    def fill(self, row: Row) -> None:
        """Fill PyTorch's Redis cache."""
        for switches in (GPU_SWITCHES, SWITCHES) if self.result["machine"]["gpus"] else (SWITCHES,):
            host = Host(self.scratch / f"{row.id}-fill")
            variables = self.redis_variables(row, switches)
            answer = self.process(row, "Redis, filling", host, variables, seconds=self.seconds_to_prepare)
            shutil.rmtree(host.folder, ignore_errors=True)
            if "error" not in answer:
                self.entry(row)["redis_switches"] = switches
                return

    def redis_variables(self, row: Row, switches: tuple[str, ...]) -> dict[str, str]:
        """Return the variables of a row's own database of the Redis server."""
        number = [other.id for other in self.rows if self.has_baselines(other)].index(row.id)
        named = {f"TORCHINDUCTOR_{name}_REMOTE_CACHE": "1" for name in switches}
        packages = {"PYTHONPATH": os.environ["PYTHONPATH"]}  # redis is one of the registry's.
        return {**named, **packages, "TORCHINDUCTOR_REDIS_URL": f"{self.redis}?db={number % 16}"}

    # Measure ----------------------------------------------------------------------------------

    def _measure(self) -> None:
        """Measure the rows with baselines one process at a time. Measure several other rows at once: no value
        is compared with their seconds."""
        compared = [row for row in self.rows if self.has_baselines(row)]
        others = [row for row in self.rows if row not in compared]
        for row in compared:
            self.run_guarded(self.restored, row)
        with ThreadPoolExecutor(self.options.measure) as pool:
            list(pool.map(lambda row: self.run_guarded(self.restored, row), others))
            list(pool.map(lambda row: self.run_guarded(self.audited, row), self.rows))
        for number in range(self.options.rounds):
            for row in compared:
                self.run_guarded(functools.partial(self.round, number), row)

    def restored(self, row: Row) -> None:
        """Restore on a fresh host; if there are baselines, once more on that node."""
        if self.entry(row).get("warm", {}).get("status") == "warm":
            self.on_node(row, "node", ("ours", "ours again") if self.has_baselines(row) else ("ours",))

    def audited(self, row: Row) -> None:
        """Restore on a fresh host, and list all processes that it starts."""
        if self.entry(row).get("warm", {}).get("status") == "warm":
            self.on_node(row, "audit", ("ours audited",))

    def on_node(self, row: Row, place: str, names: tuple[str, ...]) -> None:
        """Run restoring processes one after the other, on a fresh host without compilers."""
        assert self.registry is not None
        host = Host(self.scratch / f"{row.id}-{place}")
        variables = self.registry.service | {"CACHESVC_NAME": row.name, "CACHESVC_DEADLINE": "60"}
        variables |= {"PATH": str(trap(host.folder / "trap")), **row.measured_env}
        expect = ("--expect", self.builders(row))
        audit = ("--audit", "--watch") if self.options.watch else ("--audit",)
        for name in names:
            extra = audit if name == "ours audited" else ()
            self.process(row, name, host, variables, *expect, *extra)
        if (called := host.folder / "trap/called").exists():
            self.entry(row)["compilers_called"] = called.read_text().splitlines()[:20]
        shutil.rmtree(host.folder, ignore_errors=True)

    def round(self, number: int, row: Row) -> None:
        """Run one round of a row's baselines, with the restores among them; the order changes from round to
        round."""
        if not (self.scratch / f"{row.id}-pristine").is_dir():
            return
        own, away = self.scratch / f"{row.id}-own", self.scratch / f"{row.id}-away"
        local = {"TORCHINDUCTOR_CACHE_DIR": str(own / "cache")}
        for name in LOCAL if number == 0 else LOCAL[1:]:
            self.process(row, name, Host(own), local)
        own.rename(away)  # The builder's folders are gone from here on.
        works: list[Callable[[Row], None]] = [self.copied, self.mega, self.from_redis]
        works += [self.restored] if number else []
        try:
            for work in works[number % len(works) :] + works[: number % len(works)]:
                self.run_guarded(work, row)
        finally:
            # Tuning results are written to the builder's folder, so that folder may exist again.
            shutil.rmtree(own, ignore_errors=True)
            away.rename(own)

    def copied(self, row: Row) -> None:
        host = Host(self.scratch / f"{row.id}-copy")
        shutil.copytree(self.scratch / f"{row.id}-pristine", host.folder / "cache")
        self.process(row, "folder copy", host, {"TORCHINDUCTOR_CACHE_DIR": str(host.folder / "cache")})
        shutil.rmtree(host.folder)

    def mega(self, row: Row) -> None:
        host = Host(self.scratch / f"{row.id}-mega")
        variables = {"TORCHINDUCTOR_CACHE_DIR": str(host.folder / "cache")}
        self.process(row, "mega-cache", host, variables, "--load", self.scratch / f"{row.id}.mega")
        shutil.rmtree(host.folder, ignore_errors=True)

    def from_redis(self, row: Row) -> None:
        switches = self.entry(row).get("redis_switches")
        if not self.redis or not switches:
            return
        host = Host(self.scratch / f"{row.id}-redis")
        variables = self.redis_variables(row, switches)
        variables |= {"TORCHINDUCTOR_CACHE_DIR": str(host.folder / "cache")}
        self.entry(row)["bytes"]["Redis"] = redis_bytes(variables["TORCHINDUCTOR_REDIS_URL"])
        self.process(row, "Redis", host, variables)
        shutil.rmtree(host.folder, ignore_errors=True)

    def alone(self, row: Row) -> None:
        """Measure the restore by itself, in processes that do nothing else, each on a fresh host.

        Beside a main thread that imports torch, most of a restore's seconds are those in which the import
        holds the interpreter."""
        assert self.registry is not None
        if self.entry(row).get("warm", {}).get("status") != "warm":
            return
        program = (
            "import json, cachesvc_client as c, cachesvc_client.auto; over = c.wait(60); "
            "print(json.dumps({'over': over, 'status': c.status(), 'seconds': c.report().seconds}))"
        )
        for _ in range(3):
            host = Host(self.scratch / f"{row.id}-alone")
            variables = self.registry.service | {"CACHESVC_NAME": row.name}
            answer = self.step(f"row {row.id} alone", ["-c", program], host, variables, self.options.step)
            self.entry(row).setdefault("alone", []).append(answer)
            shutil.rmtree(host.folder, ignore_errors=True)
        self.save()

    def dissect(self, row: Row) -> None:
        """Run processes of `dissect` in the warmed directory, host after host.

        The first process is sampled on a fresh host; then the kinds of main thread and the cuts alternate;
        the last process is sampled again."""
        if self.entry(row).get("warm", {}).get("status") != "warm":
            return
        answers: list[Answer] = []
        for _ in range(self.options.hosts):
            host = Host(self.scratch / f"{row.id}-dissect")
            self.dissect_once(row, host, ("--sample",), answers)
            for _ in range(self.options.alternate):
                for cut, main in itertools.product(self.options.cuts, self.options.mains):
                    self.dissect_once(row, host, ("--cut", cut, "--main", main), answers)
            self.dissect_once(row, host, ("--sample",), answers)
            shutil.rmtree(host.folder, ignore_errors=True)

    def dissect_once(self, row: Row, host: Host, extra: tuple[str, ...], answers: list[Answer]) -> None:
        """Run one process of `dissect`. Add its answer, and whether its host was fresh."""
        assert self.registry is not None
        if self.left < 25:
            return
        fresh = not host.folder.exists()
        place = host.folder / "answer.json"
        place.unlink(missing_ok=True)
        variables = self.registry.service | {
            "CACHESVC_NAME": row.name,
            "PATH": str(trap(host.folder / "t")),
        }
        command = [HERE / "dissect.py", self.scratch / f"{row.id}.json", "--answer", place, *extra]
        what = f"row {row.id} dissect {' '.join(extra)}"
        self.step(what, command, host, variables, self.options.step, work=self.service)
        if place.is_file():
            answer = json.loads(place.read_text())
            answers.append({"options": extra, "fresh": fresh} | answer)
            summary = self.result.setdefault("dissected", {})[row.id] = medians(answers)
            entry = {"summary": summary, "processes": answers}
            (self.options.out / f"dissect-{row.id}.json").write_text(json.dumps(entry, indent=1) + "\n")

    # Edited -----------------------------------------------------------------------------------

    def kernel_edit(self) -> None:
        """Run processes whose kernels or operators differ from the warmed ones.

        They must compile anew with the right numbers, and their reports must name the reason."""
        edits: Answer = self.result.setdefault("kernel_edit", {})
        rows = {row.id: row for row in self.rows}
        for ident in EDITS:
            row = rows.get(ident.split()[0])
            if row is None:
                edits[ident] = {"left out": "this machine has no GPU"}
            elif self.entry(row).get("warm", {}).get("status") != "warm":
                edits[ident] = {"left out": "the row is not warm"}
            else:
                edits[ident] = self.edited(row, ident)
                edits[ident]["right"] = edited_right(ident, edits[ident])
            print(f"[{self.spent:6.1f} s] row {ident} edited: {edits[ident]}"[:600], flush=True)
            self.save()

    def edited(self, row: Row, ident: str) -> Answer:
        """Run a restoring process of a row, in a copy of the programs with an edit."""
        assert self.registry is not None
        file, old, new, _ = EDITS[ident]
        programs, host = self.scratch / f"{ident}-programs", Host(self.scratch / f"{ident}-edited")
        shutil.copytree(HERE, programs, ignore=shutil.ignore_patterns("__pycache__"))
        text = (programs / file).read_text()
        assert old in text, f"{file}: nothing to edit"
        (programs / file).write_text(text.replace(old, new))
        place = self.scratch / f"{ident}-edited.json"
        command = [programs / "edited.py", self.scratch / f"{row.id}.json", "--answer", place]
        command += ["--expect", self.builders(row)]
        variables = self.registry.service | {"CACHESVC_NAME": row.name, "CACHESVC_DEADLINE": "60"}
        failed = self.step(f"row {ident} edited", command, host, variables, min(self.options.step, self.left))
        shutil.rmtree(host.folder, ignore_errors=True)
        return dict(json.loads(place.read_text())) if place.is_file() else failed

    # Processes --------------------------------------------------------------------------------

    def process(
        self, row: Row, method: str, host: Host, variables: dict[str, str], *options: Any, seconds: float = 0
    ) -> Answer:
        """Run one process of a row, and keep its answer under the method. Skip it if there is no time, or if
        the method was not selected."""
        selected = method.split(",")[0] in (*self.options.methods, "cold", "ours audited")
        if not selected or f"{row.id}:{method}" in self.options.without:
            return {"left out": "not asked for"}
        place = self.scratch / f"{row.id}-answer-RANK.json"
        for rank in range(max(1, row.ranks)):
            of_rank(place, rank).unlink(missing_ok=True)
        command = [*launcher(row), HERE / "process.py", self.scratch / f"{row.id}.json", "--answer", place]
        seconds = min(seconds or self.options.step, self.left)
        if seconds < 5:
            answer: Answer = {"left out": "no time left"}
        else:
            path = (host.environment() | variables)["PYTHONPATH"]
            variables = variables | libraries(row, path)
            work = host.folder / "work" if method == "ours audited" else self.service
            what = f"row {row.id} {method}"
            failed = self.step(what, [*command, *options], host, variables, seconds, work=work)
            answers = [of_rank(place, rank) for rank in range(max(1, row.ranks))]
            answer = join_answers(answers) if all(path.is_file() for path in answers) else failed
        with self.lock:
            self.entry(row)["runs"].setdefault(method, []).append(answer)
        self.save()
        return answer

    def step(
        self,
        what: str,
        arguments: list[Any],
        host: Host,
        variables: dict[str, str],
        seconds: float,
        whole: bool = False,
        work: Path | None = None,
    ) -> Answer:
        """Run Python on a host, in its working directory or in ``work``. Return the JSON of its last line (or
        of all its output), or ``{"error": ...}``.

        The process and its children are ended after ``seconds``."""
        begin = time.monotonic()
        environment = host.environment() | variables
        with running_process(
            [sys.executable, *map(str, arguments)],
            env=environment,
            cwd=work or host.folder / "work",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        ) as process:
            try:
                out, err = process.communicate(timeout=seconds)
                code: int | str = process.returncode
            except subprocess.TimeoutExpired as error:
                out, err, code = "", _text(error.stderr), f"ended after {seconds:.0f} s"
        wall = round(time.monotonic() - begin, 2)
        with self.lock:
            self.logs.write(f"===== {what}: status {code}, {wall} s\n{err[-8000:]}\n")
            self.logs.flush()
            print(f"[{self.spent:6.1f} s] {what}: status {code}, {wall} s", flush=True)
        try:
            answer: Answer = json.loads(out if whole else out.strip().splitlines()[-1])
        except (ValueError, IndexError):
            return {"error": f"status {code}: {err[-1500:]}", "wall": wall}
        if not isinstance(answer, dict):
            return {"error": f"status {code}: {out[-500:]}", "wall": wall}
        return answer | {"wall": wall}

    def save(self) -> None:
        with self.lock:
            for entry in self.result["rows"].values():
                summarise(entry)
            text = json.dumps(without_places(self.result, str(self.scratch)), indent=1, default=str)
            (self.options.out / "matrix.json").write_text(text + "\n")


def medians(answers: list[Answer]) -> Answer:
    """Return the median seconds by cut and main thread, with the number of processes behind each."""
    groups: dict[str, list[Answer]] = {}
    for answer in answers:
        label = " ".join(answer["options"]) + (", fresh host" if answer["fresh"] else "")
        groups.setdefault(label, []).append(answer)
    names = ("first", "second", "cut", "between", "build", "process")
    return {
        label: {name: round(statistics.median(item[name] for item in group), 3) for name in names}
        | {
            "range": [
                round(min(item["first"] for item in group), 3),
                round(max(item["first"] for item in group), 3),
            ]
        }
        | {"processes": len(group), "hits": sum(item["state"] == "hit" for item in group)}
        for label, group in groups.items()
    }


def edited_right(ident: str, answer: Answer) -> bool:
    """Return whether there is no false hit: the process compiled, its numbers are the edited code's and not
    the builder's, and the factor is named first everywhere."""
    if "error" in answer:
        return False
    first = {(answer[where] or ["nothing"])[0] for where in ("report", "explain")}
    eager, builder = answer["against_eager"], answer["against_builder"]
    # Small values may lie within the tolerance of both; the distance decides whose they are.
    numbers = eager["close"] and builder["difference"] > 100 * eager["difference"]
    return bool(answer["compilations"] and numbers and first == {EDITS[ident][3]})


def launcher(row: Row) -> list[str]:
    """Return the words of torchrun, on a free port of this machine, for a row of several ranks."""
    command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={row.ranks}"]
    return command if row.ranks else []


def of_rank(path: Path, rank: int) -> Path:
    return path.with_name(path.name.replace("RANK", str(rank)))


def _first_answer(answer: Answer) -> float:
    return float(answer["first"] if "first" in answer else answer["audited"])


def join_answers(paths: list[Path]) -> Answer:
    """Return the answers of the ranks as one: of the slowest rank, with the sums of counts and the worst
    comparison."""
    answers: list[Answer] = [json.loads(path.read_text()) for path in paths]
    if len(answers) == 1:
        return answers[0]
    slowest = max(answers, key=_first_answer)
    answer_of_job = dict(slowest)
    answer_of_job["observed"] = answer_of_job["observed"] | {
        name: sum(answer["observed"][name] for answer in answers) for name in COUNTS
    }
    if all("against_builder" in answer for answer in answers):
        answer_of_job["against_builder"] = min(
            (a["against_builder"] for a in answers), key=lambda one: one["equal"]
        )
    else:
        answer_of_job.pop("against_builder", None)
    if "state" in answer_of_job:
        states = [answer["state"] for answer in answers]
        answer_of_job["state"] = states[0] if len(set(states)) == 1 else f"not the same: {states}"
        answer_of_job["bytes_moved"] = sum(answer["bytes_moved"] for answer in answers)
    fields = ("first", "audited", "state", "reasons", "bytes_moved", "seconds", "against_builder", "work")
    answer_of_job["ranks"] = [{name: answer[name] for name in fields if name in answer} for answer in answers]
    return answer_of_job


def libraries(row: Row, path: str) -> dict[str, str]:
    """Return PYTHONPATH, which is ``path``, with the folder of more libraries, for the rows that need it."""
    more = os.environ.get("MATRIX_MODELS", "")
    return {"PYTHONPATH": f"{path}{os.pathsep}{more}"} if row.needs and more else {}


def hit(run: Answer) -> bool:
    """Return whether the entry was there, nothing was compiled or tuned, and the outputs are the builder's to
    the bit."""
    observed = run.get("observed", {})
    return (
        run.get("state") == "hit"
        and not any(observed.get(name, 1) for name in COUNTS)
        and bool(run.get("against_builder", {}).get("equal"))
    )


def summarise(entry: Answer) -> None:
    """Return whether all restores hit, the medians by method, their ratios, and the bytes beside
    mega-cache's."""
    restored = [run for name in OURS for run in entry["runs"].get(name, []) if "left out" not in run]
    entry["hit"] = bool(restored) and all(map(hit, restored)) and "compilers_called" not in entry
    firsts = {
        name: statistics.median(times)
        for name, runs in entry["runs"].items()
        if (times := [run["first"] for run in runs if "first" in run])
    }
    entry["first"] = {name: round(seconds, 3) for name, seconds in firsts.items()}
    if ours := firsts.get("ours"):
        entry["ours / others"] = {
            name: round(ours / seconds, 3) for name, seconds in firsts.items() if name not in OURS
        }
    byte_counts = [run["bytes_moved"] for run in entry["runs"].get("ours", []) if run.get("bytes_moved")]
    sizes = entry.get("bytes", {})
    if byte_counts and sizes:
        sizes["ours"] = max(byte_counts)
        for name in ("mega-cache", "zstd -3 of mega-cache"):
            sizes[f"ours / {name}"] = round(max(byte_counts) / sizes[name], 3) if sizes.get(name) else None


def without_places(value: Any, scratch: str) -> Any:
    """Return the result without this machine's folders, and with programs by their names."""
    if isinstance(value, dict):
        return {key: without_places(item, scratch) for key, item in list(value.items())}
    if isinstance(value, (list, tuple)):
        return [without_places(item, scratch) for item in value]
    if not isinstance(value, str):
        return value
    for place in (scratch, str(TREE), sys.prefix, sys.base_prefix):
        value = value.replace(place, "...")
    return PROGRAM.sub("", value)


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else (value or "")


# Output ---------------------------------------------------------------------------------------


def table(result: Answer) -> str:
    """Return Markdown: seconds of first calls (medians), counts of the restored processes, bytes."""
    names = ("row", "hit", *TIMED, "wait", *COUNTS, "of libraries", "= builder", "pack")
    lines = ["| " + " | ".join(names) + " |", "|---|---|" + "---:|" * (len(names) - 2)]
    for ident, entry in result["rows"].items():
        runs, warm = entry["runs"], entry.get("warm", {})
        ours = [run for name in OURS for run in runs.get(name, []) if "observed" in run]
        first = [f"{entry['first'][name]:.2f}" if name in entry["first"] else "-" for name in TIMED]
        wait = f"{ours[0].get('seconds', {}).get('wait', 0.0):.2f}" if ours else "-"
        counts = [str(max((run["observed"][name] for run in ours), default="-")) for name in COUNTS]
        equal = "-"
        if ours:
            equal = "yes" if all(run.get("against_builder", {}).get("equal") for run in ours) else "no"
        beside = [str(run["beside"]) for run in ours]
        cells = [f"{ident} {entry['title']}", "yes" if entry.get("hit") else "no", *first, wait, *counts]
        cells.append(" / ".join(beside) or "-")
        lines.append("| " + " | ".join([*cells, equal, str(warm.get("pack_bytes") or "-")]) + " |")
    return "\n".join(lines)


def troubles(result: Answer) -> list[str]:
    """Return a line for every failure."""
    lines = [f"redis: {result['redis']}"] if "redis" in result else []
    for ident, entry in result["rows"].items():
        lines += [f"row {ident} {key}: {entry[key]}" for key in entry if key.startswith("error")]
        warm = entry.get("warm", {})
        if warm.get("status") != "warm":
            lines.append(
                f"row {ident} warm: {warm.get('status')} {warm.get('reasons')} {warm.get('error', '')}"
            )
            lines.append(str(warm.get("trace") or "")[-1200:])
        if not warm.get("against_eager", {}).get("close", True):
            lines.append(f"row {ident} differs from eager: {warm['against_eager']}")
        for name, runs in entry["runs"].items():
            for run in runs:
                if "error" in run or "left out" in run:
                    lines.append(f"row {ident} {name}: {run.get('error', run.get('left out'))}"[-700:])
                elif name in OURS and not hit(run):
                    lines.append(
                        f"row {ident} {name}: {run.get('state')} {run.get('reasons')} {run['work'][:5]}"
                    )
                    lines.append(f"    {run.get('against_builder')} {run['observed'].get('counters')}"[:700])
        if "compilers_called" in entry:
            lines.append(f"row {ident} called {entry['compilers_called'][:5]}")
    for ident, edit in result.get("kernel_edit", {}).items():
        if not edit.get("right"):
            lines.append(f"row {ident} edited: {edit}"[:900])
    return [line for line in lines if line.strip()]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", default="", help="such as 1-4,15; all that fit the machine by default")
    parser.add_argument("--budget", type=float, default=560, help="seconds; what does not fit is left out")
    parser.add_argument(
        "--prepare", type=float, default=0, help="of them for warming (0: 62 %% of the budget)"
    )
    parser.add_argument("--step", type=float, default=120, help="seconds that a measured process may take")
    parser.add_argument("--jobs", type=int, default=4, help="rows that are prepared at once")
    parser.add_argument("--measure", type=int, default=4, help="rows without baselines measured at once")
    parser.add_argument("--rounds", type=int, default=1, help="of the baselines")
    parser.add_argument("--baselines", default="anchors", help="anchors, all, none, or ids such as 1,15")
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--without", nargs="+", default=[], metavar="ROW:METHOD", help="is left out")
    parser.add_argument(
        "--tracing", default="always", choices=["always", "auto", "never"], help="of the spec"
    )
    parser.add_argument("--watch", action="store_true", help="one process more a row: which files are read")
    parser.add_argument("--steps", nargs="*", default=["facts"], choices=STEPS)
    parser.add_argument(
        "--bytecode", action="store_true", help="compile all packages first, as images have them"
    )
    parser.add_argument("--alone", default="", help="ids of rows: the restore by itself, nothing beside it")
    parser.add_argument("--dissect", default="", help="ids of rows, such as 1,4")
    parser.add_argument("--alternate", type=int, default=3, help="rounds of the dissection's cuts")
    parser.add_argument("--hosts", type=int, default=1, help="of the dissection, one after the other")
    parser.add_argument("--cuts", nargs="+", default=CUTS, help="of dissect.py")
    parser.add_argument("--mains", nargs="+", default=["idle", "busy"], choices=["free", "idle", "busy"])
    options = parser.parse_args()
    options.out = options.out.absolute()
    options.out.mkdir(parents=True, exist_ok=True)
    return options


def main() -> int:
    options = _options()
    try:
        rows = choose_rows(options.rows, len(gpus()))
        if "kernel_edit" in options.steps:
            rows += [
                row
                for row in choose_rows(",".join(sorted({one.split()[0] for one in EDITS})), len(gpus()))
                if row not in rows
            ]
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    use_this_tree()
    with interruptible(), TemporaryDirectory(prefix="cachesvc-gpu-", ignore_cleanup_errors=True) as scratch:
        matrix = Matrix(options, Path(scratch), rows)
        try:
            matrix.run()
        finally:
            matrix.save()
            (options.out / "table.md").write_text(table(matrix.result) + "\n")
            print(table(matrix.result))
            print("\n".join(troubles(matrix.result)))
    hits = all(entry.get("hit") for entry in matrix.result["rows"].values())
    edits = all(
        edit.get("right", "left out" in edit) for edit in matrix.result.get("kernel_edit", {}).values()
    )
    return 0 if hits and edits else 1


if __name__ == "__main__":
    sys.exit(main())
