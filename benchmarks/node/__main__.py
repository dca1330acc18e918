"""Measure what the processes of one node download, and what an agent that keeps its store warm costs.

A real registry on loopback serves one pack; a relay in front of it counts every byte of both directions, heads
of HTTP and answers to resolves too. Containers are processes in user, PID and mount namespaces of their own,
with a HOME and a TMPDIR of their own. Exit status 1 if the processes of a node downloaded more than 1.05 packs
(none, where an agent had the pack), or if a start did not restore. Usage: ``python -m benchmarks.node``
(``--quick``: a small pack, no torch).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.conditions import commit, hardware, now
from benchmarks.entries import warm
from benchmarks.hosts import ROOT, SERVICE, Failed, Host, Registry, registry, use_this_tree
from cachesvc.cli.signals import interruptible
from cachesvc_client.bundle.pack import SourceFile
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.environment.detect import detect
from cachesvc_client.http.registry import Remote
from cachesvc_client.publication.build_bundle import Draft, build_bundle
from cachesvc_client.publication.publish_bundle import publish_bundle
from cachesvc_client.wire.names import Name, Target
from cachesvc_client.wire.records import Workload

from .relay import CountingRelay

PROCESS = Path(__file__).with_name("process.py")
NAME = "bench/node"
MOST_PACKS = 1.05
"""Packs that the processes of a node download together, at most."""
CONTAINER = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child")
"""Starts a process in namespaces of its own, as a container has them."""


@dataclass
class Bench:
    """Holds what every row needs. ``pack``: bytes of the published pack."""

    served: Registry
    relay: CountingRelay
    folder: Path
    starts: int
    pack: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)
    nodes: int = 0

    def node(self) -> Path:
        """Return the folder of a node that has nothing yet."""
        self.nodes += 1
        return self.folder / f"node-{self.nodes}"

    def variables(self, **more: str) -> dict[str, str]:
        """Return the variables of a service behind the relay."""
        return {
            "CACHESVC_URL": self.relay.url,
            "CACHESVC_TOKEN": self.served.token,
            "CACHESVC_TRUSTED_KEYS": self.served.trust,
            "CACHESVC_REPORT": "0",
            "CACHESVC_DEADLINE": "60",
            **more,
        }


def main() -> int:
    options = _options()
    use_this_tree()
    report: dict[str, Any] = {"date": now(), "commit": commit(), "hardware": hardware(), "rows": []}
    try:
        with interruptible(), tempfile.TemporaryDirectory(prefix="cachesvc-node-") as folder:
            Path(folder).chmod(0o755)  # services of other users reach the store of the agent
            report["rows"] = _measure(options, Path(folder))
    except Failed as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report, indent=1) + "\n")
    print(f"written: {options.json}")
    return int(any(row["broken"] for row in report["rows"]))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.node", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--starts", type=int, default=8, help="processes of a node; default: 8")
    parser.add_argument("--pack", type=int, default=24, help="MiB of the pack; default: 24")
    parser.add_argument("--quick", action="store_true", help="a pack of 4 MiB, and no process with torch")
    parser.add_argument("--rows", nargs="+", choices=[*ROWS], help="default: all")
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks" / "results" / "node.json")
    options = parser.parse_args()
    options.pack = 4 if options.quick else options.pack
    names = [name for name in ROWS if not (options.quick and name == "torch")]
    options.rows = options.rows or names
    return options


def _measure(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    with (
        registry(folder / "registry") as served,
        CountingRelay(served.url.removeprefix("http://")).running() as relay,
    ):
        assert isinstance(relay, CountingRelay)
        bench = Bench(served, relay, folder, options.starts)
        bench.pack = publish(served, folder, options.pack << 20)
        for name in options.rows:
            row = ROWS[name](bench)
            bench.rows.append({"row": name, **row})
            _show(bench.rows[-1])
        return bench.rows


def publish(served: Registry, folder: Path, size: int) -> int:
    """Publish an entry of ``size`` bytes in 200 files that fits this machine; return the bytes of its pack."""
    rng = random.Random(1)
    each = size // 200
    files = [
        SourceFile("inductor", f"fxgraph/{index:02x}/f{index:031x}/{index:032x}", rng.randbytes(each))
        for index in range(200)
    ]
    key = SigningKey.load(Path(served.signing_key))
    path = folder / "entry.cachesvc"
    fingerprint = detect(dict(os.environ))
    manifest = build_bundle(
        files, Draft(Name.parse(NAME), Target("service"), fingerprint, Workload(), ()), key, path, quick=True
    )
    with Remote(served.url, served.token) as remote:
        publish_bundle(remote, path, key)
    return manifest.pack.size


@contextmanager
def started(
    bench: Bench, node: Path, launcher: Sequence[str] = (), store: Path | None = None, **more: str
) -> Iterator[list[subprocess.Popen[str]]]:
    """Start the services of a node at one moment, each with a HOME and a TMPDIR of its own."""
    at = time.time() + 2.0
    with ExitStack() as stack:
        processes = []
        for number in range(bench.starts):
            host = Host(node / f"container-{number}")
            variables = bench.variables(BENCHMARK_AT=repr(at), **more)
            variables["CACHESVC_STORE"] = str(store or node / "store")
            environment = host.environment() | variables
            process = subprocess.Popen(
                [*launcher, sys.executable, str(PROCESS), NAME],
                env=environment,
                cwd=host.folder / "work",
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.callback(_end, process)
            processes.append(process)
        yield processes


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
    process.communicate()


def answers(processes: Sequence[subprocess.Popen[str]]) -> list[dict[str, Any]]:
    """Return what each process printed. Raise ``Failed`` for one that printed nothing."""
    rows = []
    for process in processes:
        out, errors = process.communicate(timeout=180)
        if process.returncode != 0 or not out:
            raise Failed(f"a service ended with status {process.returncode}: {errors[-2000:]}")
        rows.append(json.loads(out.splitlines()[-1]))
    return rows


def summary(
    bench: Bench, rows: Sequence[dict[str, Any]], passed: int, most: float = MOST_PACKS
) -> dict[str, Any]:
    """Return the row of a table. ``passed``: bytes that went through the relay."""
    restored = sum(1 for row in rows if row["installed"])
    packs = passed / bench.pack
    broken = [] if packs <= most else [f"{packs:.3f} packs, {most} at most"]
    broken += [] if restored == len(rows) else [f"{len(rows) - restored} starts did not restore"]
    waits = sorted(row["waited"] for row in rows)
    return {
        "starts": len(rows),
        "restored": restored,
        "pack_bytes": bench.pack,
        "bytes": passed,
        "packs": round(packs, 4),
        "wait_p50_s": round(waits[len(waits) // 2], 3),
        "wait_max_s": round(waits[-1], 3),
        "broken": broken,
    }


def processes_of_a_node(bench: Bench) -> dict[str, Any]:
    return _one_node(bench, ())


def containers_of_a_node(bench: Bench) -> dict[str, Any]:
    return _one_node(bench, CONTAINER)


def _one_node(bench: Bench, launcher: Sequence[str]) -> dict[str, Any]:
    before = bench.relay.passed
    with started(bench, bench.node(), launcher) as processes:
        rows = answers(processes)
    return summary(bench, rows, bench.relay.passed - before)


ROWS: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "processes": processes_of_a_node,
    "containers": containers_of_a_node,
}
"""The rows of the table, in their order."""


def _show(row: dict[str, Any]) -> None:
    print(
        f"{row['row']:26} {row['restored']:3} of {row['starts']:3} restored  {row['bytes']:11,} bytes = "
        f"{row['packs']:7.4f} packs  wait p50 {row['wait_p50_s']:6.3f} max {row['wait_max_s']:6.3f} s  "
        f"{'; '.join(row['broken'])}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
