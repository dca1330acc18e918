"""What a start costs under a name with many entries, of which it needs one: the oldest.

A fresh process with empty folders restores the name from an embedded registry, and compiles one function
whose entry was published first. Measured for names with few and many entries: the registry's answer (seconds
and bytes), the bytes that the start downloads against those of the one pack, the revisions that it installs,
and what it compiles. Run it from the root of the repository: ``python -m benchmarks.needed --out FILE``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import conditions
from benchmarks.hosts import QUICK, exit_status, use_this_tree
from benchmarks.load.large_name import fill
from cachesvc_client.http.registry import Remote, parse_resolved
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Name
from cachesvc_client.wire.requests import protocol
from cachesvc_client.wire.requests.protocol import ResolveRequest

SIZES = (10, 100, 2000)
"""Entries under the name, the needed one among them."""
RESOLVES = 31
"""Resolves of each size. Each names another model, so that no cache answers it."""
STARTS = 3
"""Starts of each size, each on a host of its own."""
NAME = "team/small"


def main() -> int:
    """Measure, print the rows, and write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--starts", type=int, default=STARTS)
    parser.add_argument("--out", type=Path, help="the JSON file to write")
    options = parser.parse_args()
    use_this_tree()

    def measure(folder: Path) -> None:
        rows = _measure(folder, sorted(options.sizes), options.starts)
        result = {"when": conditions.now(), "commit": conditions.commit(), **conditions.hardware()}
        result |= {"rows": rows, "ratios": _ratios(rows)}
        if options.out:
            options.out.write_text(json.dumps(result, indent=1) + "\n")
        print(json.dumps(result["ratios"], indent=1))

    return exit_status(measure)


def _measure(folder: Path, sizes: list[int], starts: int) -> list[dict[str, Any]]:
    from tests.e2e.conftest import built_once
    from tests.e2e.harness import run
    from tests.e2e.registries import client, prepare, serve

    built = built_once(folder, "function", "small", name=NAME, **QUICK)
    fingerprint = built.manifest(built.bundle).fingerprint
    prepare(folder / "registry", built.key.text)
    rows: list[dict[str, Any]] = []
    with serve(folder / "registry", prepared=False) as served:
        pushed = client("push", str(built.bundle), **served.publisher)
        assert pushed.returncode == 0, pushed.stderr
        entries = 1
        for size in sizes:
            fill(served.url, served.token, built.key, built.bundle, entries, size)
            entries = size
            row: dict[str, Any] = {"entries": size, "pack": built.manifest(built.bundle).pack.size}
            row |= _resolves(served.url, served.token, fingerprint)
            answers = []
            for number in range(starts):
                begin, variables = time.monotonic(), dict[str, Any](QUICK | served.variables)
                service = run(
                    "serve.py",
                    f"name={NAME}",
                    "small=1",
                    place=folder / f"host-{size}-{number}",
                    **variables,
                )
                answers.append(service.answer | {"whole": time.monotonic() - begin})
            row |= _starts(answers)
            rows.append(row)
            print(json.dumps(row), file=sys.stderr)
    return rows


def _resolves(url: str, token: str, fingerprint: dict[str, Any]) -> dict[str, Any]:
    name = Name.parse(NAME)
    known = {field.name for field in dataclasses.fields(ResolveRequest)}
    asked = {"most": protocol.FEW_RESOLVED} if "most" in known else {}
    seconds, size, revisions = [], 0, 0
    with Remote(url, token) as remote:
        for number in range(RESOLVES):
            model = Digest.of(f"model {number}".encode())
            request = ResolveRequest(name.namespace, name.name, fingerprint, model=model, **asked)  # type: ignore[arg-type]
            begin = time.perf_counter()
            raw, _ = remote.resolve_bytes(request)
            seconds.append(time.perf_counter() - begin)
            size, revisions = len(raw), len(parse_resolved(raw).revisions)
    return {
        "resolve_ms": round(1000 * statistics.median(seconds), 3),
        "resolve_bytes": size,
        "resolved_revisions": revisions,
    }


def _starts(answers: list[dict[str, Any]]) -> dict[str, Any]:
    def middle(value: Any) -> float:
        return round(statistics.median(map(value, answers)), 4)

    return {
        "states": sorted({answer["state"] for answer in answers}),
        "compilations": middle(lambda answer: answer["observed"]["torch"]["graphs_compiled"]),
        "bytes_moved": middle(lambda answer: answer["bytes_moved"]),
        "installed": middle(lambda answer: answer["installed"]),
        "wait_seconds": middle(lambda answer: answer["seconds"]["wait"]),
        "compile_seconds": middle(lambda answer: answer["seconds"]["compile"]),
        "whole_seconds": middle(lambda answer: answer["whole"]),
    }


def _ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what the reach names: each size against the smallest, and bytes moved against the one pack."""
    first = rows[0]
    return [
        {
            "entries": row["entries"],
            "resolve_against_smallest": round(row["resolve_ms"] / first["resolve_ms"], 2),
            "moved_against_needed": round(row["bytes_moved"] / row["pack"], 3),
            "installed": row["installed"],
            "states": row["states"],
        }
        for row in rows
    ]


if __name__ == "__main__":
    sys.exit(main())
