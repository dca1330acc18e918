"""The proof on a GPU: every row is warmed through the command line and restored by fresh processes.

    python benchmarks/gpu/prove.py --out DIR [--rows 1,2] [--budget 420]

For a machine without network: needs this tree, its requirements and torch. It starts a registry, warms
each row, and then measures fresh processes: *cold* (empty folders), *local* (the same folders again,
PyTorch's own warm start) and *ours* (another HOME, TMPDIR and working directory, empty folders, a PATH
without compilers; then a second process of that node). Without a GPU the rows are reduced. Writes
``gpu_prove.json`` after every step and ``logs.txt``; exit status 0 if every row hits.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parent))
from rows import HERE, REDUCED, ROWS, Row

TREE = HERE.parent.parent
COMPILERS = ("gcc", "cc", "c++", "clang", "clang++", "ld", "as", "nvcc", "ptxas")
PROGRAM = re.compile(r"^/[^ ]*/")
RUNS = ("cold", "local", "ours", "ours again")


class Proof:
    def __init__(self, options: argparse.Namespace, scratch: Path) -> None:
        self.options, self.scratch = options, scratch
        self.end = time.monotonic() + options.budget
        self.registry: dict[str, str] = {}
        self.result: dict = {
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "gpu": gpu()},
            "at_once": {"warmed": options.jobs, "measured": options.measure},
            "rows": {},
        }
        self.logs = (options.out / "logs.txt").open("w")
        self.lock = threading.Lock()

    def run(self, rows: list[Row]) -> bool:
        with self.serve():
            self.result["facts"] = self.step("facts", [HERE / "facts.py"], self.environment("facts"))
            for row in rows:
                (self.scratch / f"{row.id}.json").write_text(json.dumps(asdict(row)))
                self.result["rows"][row.id] = {"title": row.title}
            with ThreadPoolExecutor(self.options.jobs) as pool:
                list(pool.map(self.warm, sorted(rows, key=lambda row: "max" not in row.mode)))
            with ThreadPoolExecutor(self.options.measure) as pool:
                list(pool.map(self.measure, rows))
        return all(entry.get("hit") for entry in self.result["rows"].values())

    @contextmanager
    def serve(self):
        ready = self.scratch / "ready.json"
        command = [sys.executable, "-m", "cachesvc", "serve", "--data", self.scratch / "registry"]
        with (self.options.out / "registry.txt").open("w") as log:
            server = subprocess.Popen(
                [*command, "--port", "0", "--ready-file", ready],
                env=self.environment("registry"),
                stdout=log,
                stderr=log,
            )
            try:
                while not ready.exists():
                    if server.poll() is not None:
                        raise SystemExit(
                            f"the registry ended with status {server.returncode}: see {log.name}"
                        )
                    time.sleep(0.1)
                self.registry = json.loads(ready.read_text())
                yield
            finally:
                server.terminate()
                server.wait(20)

    def warm(self, row: Row) -> None:
        """Warms one row through the command line; the report's first target is kept."""
        left = self.end - time.monotonic()
        if left < 20:
            return
        spec = self.scratch / f"{row.id}.toml"
        spec.write_text(row.spec())
        env = self.environment(f"{row.id}-warm") | {
            "CACHESVC_URL": self.registry["url"],
            "CACHESVC_TOKEN": self.registry["token"],
            "CACHESVC_SIGNING_KEY": self.registry["signing_key"],
        }
        answer = self.step(
            f"{row.id} warm",
            ["-m", "cachesvc", "warm", spec, "--json", "--force"],
            env,
            timeout=left,
            whole=True,
        )
        target = (answer.get("targets") or [{}])[0]
        kept = ("status", "reasons", "numbers", "files_before", "files_after", "bytes_before", "bytes_after")
        kept += ("pack_bytes", "compared", "observed", "replays", "finalised", "notes", "seconds", "trace")
        self.result["rows"][row.id]["warm"] = {name: target.get(name) for name in kept} | {
            name: answer[name] for name in ("error", "wall") if name in answer
        }
        self.save()

    def measure(self, row: Row) -> None:
        """The measured processes of one row, one after the other."""
        entry = self.result["rows"][row.id]
        runs = entry["runs"] = {}
        own, ours = f"{row.id}-own", f"{row.id}-ours"
        attach = {
            "CACHESVC_URL": self.registry["url"],
            "CACHESVC_TOKEN": self.registry["token"],
            "CACHESVC_TRUSTED_KEYS": self.registry["trust"],
            "CACHESVC_NAME": row.name,
        }
        cache = self.scratch / own / "cache"
        for name in RUNS:
            if time.monotonic() > self.end:
                break
            if name.startswith("ours"):
                env = self.environment(ours) | attach
                trap = self.scratch / ours / "trap"
                env["PATH"] = f"{trapped(trap)}"
            else:
                env = self.environment(own) | {"TORCHINDUCTOR_CACHE_DIR": str(cache)}
            output = self.scratch / f"{row.id}-{name.replace(' ', '-')}.pt"
            extra = ["watch"] if name.endswith("again") else []
            runs[name] = self.step(
                f"{row.id} {name}",
                [HERE / "process.py", self.scratch / f"{row.id}.json", output, *extra],
                env,
                timeout=max(20.0, min(240.0, self.end - time.monotonic() + 30)),
            )
            if name.startswith("ours") and (trap / "called").exists():
                runs[name]["compilers_called"] = (trap / "called").read_text().splitlines()[:20]
            if name == "cold":
                entry["layout"] = layout({"cache": cache, "home": self.scratch / own / "home"})
                cold = output
            elif "error" not in runs[name] and "error" not in runs["cold"]:
                runs[name]["against_cold"] = differences(output, cold)
            self.save()
        seen = runs.get("ours", {}).get("observed", {})
        counts = ("compilations", "tuning_runs", "compiler_processes")
        entry["hit"] = runs.get("ours", {}).get("state") == "hit" and not any(seen[name] for name in counts)
        self.save()

    def environment(self, place: str) -> dict[str, str]:
        """A place of its own: HOME, TMPDIR, working directory; what torch and Python need, and no more."""
        folder = self.scratch / place
        for name in ("home", "tmp", "work"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        keep = ("PATH", "LD_LIBRARY_PATH", "LANG", "CUDA_HOME", "NVIDIA_VISIBLE_DEVICES", "VIRTUAL_ENV")
        kept = {name: os.environ[name] for name in keep if name in os.environ}
        paths = [str(TREE), str(TREE / "client"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        return kept | {
            "HOME": str(folder / "home"),
            "TMPDIR": str(folder / "tmp"),
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HF_HUB_OFFLINE": "1",
            "CACHESVC_UNTESTED": "1",
            "CACHESVC_DEADLINE": "60",
        }

    def step(self, what: str, arguments: list, env: dict, timeout: float = 120, whole: bool = False) -> dict:
        """Runs Python; answers the JSON of its last line (or of all its output), or ``{"error": ...}``."""
        begin = time.monotonic()
        place = Path(env["HOME"]).parent / "work"
        try:
            done = subprocess.run(
                [sys.executable, *map(str, arguments)],
                cwd=place,
                env=env,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
            out, err, code = done.stdout, done.stderr, done.returncode
        except subprocess.TimeoutExpired as error:
            out, err, code = "", (error.stderr or b"").decode(errors="replace"), "timeout"
        wall = round(time.monotonic() - begin, 2)
        with self.lock:
            self.logs.write(f"===== {what}: status {code}, {wall} s\n{err[-6000:]}\n")
            self.logs.flush()
        print(
            f"[{self.options.budget - (self.end - time.monotonic()):6.1f} s] {what}: status {code}, {wall} s",
            flush=True,
        )
        try:
            answer = json.loads(out if whole else out.strip().splitlines()[-1])
        except (ValueError, IndexError):
            return {"error": f"status {code}: {err[-1500:]}", "wall": wall}
        return answer | {"wall": wall}

    def save(self) -> None:
        path = self.options.out / "gpu_prove.json"
        with self.lock:
            path.write_text(json.dumps(without_places(self.result), indent=1, default=str) + "\n")


def without_places(value):
    """The result without this machine's folders, which say nothing to others: programs by their names."""
    if isinstance(value, dict):
        return {key: without_places(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_places(item) for item in value]
    if not isinstance(value, str):
        return value
    for place in (str(TREE), sys.prefix, sys.base_prefix):
        value = value.replace(place, "...")
    return PROGRAM.sub("", value) if value.startswith("/") else value


def trapped(folder: Path) -> Path:
    """A PATH on which every compiler only tells that it was called; without g++, as in an image without
    compilers: one of ours would be another compiler than the builder's."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in COMPILERS:
        script = folder / name
        script.write_text(f'#!/bin/sh\necho "{name} $*" >> {folder}/called\nexit 1\n')
        script.chmod(0o755)
    return folder


def gpu() -> str:
    try:
        query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def layout(roots: dict[str, Path]) -> dict:
    """Files by place and suffix, and where helpers and group files are."""
    counted: Counter[str] = Counter()
    size: Counter[str] = Counter()
    libraries, groups, group_file = [], {}, ""
    for label, root in roots.items():
        for path in sorted(root.rglob("*")) if root.is_dir() else []:
            if not path.is_file():
                continue
            parts = path.relative_to(root).parts
            top = parts[0] if len(parts[0]) > 2 else "xx"
            group = path.name.startswith("__grp__")
            kind = f"{label}/{top}/{'__grp__' if group else '*'}{path.suffix}"
            counted[kind] += 1
            size[kind] += path.stat().st_size
            if path.suffix == ".so":
                libraries.append(f"{label}/{path.relative_to(root)}")
            if group and not groups:
                groups = json.loads(path.read_text())["child_paths"]
                group_file = str(path.relative_to(root))
    return {
        "files": {kind: [count, size[kind]] for kind, count in sorted(counted.items())},
        "libraries": libraries[:20],
        "a group file": group_file,
        "its first path": next(iter(groups.values()), ""),
    }


def differences(mine: Path, reference: Path) -> dict:
    """Of saved outputs: equal to the bit, and the largest difference with the largest value."""
    import torch

    left, right = torch.load(mine), torch.load(reference)
    pairs = list(zip(left, right, strict=True))
    return {
        "equal": all(torch.equal(one, other) for one, other in pairs),
        "difference": max((one - other).abs().max().item() for one, other in pairs),
        "scale": max(other.abs().max().item() for _, other in pairs),
    }


def table(result: dict) -> str:
    names = ("row", "hit", *RUNS, "wait", "compiled", "tuned", "compilers", "pack")
    lines = ["| " + " | ".join(names) + " |"]
    lines.append("|---|---|" + "---:|" * 9)
    for row, entry in result["rows"].items():
        runs, warm = entry.get("runs", {}), entry.get("warm", {})
        ours = runs.get("ours", {})
        seen = ours.get("observed", {})
        first = [f"{runs[name]['first']:.2f}" if "first" in runs.get(name, {}) else "-" for name in RUNS]
        wait = ours.get("seconds", {}).get("wait", "-")
        counts = [str(seen.get(name, "-")) for name in ("compilations", "tuning_runs", "compiler_processes")]
        cells = [f"{row} {entry['title']}", "yes" if entry.get("hit") else "no", *first, str(wait), *counts]
        lines.append("| " + " | ".join([*cells, str(warm.get("pack_bytes") or "-")]) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", default="", help="numbers, such as 1,2; all by default")
    parser.add_argument("--budget", type=float, default=420, help="seconds; what does not fit is left out")
    parser.add_argument("--jobs", type=int, default=4, help="rows that are warmed at once")
    parser.add_argument("--measure", type=int, default=1, help="rows that are measured at once")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    options.out = options.out.absolute()
    wanted = {int(number) for number in options.rows.split(",") if number}
    rows = [row for row in (ROWS if gpu() else REDUCED) if not wanted or row.number in wanted]
    with TemporaryDirectory(prefix="cachesvc-gpu-") as scratch:
        proof = Proof(options, Path(scratch))
        good = proof.run(rows)
        proof.save()
        print(table(proof.result))
        for entry in proof.result["rows"].values():
            warm = entry.get("warm", {})
            print(entry["title"], warm.get("status"), warm.get("reasons"), str(warm.get("error", ""))[:300])
            for name in ("ours", "ours again"):
                run = entry.get("runs", {}).get(name, {})
                print("  ", name, run.get("state"), run.get("reasons"), str(run.get("error", ""))[-600:])
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
