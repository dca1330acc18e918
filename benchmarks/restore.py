"""Measure how fast a node is filled: 4,000 files, 200 MB, with cachesvc against ``cp -r`` and ``tar | zstd``.

Alternating rounds in one run; medians. Dirty pages are written out before each measurement (not counted),
so that no method pays for the one before. "first fill" is envelope check, download over loopback HTTP into
the node store, digests of all frames, and install into an empty folder; "second process" is the same with
the node store filled. Usage: ``python benchmarks/restore.py [--dir DIR ...]``.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import http.client
import http.server
import json
import os
import platform
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import zstandard

from cachesvc_client.bundle.check import ExpectedStatement, check_envelope
from cachesvc_client.bundle.pack import PackReader, SourceFile, write_pack
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.kinds.rules import FileRule, KindRules
from cachesvc_client.node.install import install
from cachesvc_client.node.staging import Staging
from cachesvc_client.node.store import NodeStore
from cachesvc_client.wire.manifest.records import Manifest, Statement, Workload
from cachesvc_client.wire.names import Namespace, ShortName, Target

RULES = {"inductor": KindRules("inductor", (FileRule(r"[a-z0-9/_.]+"),))}
METHODS = ("cp -r", "tar|zstd create", "tar|zstd extract", "first fill", "second process")


def main() -> int:
    options = _options()
    folders = options.dir or [tempfile.gettempdir(), *(["/dev/shm"] if os.path.isdir("/dev/shm") else [])]
    report = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "hardware": {"cpus": os.cpu_count(), "machine": _cpu_model(), "kernel": platform.release()},
        "load_before": os.getloadavg()[0],
        "versions": {
            "python": platform.python_version(),
            "zstandard": zstandard.__version__,
            "libzstd": ".".join(map(str, zstandard.ZSTD_VERSION)),
        },
        "files": options.files,
        "megabytes": options.megabytes,
        "rounds": options.rounds,
        "runs": [_run(Path(folder), options) for folder in folders],
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report, indent=1) + "\n")
    print(f"written: {options.json}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", action="append", help="where to measure; default: TMPDIR and /dev/shm")
    parser.add_argument("--files", type=int, default=4000)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "restore.json")
    return parser.parse_args()


def _run(parent: Path, options: argparse.Namespace) -> dict[str, object]:
    with tempfile.TemporaryDirectory(dir=parent, prefix="cachesvc-restore-") as name:
        work = Path(name)
        _make_source(work / "source", options.files, options.megabytes * 1_000_000)
        bench = _Bench(work)
        with bench.serving():
            for _ in range(options.rounds):
                for method in METHODS:
                    bench.measure(method)
        return _shown(parent, bench)


def _shown(parent: Path, bench: _Bench) -> dict[str, object]:
    kind = subprocess.run(["stat", "-f", "-c", "%T", parent], capture_output=True, text=True, check=True)
    medians = {method: statistics.median(seconds) for method, seconds in bench.seconds.items()}
    pack, tar = bench.pack_bytes / 1e6, bench.tar_bytes / 1e6
    print(f"\n{kind.stdout.strip()}: pack {pack:.1f} MB, tar.zst {tar:.1f} MB")
    for method, median in medians.items():
        spread = f"{min(bench.seconds[method]):.3f}-{max(bench.seconds[method]):.3f}"
        print(f"  {method:18} {median:7.3f} s  ({spread})  {median / medians['cp -r']:5.2f} x cp -r")
    return {
        "filesystem": kind.stdout.strip(),
        "pack_bytes": bench.pack_bytes,
        "tar_zstd_bytes": bench.tar_bytes,
        "seconds": bench.seconds,
        "median": medians,
        "ratio_to_cp": {method: median / medians["cp -r"] for method, median in medians.items()},
    }


class _Bench:
    """Runs the methods over one source folder."""

    def __init__(self, work: Path) -> None:
        self.seconds: dict[str, list[float]] = {}
        self.tar_bytes = 0
        self._source, self._target, self._store = work / "source", work / "target", work / "store"
        self._pack, self._tar = work / "pack", work / "source.tar.zst"
        self._key = SigningKey.generate()
        files = [
            SourceFile("inductor", str(path.relative_to(self._source)), path)
            for path in sorted(self._source.rglob("*"))
            if path.is_file()
        ]
        with open(self._pack, "wb") as out:
            contents = write_pack(files, out)
        self.pack_bytes = contents.pack.size
        statement = Statement(Namespace("bench"), ShortName("restore"), Target("files"), 1)
        manifest = Manifest(statement, contents.pack, contents.frames, contents.files, {}, Workload())
        self._envelope = self._key.sign(manifest)
        self._methods: dict[str, Callable[[], object]] = {
            "cp -r": functools.partial(_shell, f"cp -r {self._source} {self._target}"),
            "tar|zstd create": functools.partial(
                _shell, f"tar -C {self._source} -cf - . | zstd -q -3 -f -o {self._tar}"
            ),
            "tar|zstd extract": functools.partial(
                _shell, f"mkdir {self._target} && zstd -q -dc {self._tar} | tar -C {self._target} -xf -"
            ),
            "first fill": self._restore,
            "second process": self._restore,
        }

    def measure(self, method: str) -> None:
        """Run one round of one method, into an empty folder."""
        shutil.rmtree(self._target, ignore_errors=True)
        if method == "first fill":
            shutil.rmtree(self._store, ignore_errors=True)
        os.sync()
        began = time.perf_counter()
        byte_count = self._methods[method]()
        self.seconds.setdefault(method, []).append(time.perf_counter() - began)
        expected = {"first fill": self.pack_bytes, "second process": 0}.get(method, byte_count)
        if byte_count != expected:
            raise SystemExit(f"{method}: {byte_count} bytes over the network, expected {expected}")
        if method != "tar|zstd create":
            _shell(f"diff -r -x .cachesvc {self._source} {self._target}")
        if self._tar.exists():
            self.tar_bytes = self._tar.stat().st_size

    def serving(self) -> _Server:
        """Run the file server, a process of its own."""
        self._server = _Server(self._pack)
        return self._server

    def _restore(self) -> int:
        expected = ExpectedStatement(Namespace("bench"), ShortName("restore"))
        verified = check_envelope(
            self._envelope, trusted=[self._key.public], expected=expected, now=time.time()
        )
        pack = verified.manifest.pack
        roots = {"inductor": self._target}
        store = NodeStore(self._store)
        with Staging(verified.manifest, RULES, lambda: roots) as staging:
            path, downloaded_bytes = store.fetch(pack.digest, pack.size, self._server.download, staging)
            with PackReader(path, verified.manifest) as reader:
                install(reader, RULES, roots, staged=staging.finish())
        return downloaded_bytes


class _Server:
    """Serves one file with ranges, from a process of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> _Server:
        command = [sys.executable, __file__, "--serve", str(self._path)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._port = int(self._process.stdout.readline())
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def download(self, offset: int) -> Iterator[bytes]:
        """Yield the file's bytes from ``offset`` on."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        connection.request("GET", "/", headers={"Range": f"bytes={offset}-"})
        answer = connection.getresponse()
        while chunk := answer.read(1 << 20):
            yield chunk
        connection.close()


def _serve(path: Path) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            begin = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
            self.send_response(206)
            self.send_header("Content-Length", str(path.stat().st_size - begin))
            self.end_headers()
            self.wfile.flush()
            with open(path, "rb") as file:
                self.connection.sendfile(file, begin)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


def _make_source(root: Path, files: int, total: int) -> None:
    """Make files with the sizes of a max-autotune cache (many small, few large), and contents that halve
    under zstd."""
    chance = random.Random(7)
    weights = [chance.lognormvariate(0, 1.5) for _ in range(files)]
    folder = root
    words = [chance.randbytes(24) for _ in range(64)]
    for index, weight in enumerate(weights):
        size = max(64, int(total * weight / sum(weights)))
        suffix = ("cubin", "json", "so", "py")[index % 4]
        folder = root / f"triton/0/{chance.randbytes(6).hex()}" if index % 10 == 0 else folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"f{index}.{suffix}").write_bytes(_content(chance, words, size))


def _content(chance: random.Random, words: list[bytes], size: int) -> bytes:
    parts = []
    for _ in range(size // 4096 + 1):
        parts.append(chance.randbytes(1800))
        parts.extend(chance.choices(words, k=96))
    return b"".join(parts)[:size]


def _shell(command: str) -> None:
    subprocess.run(command, shell=True, check=True)


def _cpu_model() -> str:
    match = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return match[1] if match else platform.machine()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        _serve(Path(sys.argv[2]))
    else:
        sys.exit(main())
