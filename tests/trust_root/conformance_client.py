#!/usr/bin/env python3
"""The command line that tuf-conformance tests, over the client's own reader of trust metadata.

Run it by hand; CI cannot fetch the suite (https://github.com/theupdateframework/tuf-conformance):

    pip install . && pytest tuf_conformance --entrypoint "python PATH/tests/trust_root/conformance_client.py"

The workflow of root, timestamp, snapshot and targets is the client's. The search through delegated targets
files and the download of a target are of this program, over the client's checks: a service needs neither,
because delegations end at a revision's own signatures.
"""

from __future__ import annotations

import argparse
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from cachesvc_client.trust_root.local import LocalMetadata
from cachesvc_client.trust_root.metadata import Delegation, FileInfo, Targets, read_targets
from cachesvc_client.trust_root.policy import fits
from cachesvc_client.trust_root.signed import SignedFile
from cachesvc_client.trust_root.updater import MAX_METADATA_BYTES, TrustMetadata, Updater
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import CacheSvcError, Corrupt, NotFound, Unavailable, Untrusted

MAX_ROLES = 32


class FlatFolder(LocalMetadata):
    """The suite reads ``root.json``, without a version in the name."""

    def read(self, name: str) -> bytes | None:
        return None if name.endswith(".root.json") else super().read(name)

    def write(self, name: str, data: bytes) -> None:
        super().write("root.json" if name.endswith(".root.json") else name, data)


def get(url: str, limit: int) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            data: bytes = answer.read(limit + 1)
    except urllib.error.HTTPError as error:
        raise NotFound(f"{url}: {error.code}") from None
    except OSError as error:
        raise Unavailable(f"{url}: {error}") from None
    if len(data) > limit:
        raise Corrupt(f"{url}: more than {limit} bytes")
    return data


class Search:
    """Looks for a target in the targets roles, depth first."""

    def __init__(self, trusted: TrustMetadata, local: FlatFolder, url: str, now: float) -> None:
        self._trusted, self._local, self._url, self._now = trusted, local, url, now
        self._visited: set[str] = set()
        self._ended = False

    def find(self, path: str) -> dict[str, object] | None:
        top = SignedFile.parse(
            self._local.read("targets.json") or b"", limit=MAX_METADATA_BYTES, what="targets"
        )
        return self._find(path, top, self._trusted.targets)

    def _find(self, path: str, file: SignedFile, targets: Targets) -> dict[str, object] | None:
        for found in self._candidates(path, file, targets):
            return found
        return None

    def _candidates(self, path: str, file: SignedFile, targets: Targets) -> Iterator[dict[str, object]]:
        if path in file.content["targets"]:
            yield file.content["targets"][path]
        for delegation in targets.delegations:
            if self._ended:
                return
            if delegation.name in self._visited or not any(fits(path, one) for one in delegation.paths):
                continue
            if len(self._visited) >= MAX_ROLES:
                return
            self._visited.add(delegation.name)
            child = self._load(delegation, targets)
            found = self._find(path, child, read_targets(child))
            if found is not None:
                yield found
            self._ended = self._ended or delegation.terminating

    def _load(self, delegation: Delegation, parent: Targets) -> SignedFile:
        info = self._trusted.snapshot.files.get(f"{delegation.name}.json")
        if info is None:
            raise Untrusted(f"{delegation.name}: the snapshot does not name it")
        name = quote(delegation.name, safe="")
        data = self._local.read(f"{name}.json")
        try:
            return self._check(data or b"", delegation, parent, info)
        except CacheSvcError:
            prefix = f"{info.version}." if self._trusted.root.consistent_snapshot else ""
            data = get(
                f"{self._url}/{prefix}{name}.json", min(info.length or MAX_METADATA_BYTES, MAX_METADATA_BYTES)
            )
        file = self._check(data, delegation, parent, info)
        self._local.write(f"{name}.json", data)
        return file

    def _check(self, data: bytes, delegation: Delegation, parent: Targets, info: FileInfo) -> SignedFile:
        info.check(data, delegation.name)
        file = SignedFile.parse(data, limit=MAX_METADATA_BYTES, what=delegation.name)
        file.require(delegation.role, parent.keys, "the delegation")
        common = read_targets(file).common
        if common.version != info.version or common.expires <= self._now:
            raise Untrusted(f"{delegation.name}: another version, or expired")
        return file


def download(path: str, target: dict[str, object], base: str, folder: Path, consistent: bool) -> None:
    length, hashes = target["length"], target["hashes"]
    if not isinstance(length, int) or not isinstance(hashes, dict):
        raise Corrupt(f"{path}: length and hashes are expected")
    info, place = FileInfo(1, length, hashes), folder / Digest.of(path.encode()).hex
    if place.exists():
        try:
            return info.check(place.read_bytes(), path)
        except Corrupt:
            pass
    name = f"{next(iter(hashes.values()))}.{path.rpartition('/')[2]}" if consistent else path
    parent = path.rpartition("/")[0]
    url = "/".join(part for part in (base.rstrip("/"), parent if consistent else "", quote(name)) if part)
    data = get(url, length)
    if len(data) != length:
        raise Corrupt(f"{path}: {len(data)} bytes, {length} are signed")
    info.check(data, path)
    place.write_bytes(data)


def main() -> int:
    parser = argparse.ArgumentParser()
    for option in ("--metadata-url", "--metadata-dir", "--target-dir", "--target-base-url"):
        parser.add_argument(option)
    parser.add_argument("--target-name", action="append", default=[])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("init").add_argument("root")
    commands.add_parser("refresh")
    commands.add_parser("download")
    arguments = parser.parse_args()
    local = FlatFolder(Path(arguments.metadata_dir))
    if arguments.command == "init":
        local.write("root.json", Path(arguments.root).read_bytes())
        return 0
    url, now = arguments.metadata_url.rstrip("/"), time.time()
    try:
        updater = Updater(LocalMetadata.read(local, "root.json") or b"", local, url, now)
        trusted = updater.refresh(lambda name, limit: get(f"{url}/{name}", limit))
        for path in arguments.target_name if arguments.command == "download" else ():
            target = Search(trusted, local, url, now).find(path)
            if target is None:
                raise NotFound(f"{path}: no role names it")
            base, folder = arguments.target_base_url, Path(arguments.target_dir)
            download(path, target, base, folder, trusted.root.consistent_snapshot)
    except CacheSvcError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
