"""Measure what the processes of one node download, and what an agent that keeps its store warm costs.

A real registry on loopback serves one pack; a relay in front of it counts every byte of both directions,
heads of HTTP and answers to resolves too. Containers are processes in user, PID and mount namespaces of their
own, with a HOME and a TMPDIR of their own; readers of an agent's store are another user's, over a read-only
mount (where this runs as root). Exit status 1 if the processes of a node moved more than 1.05 packs (nothing,
where an agent had filled the store), or if a start did not restore. Usage: ``python -m benchmarks.node``
(``--quick``: a small pack). No process imports torch.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.hosts import ROOT, Failed, Host, Registry, registry
from cachesvc_client.bundle.pack import SourceFile
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.environment.detect import detect
from cachesvc_client.http.registry import Remote
from cachesvc_client.publication.build_bundle import Draft, build_bundle
from cachesvc_client.publication.publish_bundle import publish_bundle
from cachesvc_client.wire.manifest.records import PackRecord, Workload
from cachesvc_client.wire.names import Name, Target

from .relay import CountingRelay
from .report import report_rows


def free_port() -> int:
    """Return a port of loopback at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


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
    return report_rows(options.json, lambda folder: _measure(options, folder))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.node", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--starts", type=int, default=8, help="processes of a node; default: 8")
    parser.add_argument("--pack", type=int, default=24, help="MiB of the pack; default: 24")
    parser.add_argument("--quick", action="store_true", help="a pack of 4 MiB")
    parser.add_argument("--rows", nargs="+", choices=[*ROWS], help="default: all")
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks" / "results" / "node.json")
    options = parser.parse_args()
    options.pack = 4 if options.quick else options.pack
    options.rows = options.rows or [*ROWS]
    return options


def _measure(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    with (
        registry(folder / "registry") as served,
        CountingRelay(served.url.removeprefix("http://")).running() as relay,
    ):
        assert isinstance(relay, CountingRelay)
        bench = Bench(served, relay, folder, options.starts)
        bench.pack = publish(served, folder, options.pack << 20).size
        for name in options.rows:
            row = ROWS[name](bench)
            bench.rows.append({"row": name, **row})
            _show(bench.rows[-1])
        return bench.rows


def publish(served: Registry, folder: Path, size: int) -> PackRecord:
    """Publish an entry of ``size`` bytes in 200 files that fits this machine. Return its pack."""
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
    return manifest.pack


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
            own = store or (host.folder / "tmp" / "own" if "CACHESVC_NODE_STORE" in more else node / "store")
            variables = bench.variables(BENCHMARK_AT=repr(at), **more)
            variables["CACHESVC_STORE"] = str(own)
            environment = host.environment() | variables
            if "CACHESVC_NODE_STORE" in more:
                for folder in (host.folder, *host.folder.iterdir()):
                    folder.chmod(0o1777)  # another user's home
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


def one_process(bench: Bench) -> dict[str, Any]:
    """Measure what a process alone downloads, which is more than its pack."""
    return _one_node(bench, (), starts=1)


def processes_of_a_node(bench: Bench) -> dict[str, Any]:
    return _one_node(bench, ())


def containers_of_a_node(bench: Bench) -> dict[str, Any]:
    return _one_node(bench, CONTAINER)


def _one_node(bench: Bench, launcher: Sequence[str], starts: int = 0) -> dict[str, Any]:
    before, node = bench.relay.passed, bench.node()
    with started(replace(bench, starts=starts or bench.starts), node, launcher) as processes:
        rows = answers(processes)
    return summary(bench, rows, bench.relay.passed - before)


def downloader_killed(bench: Bench) -> dict[str, Any]:
    """Kill the process that downloads when a third of the pack has come."""
    node, before = bench.node(), bench.relay.passed
    partial = node / "store" / "v1" / "partial"
    bench.relay.delay = 0.02
    try:
        with started(bench, node, CONTAINER) as processes:
            _wait_until(lambda: any(_size(path) > bench.pack // 3 for path in partial.glob("*")))
            holder = _holder(node / "store" / "v1" / "locks", processes)
            holder.kill()
            rows = answers([one for one in processes if one is not holder])
    finally:
        bench.relay.delay = 0.0
    return summary(bench, rows, bench.relay.passed - before)


def agent_warm(bench: Bench) -> dict[str, Any]:
    """Start services of another user over a store that is read-only for them, which an agent has filled."""
    return _with_agent(bench, lost=False)


def registry_gone(bench: Bench) -> dict[str, Any]:
    """Do the same where the registry is gone: it has been for longer than the lists count as new."""
    return _with_agent(bench, lost=True)


def _with_agent(bench: Bench, *, lost: bool) -> dict[str, Any]:
    node = bench.node()
    store = node / "shared"
    node.mkdir(mode=0o755)
    with _agent(bench, store) as agent:
        _wait_until(lambda: _page(agent.port, "readyz") == "ok\n")
        peak = _status(agent.process.pid, "VmHWM")
        rounds_before, before = _metric(agent.port, 'rounds_total{result="done"}'), bench.relay.passed
        _wait_until(lambda: _metric(agent.port, 'rounds_total{result="done"}') >= rounds_before + 3)
        round_bytes = (bench.relay.passed - before) / 3
        agent.process.terminate()
        agent.process.wait(20)
    bench.relay.lost, before = lost, bench.relay.passed
    more: dict[str, Any] = {"CACHESVC_NODE_AGE": "0"} if lost else {}
    try:
        with started(bench, node, _reader(store), CACHESVC_NODE_STORE=str(store), **more) as processes:
            rows = answers(processes)
    finally:
        bench.relay.lost = False
    row = summary(bench, rows, bench.relay.passed - before, most=0.0)
    return row | {
        "agent_peak_MiB": round(peak / 1024, 1),
        "agent_round_bytes": round(round_bytes),
        "agent_end": agent.process.returncode,
        "readers": sorted({one["user"] for one in rows}),
    }


@dataclass
class _Agent:
    """Is a running agent, with the port of its pages."""

    process: subprocess.Popen[str]
    port: int


@contextmanager
def _agent(bench: Bench, store: Path) -> Iterator[_Agent]:
    port = free_port()
    words = ("node", "bench/*", "--store", str(store), "--interval", "1s", "--listen", f"127.0.0.1:{port}")
    command = [sys.executable, "-m", "cachesvc", *words]
    host = Host(store.parent / "agent")
    process = subprocess.Popen(
        command, env=host.environment() | bench.variables(), stderr=subprocess.PIPE, text=True
    )
    try:
        yield _Agent(process, port)
    finally:
        _end(process)


def _reader(store: Path) -> tuple[str, ...]:
    """Return what starts a service as another user, with a read-only mount of the store."""
    if os.geteuid() != 0:
        return ()
    script = f'mount --bind -o ro {store} {store} && exec setpriv --reuid=65534 --clear-groups "$@"'
    return ("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script, "sh")


def _holder(locks: Path, processes: Sequence[subprocess.Popen[str]]) -> subprocess.Popen[str]:
    """Return the process that downloads: the one whose child holds the lock of a pack."""
    inodes = {str(path.stat().st_ino) for path in locks.iterdir() if len(path.name) == 64}
    held = {
        int(words[4])
        for words in map(str.split, Path("/proc/locks").read_text().splitlines())
        if words[1] == "FLOCK" and words[5].rpartition(":")[2] in inodes
    }
    for process in processes:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        if {process.pid, *map(int, children)} & held:
            return process
    raise Failed("nobody holds the lock of the download")


def _status(pid: int, name: str) -> int:
    """Return a size of a process in KiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def _page(port: int, path: str) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=5) as answer:
            text: str = answer.read().decode()
            return text
    except OSError:
        return ""


def _metric(port: int, name: str) -> float:
    rows = [line for line in _page(port, "metrics").splitlines() if line.startswith(f"cachesvc_node_{name}")]
    return float(rows[0].rpartition(" ")[2]) if rows else 0.0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _wait_until(what: Callable[[], bool], seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not what():
        if time.monotonic() > until:
            raise Failed("it did not happen in time")
        time.sleep(0.02)


ROWS: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "one process": one_process,
    "processes": processes_of_a_node,
    "containers": containers_of_a_node,
    "downloader killed": downloader_killed,
    "agent": agent_warm,
    "agent, registry gone": registry_gone,
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
