"""Measure honest resolves of a registry while many hostile connections are open, one kind after the other.

One embedded registry process. Honest clients resolve in a steady, light pattern; rounds alternate between a
quiet time and a hostile one, so that other work of the machine falls on both. Medians of the rounds are
shown, with the smallest and the largest in parentheses. The hostile connections are one process with one
event loop, which is light because it shares the CPUs with the server: a connection that was answered or ended
is opened again after some seconds, so this is no flood of new connections. All on loopback. Exit status 1 if
a target is missed. Usage: ``python -m benchmarks.hostile_load`` (``--quick``: a look).
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.conditions import commit, hardware, keep, now
from benchmarks.hosts import ROOT, Failed, Registry, clean_environment, registry, running_process
from benchmarks.load.columns import Embedded
from benchmarks.load.honest import CLIENTS, EVERY_SECONDS, Clients
from benchmarks.load.hostile import OPENING_SECONDS, REOPEN_SECONDS, Attack
from benchmarks.load.making import manifest, pack, publish
from cachesvc.cli.signals import interruptible
from cachesvc.schema.access import TokenAnswer, TokenRequest
from cachesvc.schema.publishers import PublisherRecord, PublisherRequest
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.http.registry import Remote
from cachesvc_client.http.uploads import Uploads
from cachesvc_client.wire.names import Lane, Namespace, ShortName
from cachesvc_client.wire.requests.protocol import UploadRequest
from tests.services.certificate import certificate

MIB = 1 << 20
ENTRIES = 1_000
TIMES = 2.0
"""What the p99 of honest resolves may be of the quiet one."""
MORE_MIB = 256
"""MiB that the server may take beyond its quiet size."""
ISSUERS = 32
"""Issuers that never answer: as many rules as a namespace may have."""
UPLOADS = 64
SERVER = {"CACHESVC_SERVER_PRIVATE_ADDRESSES": "true"}
"""Settings: the issuers that never answer are on loopback."""


@dataclass(frozen=True)
class Extent:
    """Says how much is measured."""

    connections: int = 1_000
    rounds: int = 3
    seconds: float = 8
    opening: float = OPENING_SECONDS


QUICK = Extent(40, 1, 1, 0.5)


@dataclass(frozen=True)
class Window:
    """Holds the outcome of one time: honest answers, and the peak of the server's memory."""

    p50_ms: float
    p99_ms: float
    failures: list[str]
    answers: int
    before_mib: float
    peak_mib: float
    hostile: dict[str, int]


def main() -> int:
    options = _options()
    extent = QUICK if options.quick else Extent()
    try:
        with interruptible():
            report = _report(extent, options.kinds)
    except Failed as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    keep(report, options.json)
    return int(not options.quick and not all(row["reached"] for row in report["rows"]))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="little of everything, and no judgement")
    parser.add_argument("--kinds", nargs="+", default=(), help="words of the names of kinds; default: all")
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks" / "results" / "hostile_load.json")
    return parser.parse_args()


def _report(extent: Extent, wanted: Sequence[str]) -> dict[str, Any]:
    report: dict[str, Any] = {
        "date": now(),
        "commit": commit(),
        "hardware": hardware(),
        "load_before": os.getloadavg()[0],
        "extent": asdict(extent),
        "honest": {"clients": CLIENTS, "every_seconds": EVERY_SECONDS, "entries": ENTRIES},
        "reopen_seconds": REOPEN_SECONDS,
        "rows": [],
    }
    print(
        f"{'hostile connections':58}{'quiet p99':>22}{'hostile p99':>24}{'times':>7}{'failed':>8}{'MiB':>6}"
    )
    with tempfile.TemporaryDirectory(prefix="cachesvc-hostile-") as folder:
        for encrypted in (False, True):
            for row in _of_one_server(Path(folder, f"tls-{encrypted}"), encrypted, extent, wanted):
                report["rows"].append(row)
                _show(row)
    return report


def _of_one_server(
    place: Path, encrypted: bool, extent: Extent, wanted: Sequence[str]
) -> Iterator[dict[str, Any]]:
    settings, context = dict(SERVER), None
    Embedded().fill_index(place, ENTRIES)
    if encrypted:
        chain, key = certificate(place)
        settings |= {"CACHESVC_SERVER_TLS_CERTIFICATE": str(chain), "CACHESVC_SERVER_TLS_KEY": str(key)}
        settings |= {"SSL_CERT_FILE": str(chain)}
        context = ssl.create_default_context(cafile=str(chain))
    with _silent() as silent, registry(place, **settings) as server:
        attacks = _of_handshakes() if encrypted else _of_requests(server, silent)
        honest = Clients(server.url, _secret_of(server, context), ENTRIES // 4, context)
        honest.resolve(2)  # the first requests load modules
        for attack in attacks:
            if all(word in attack.name for word in wanted):
                yield _measured(attack, server, honest, extent)


def _secret_of(server: Registry, context: ssl.SSLContext | None) -> str:
    """Return a reader's token. Over TLS that of the first start: the client of Python trusts no such
    certificate in this process."""
    return server.token if context else _secret(server, "read", "*")


def _secret(server: Registry, role: str, namespace: str, lane: str | None = None) -> str:
    request = TokenRequest("load", role, namespace, Lane(lane) if lane else None, days=1)
    answer = Remote(server.url, server.token).call("POST", "/v1/tokens", request, TokenAnswer)
    assert answer.secret
    return answer.secret


def _of_handshakes() -> list[Attack]:
    return [
        Attack("TLS: a handshake that never begins", "no token"),
        Attack("TLS: a handshake that stops half-way", "no token", ("\x16\x03\x01\x02\x00\x01\x00",)),
    ]


def _of_requests(server: Registry, silent: int) -> list[Attack]:
    reader, lane = _secret(server, "read", "evil"), _secret(server, "write", "evil", "pr-1")
    writer = _secret(server, "write", "evil")
    uploads = _uploads(server, lane, "pr-1")
    unfinished = _uploads(server, writer, None)[:1]
    nowhere = "/v1/uploads/u-" + "0" * 32
    return [
        Attack("connections without a request", "no token"),
        Attack(
            "bodies that never come, to a login or an exchange",
            "no token",
            (_head("POST", "/v1/oidc/token", 1000), _head("POST", "/ui/login", 1000)),
        ),
        Attack("the same bodies, 10 B/s", "no token", (_head("POST", "/v1/oidc/token", 20_000),), 10, 20_000),
        Attack(
            "commits of 50 MiB for no upload, unfinished",
            "a read token",
            (_head("POST", f"{nowhere}/commit", 50 * MIB, reader),),
            64 << 10,
            49 * MIB,
        ),
        Attack(
            "commits of 50 MiB for an own upload, unfinished",
            "a write token",
            tuple(_head("POST", f"/v1/uploads/{one}/commit", 50 * MIB, writer) for one in unfinished),
            64 << 10,
            49 * MIB,
        ),
        Attack(
            "resolves of 250 KiB, 5 kB/s",
            "a read token",
            (_head("POST", "/v1/resolve", 250 << 10, reader),),
            5_000,
            250_000,
        ),
        Attack(
            "uploads at 5 kB/s",
            "a lane's token",
            tuple(_head("PUT", f"/v1/uploads/{one}/pack", 10 * MIB, lane) for one in uploads),
            5_000,
            10 * MIB - 1,
        ),
        Attack(
            "packs that are asked for and not read",
            "a read token",
            (_head("GET", f"/v1/revisions/{_pack(server)}/pack", 0, _secret(server, "read", "bench")),),
            reads=False,
        ),
        Attack(
            f"exchanges for {ISSUERS} issuers that never answer",
            "a namespace's admin",
            tuple(_exchange(server, f"http://127.0.0.1:{silent}/{number}") for number in range(ISSUERS)),
        ),
    ]


def _head(method: str, path: str, length: int, token: str = "") -> str:
    lines = [f"{method} {path} HTTP/1.1", "Host: registry", "Content-Type: application/json"]
    lines += [f"Content-Length: {length}", *([f"Authorization: Bearer {token}"] if token else [])]
    return "\r\n".join([*lines, "", ""])


def _uploads(server: Registry, token: str, lane: str | None) -> list[str]:
    remote = Remote(server.url, token)
    named = Lane(lane) if lane else None
    request = UploadRequest(Namespace("evil"), ShortName("model"), 10 * MIB, named)
    return [str(Uploads(remote).begin(request).upload) for _ in range(UPLOADS)]


def _pack(server: Registry) -> str:
    """Publish a pack of 20 MiB. Return its revision."""
    packed = pack(20 * MIB, 1)
    key = SigningKey.load(Path(server.signing_key))
    return publish(Remote(server.url, server.token), key, packed, manifest(packed, "large", "one"), None)


def _exchange(server: Registry, issuer: str) -> str:
    rule = PublisherRequest(
        issuer, "cachesvc", {"repository": "evil/evil", "ref": "refs/heads/main"}, Namespace("evil")
    )
    Remote(server.url, server.token).call("POST", "/v1/publishers", rule, PublisherRecord)
    parts = ({"alg": "ES256", "kid": "one", "typ": "JWT"}, {"iss": issuer})
    token = ".".join(
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts
    )
    body = json.dumps({"token": f"{token}.c2ln"})
    return _head("POST", "/v1/oidc/token", len(body)) + body


@contextmanager
def _silent() -> Iterator[int]:
    """Yield the port of a service that accepts connections in its backlog and answers none."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        yield listener.getsockname()[1]


def _measured(attack: Attack, server: Registry, honest: Clients, extent: Extent) -> dict[str, Any]:
    quiet, hostile = [], []
    for _ in range(extent.rounds):
        quiet.append(_window(server, lambda: honest.resolve(extent.seconds)))
        with _attacking(attack, server, extent) as ended:
            hostile.append(_window(server, lambda: honest.resolve(extent.seconds), ended))
        time.sleep(1)
    return _row(attack, quiet, hostile)


def _window(server: Registry, act: Callable[[], Any], ended: Callable[[], dict[str, int]] = dict) -> Window:
    Path(f"/proc/{server.pid}/clear_refs").write_text("5")  # the peak begins anew
    before = _mib(server.pid, "VmRSS")
    outcome = act()
    times = sorted(outcome.milliseconds) or [float("nan")]
    return Window(
        round(statistics.median(times), 2),
        round(times[int(len(times) * 0.99)], 2),
        outcome.failures,
        len(outcome.milliseconds),
        before,
        _mib(server.pid, "VmHWM"),
        ended(),
    )


@contextmanager
def _attacking(attack: Attack, server: Registry, extent: Extent) -> Iterator[Callable[[], dict[str, int]]]:
    command = [sys.executable, "-m", "benchmarks.load.hostile"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    address = urlsplit(server.url)
    assert address.hostname and address.port
    with running_process(command, env=clean_environment(), cwd=ROOT, text=True, **pipes) as process:
        assert process.stdin
        process.stdin.write(
            attack.to_json(address.hostname, address.port, extent.connections, extent.opening) + "\n"
        )
        process.stdin.flush()

        def ended() -> dict[str, int]:
            out, _ = process.communicate(timeout=60)
            counts: dict[str, int] = json.loads(out)
            return counts

        time.sleep(extent.opening + 1)
        yield ended


def _mib(pid: int, what: str) -> float:
    found = re.search(rf"{what}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return round(int(found[1]) / 1024, 1)


def _row(attack: Attack, quiet: list[Window], hostile: list[Window]) -> dict[str, Any]:
    before, during = ([one.p99_ms for one in windows] for windows in (quiet, hostile))
    failures = [failure for one in hostile for failure in one.failures]
    more = round(max(one.peak_mib for one in hostile) - quiet[0].before_mib, 1)
    times = round(statistics.median(during) / statistics.median(before), 2)
    return {
        "name": attack.name,
        "who": attack.who,
        "quiet_p50_ms": statistics.median(one.p50_ms for one in quiet),
        "quiet_p99_ms": before,
        "hostile_p50_ms": statistics.median(one.p50_ms for one in hostile),
        "hostile_p99_ms": during,
        "times": times,
        "failed": len(failures),
        "failures": dict(Counter(failures).most_common(5)),
        "failed_in_quiet": sum(len(one.failures) for one in quiet),
        "answers": sum(one.answers for one in hostile),
        "quiet_mib": quiet[0].before_mib,
        "more_mib": more,
        "hostile": [one.hostile for one in hostile],
        "reached": times <= TIMES and not failures and more <= MORE_MIB,
    }


def _show(row: dict[str, Any]) -> None:
    cells = [spread(row[f"{when}_p99_ms"]) for when in ("quiet", "hostile")]
    name = f"{row['who']}: {row['name']}"
    print(
        f"{name:58}{cells[0]:>22}{cells[1]:>24}{row['times']:7.2f}{row['failed']:8}{row['more_mib']:6.0f}"
        + ("" if row["reached"] else "  MISSED"),
        flush=True,
    )


def spread(values: list[float]) -> str:
    """Return the median of the rounds, with the smallest and the largest."""
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


if __name__ == "__main__":
    sys.exit(main())
