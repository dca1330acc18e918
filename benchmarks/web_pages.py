"""Measure how long each page of ``/ui`` takes over an embedded registry that holds 10^5 entries.

Two shapes: the entries in 250 namespaces, seen by an administrator of all of them, and all entries in one
namespace, seen by an administrator of that one. Every page is asked for by HTTP, round after round, beside
the page of the login, which reads no index. Exit status 1 if the median of a page is above the bound.
Usage: ``python -m benchmarks.web_pages`` (``--entries 4000``: a look).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import io
import json
import os
import re
import sqlite3
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from benchmarks.conditions import commit, hardware, now
from benchmarks.hosts import ROOT, Failed, Registry, exit_status, registry
from benchmarks.load.columns import Embedded
from benchmarks.load.filling import FINGERPRINT, SCOPES
from benchmarks.load.making import pack
from benchmarks.load.web_rows import ONE_NAMESPACE, add_rows
from cachesvc.schema.access import TokenAnswer, TokenRequest
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.http.registry import Remote
from cachesvc_client.publication.build_bundle import next_sequence
from cachesvc_client.publication.publish_bundle import delivery
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest.records import Manifest, Statement, Workload
from cachesvc_client.wire.names import Namespace, ShortName, Target
from cachesvc_client.wire.partitions import environment
from cachesvc_client.wire.requests.reports import ReportRequest, RevisionReport

BOUND_MS = 100.0
"""Milliseconds that the median of a page may take."""
NAME = ShortName("web/model")
"""The name whose entries are published by the API, so that they have real signatures."""
TARGETS = 40
"""Entries of that name."""


@dataclass(frozen=True)
class Shape:
    """Says how the entries lie, and whose page it is: ``namespace`` of the administrator."""

    name: str
    namespace: str
    one_namespace: bool


SHAPES = (
    Shape("250 namespaces, administrator of all", "*", False),
    Shape("one namespace, its administrator", ONE_NAMESPACE, True),
)


def main() -> int:
    options = _options()
    report: dict[str, Any] = {
        "date": now(),
        "commit": commit(),
        "hardware": hardware(),
        "load_before": os.getloadavg()[0],
        "sqlite": sqlite3.sqlite_version,
        "jinja2": importlib.metadata.version("jinja2"),
        "entries": options.entries,
        "bound_ms": BOUND_MS,
        "shapes": {},
    }

    def measure(folder: Path) -> None:
        for number, shape in enumerate(SHAPES):
            report["shapes"][shape.name] = _measured(folder / str(number), shape, options)

    if status := exit_status(measure):
        return status
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
        print(f"written: {options.json}")
    return int(any(row["median_ms"] > BOUND_MS for rows in report["shapes"].values() for row in rows))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks" / "results" / "web_pages.json")
    return parser.parse_args()


def _measured(place: Path, shape: Shape, options: argparse.Namespace) -> list[dict[str, Any]]:
    print(f"\n{shape.name}")
    Embedded().fill_index(place, options.entries)
    add_rows(place / "index.sqlite3", one_namespace=shape.one_namespace)
    with registry(place) as server:
        pages = dict(_pages(server, shape))
        seconds: dict[str, list[float]] = {name: [] for name in pages}
        cpu = dict.fromkeys(pages, 0.0)
        with httpx.Client(base_url=server.url, timeout=60) as browser:
            _log_in(browser, server, shape)
            for _ in range(options.rounds + 1):  # the first round is thrown away
                for name, address in pages.items():
                    before = _cpu_seconds(server.pid)
                    seconds[name].append(_load(browser, address))
                    cpu[name] += _cpu_seconds(server.pid) - before
    rows = [_row(name, pages[name], times[1:]) for name, times in seconds.items()]
    for row in rows:
        row["cpu_ms"] = round(cpu[row["page"]] * 1000 / (options.rounds + 1), 1)
        row["of_login"] = round(row["median_ms"] / rows[0]["median_ms"], 1)
        verdict = "" if row["median_ms"] <= BOUND_MS else "  ABOVE THE BOUND"
        print(
            f"  {row['page']:34} {row['median_ms']:8.1f} ms  least {row['least_ms']:8.1f} ms  "
            f"CPU {row['cpu_ms']:6.1f} ms{verdict}"
        )
    return rows


def _row(name: str, address: str, seconds: list[float]) -> dict[str, Any]:
    return {
        "page": name,
        "address": re.sub(r"[0-9a-f]{64}", "…", address),
        "median_ms": round(statistics.median(seconds) * 1000, 1),
        "least_ms": round(min(seconds) * 1000, 1),
        "max_ms": round(max(seconds) * 1000, 1),
    }


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, to a hundredth of a second (proc(5): fields 14 and 15)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _load(browser: httpx.Client, address: str) -> float:
    began = time.perf_counter()
    answer = browser.get(address)
    seconds = time.perf_counter() - began
    if answer.status_code != 200:
        raise Failed(f"{address}: {answer.status_code}\n{answer.text[:2000]}")
    return seconds


def _log_in(browser: httpx.Client, server: Registry, shape: Shape) -> None:
    """Log in with a token of the shape's namespace."""
    request = TokenRequest("web", "admin", shape.namespace, days=1)
    secret = Remote(server.url, server.token).call("POST", "/v1/tokens", request, TokenAnswer).secret
    form = re.search(r'name="csrf" value="([^"]+)"', browser.get("/ui/login").text)
    assert form is not None
    answer = browser.post("/ui/login", data={"csrf": form[1], "token": secret, "next": "/ui"})
    if answer.status_code != 303:
        raise Failed(f"the login was answered with {answer.status_code}")


def _pages(server: Registry, shape: Shape) -> Iterator[tuple[str, str]]:
    """Yield (name, address) of every page. The first one reads no index."""
    revision, entry = _publish(server, Namespace(ONE_NAMESPACE))
    where = quote(environment(FINGERPRINT, FINGERPRINT, SCOPES), safe="")
    here = f"{ONE_NAMESPACE}/{NAME}"
    yield "login", "/ui/login"
    yield "overview", "/ui"
    yield "names", "/ui/names"
    yield "names, half-way", f"/ui/names?cursor={ONE_NAMESPACE}/model/5"
    yield "names that hold a text", "/ui/names?q=model/99"
    yield "names that hold no such text", "/ui/names?q=nothing-has-this"
    yield "a name", f"/ui/names/{here}"
    yield "an entry", f"/ui/entries/{entry}"
    yield "coverage", f"/ui/coverage/{here}"
    yield "coverage of a plan", f"/ui/coverage/{here}?torch=2.99.0"
    yield "environments to explain", f"/ui/explain/{here}"
    yield "explain", f"/ui/explain/{here}?environment={where}"
    yield "facts of an environment", f"/ui/environments/{here}?environment={where}"
    yield "usage, largest", "/ui/usage"
    yield "usage, saved most", "/ui/usage?by=dearest"
    yield "usage, unused", "/ui/usage?by=coldest"
    yield "misses", "/ui/misses"
    yield "claims", "/ui/claims"
    if shape.namespace == "*":
        yield "collection", "/ui/collection"
    yield "tokens", "/ui/tokens"
    yield "tokens, revoked too", "/ui/tokens?revoked=true&from=500"
    yield "signers", "/ui/signers"
    yield "quarantine", "/ui/quarantine"
    yield "audit", "/ui/audit"
    yield "audit, of an action", "/ui/audit?action=revision"
    yield "audit, of an action nobody took", "/ui/audit?action=nothing"
    yield "audit, of a subject nobody has", "/ui/audit?subject=nothing-has-this"
    yield "a change of a revision", f"/ui/change/revisions/{revision}/quarantine"
    yield "a change of a token", f"/ui/change/tokens/{_token(server)}/expire"


def _token(server: Registry) -> str:
    request = TokenRequest("some token", "read", ONE_NAMESPACE, days=1)
    return Remote(server.url, server.token).call("POST", "/v1/tokens", request, TokenAnswer).token


def _publish(server: Registry, namespace: Namespace) -> tuple[Digest, Digest]:
    """Publish the entries of one name, report a start with each, and return (revision, entry) of the last."""
    key = SigningKey.load(Path(server.signing_key))
    manifest, revision = None, None
    with Remote(server.url, server.token, timeout=60) as remote:
        for number in range(TARGETS):
            packed = pack(4096, number)
            statement = Statement(namespace, NAME, Target(f"model/{number}"), next_sequence(0))
            contents, workload = packed.contents, Workload(model=Digest.of(b"model"))
            manifest = Manifest(
                statement, contents.pack, contents.frames, contents.files, FINGERPRINT, workload, SCOPES
            )
            with delivery(remote, manifest, io.BytesIO(packed.data), 0) as deliver:
                revision = deliver(key.sign(manifest), None).revision
            report = ReportRequest("a" * 32, FINGERPRINT, (RevisionReport(revision, "hit", saved=20.0),))
            remote.report(report)
    assert manifest is not None and revision is not None
    return revision, manifest.entry


if __name__ == "__main__":
    sys.exit(main())
