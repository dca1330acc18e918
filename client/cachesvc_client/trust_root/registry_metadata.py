"""Bring the trust metadata of a registry up to date, with one request where nothing has changed."""

from __future__ import annotations

import os
import time
import urllib.parse
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ..node.path_owners import foreign_file
from ..wire.errors import CacheSvcError, Corrupt, InvalidRequest, NotFound, Untrusted
from ..wire.requests.protocol import TrustAnswer
from .local import LocalMetadata, Remembering
from .policy import SignerPolicy
from .updater import MAX_ROOT_BYTES, Fetch, TrustMetadata, Updater

if TYPE_CHECKING:
    from ..http.registry import Remote
    from ..node.store import NodeStore


def read_pinned(path: Path) -> bytes:
    """Return the bytes of a pinned root. Raise ``InvalidRequest``, also for a file that another user may have
    written: it says whom to trust."""
    try:
        # Not held up by a pipe. A link is followed: the files of a Kubernetes volume are links.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if why := foreign_file(file.fileno()):
                raise InvalidRequest(f"trust root {path}: {why}", f"chmod go-w {path}, if you trust it")
            return file.read(MAX_ROOT_BYTES + 1)
    except OSError as error:
        raise InvalidRequest(
            f"trust root {path}: {error.strerror or error}", "log in again, or set CACHESVC_TRUST_ROOT"
        ) from None


class TrustConfig(Protocol):
    """Declares the setting that pins a root."""

    @property
    def url(self) -> str | None:
        """Return the address of the registry."""

    @property
    def trusted_keys(self) -> Sequence[object]:
        """Return the keys that the user trusts."""

    @property
    def trust_root(self) -> Path | None:
        """Return the path of the pinned root; ``None`` if the trusted keys decide alone."""


def policy_of(config: TrustConfig, store: NodeStore, remote: Remote) -> SignerPolicy | None:
    """Return whose signatures count by the registry's present metadata; ``None`` without a pinned root.

    Raise as `refresh_policy` does.
    """
    if config.trust_root is None:
        return None
    policy, _ = refresh_policy(config.trust_root, store.trust_folder, remote)
    return policy


def policy_of_node(config: TrustConfig, store: NodeStore) -> tuple[SignerPolicy | None, str]:
    """Return whose signatures count by the metadata that this node has, without a request, and a warning.

    Without a pinned root the policy is ``None``. If the node has no metadata yet, the trusted keys decide
    alone, and the warning says so; without such keys this raises ``Untrusted``.
    """
    if config.trust_root is None:
        return None, ""
    try:
        return last_policy(config.trust_root, store.trust_folder, config.url or ""), ""
    except Untrusted as error:
        if not config.trusted_keys:
            raise
        return None, f"CACHESVC_TRUSTED_KEYS decides alone: {error}"


@dataclass(frozen=True, slots=True)
class AgentMetadata:
    """Names where this node's agent keeps the trust metadata of registries, which no one has verified here.
    ``max_age``: seconds for which they count without a question to the registry."""

    folder: Path
    max_age: float

    def fetch_from(self, url: str, root: bytes) -> tuple[Fetch, float] | None:
        """Return a function that takes a registry's files from there, and how many seconds old they are;
        ``None`` if they are not there."""
        files = LocalMetadata.of_registry(self.folder, url, root)
        age = files.age("timestamp.json")

        def fetch(name: str, limit: int) -> bytes:
            is_root = name.endswith(".root.json")
            data = files.read(name if is_root or not name[0].isdigit() else name.split(".", 1)[1])
            if data is None or len(data) > limit:
                raise NotFound(f"{name}: not on this node")
            return data

        return None if age is None else (fetch, age)


def refresh_policy(
    pinned: Path,
    store: Path,
    remote: Remote,
    deadline: float | None = None,
    agent: AgentMetadata | None = None,
) -> tuple[SignerPolicy, str]:
    """Return whose signatures count in a registry, and a warning if it could not be reached (else nothing).

    ``store``: folder of the node store for trust metadata. ``agent``: those of this node's agent, which are
    verified like the registry's own and spare the question to it while they are recent. While the registry
    cannot be reached, the metadata of this node count until their time is over. Raise ``Untrusted`` for
    metadata that do not hold.
    """
    root = read_pinned(pinned)
    updater = Updater(root, LocalMetadata.of_registry(store, remote.url, root), remote.url, time.time())
    kept = agent.fetch_from(remote.url, root) if agent is not None else None
    if agent is not None and kept is not None and kept[1] <= agent.max_age:
        with suppress(CacheSvcError):
            return SignerPolicy(updater.refresh(kept[0]).targets, remote.url), ""
    try:
        return SignerPolicy(updater.refresh(fetch_from(remote, updater, deadline)).targets, remote.url), ""
    except CacheSvcError as error:
        if not (error.retry or isinstance(error, NotFound)):
            raise
        metadata, reason = _last(updater, kept), error
    if metadata is None and isinstance(reason, NotFound):
        raise Untrusted(
            f"{remote.url} has no trust metadata, and {pinned} is trusted for it",
            "start a registry that has them",
        ) from None
    if metadata is None:
        raise reason
    return SignerPolicy(metadata.targets, remote.url), f"the trust metadata of this node are used: {reason}"


def _last(updater: Updater, kept: tuple[Fetch, float] | None) -> TrustMetadata | None:
    """Return the metadata of the node's agent or else of this user's store; ``None`` without any."""
    if kept is not None:
        with suppress(CacheSvcError):
            return updater.refresh(kept[0])
    return updater.last()


def read_to_sign(pinned: Path, store: Path, remote: Remote) -> tuple[bytes, bytes]:
    """Return the present root and targets of a registry, verified from the pinned root, for the operator who
    signs the next ones. Their time may be over.

    ``store``: folder of the node store for trust metadata, by which older files are refused. Raise
    ``Untrusted`` for metadata that do not hold.
    """
    root = read_pinned(pinned)
    local = Remembering(LocalMetadata.of_registry(store, remote.url, root))
    updater = Updater(root, local, remote.url, time.time(), allow_expired=True)
    metadata = updater.refresh(fetch_from(remote, updater))
    targets = local.read("targets.json")
    assert targets is not None
    return local.read(f"{metadata.root.common.version}.root.json") or root, targets


def read_root_to_sign(pinned: Path, store: Path, remote: Remote) -> bytes:
    """Return the present root alone, as `read_to_sign` does: the other files may be those of a thief, whose
    online key the next root takes away."""
    root = read_pinned(pinned)
    local = Remembering(LocalMetadata.of_registry(store, remote.url, root))
    updater = Updater(root, local, remote.url, time.time(), allow_expired=True)
    version = updater.refresh_root(fetch_from(remote, updater)).common.version
    return local.read(f"{version}.root.json") or root


def last_policy(pinned: Path, store: Path, url: str) -> SignerPolicy:
    """Return whose signatures count by the metadata that this node has. Raise ``Untrusted`` without any."""
    root = read_pinned(pinned)
    metadata = Updater(root, LocalMetadata.of_registry(store, url, root), url, time.time()).last()
    if metadata is None:
        raise Untrusted(
            f"this node has no trust metadata of {url}, and {pinned} is trusted for it",
            "reach the registry once, or unset CACHESVC_TRUST_ROOT and name keys in CACHESVC_TRUSTED_KEYS",
        )
    return SignerPolicy(metadata.targets, url)


def verify_first(pinned: bytes | None, remote: Remote) -> tuple[bytes, TrustMetadata] | None:
    """Return the root to pin and the metadata that it leads to; ``None`` if the registry has no metadata.

    ``pinned``: a root that the user got another way; ``None`` trusts the registry's newest root on first use.
    """
    try:
        files = _ask_update(remote, 0, 0, 0)
    except NotFound:
        if pinned is not None:
            raise
        return None
    if pinned is None:
        roots = {int(name.partition(".")[0]): name for name in files if name.endswith(".root.json")}
        if not roots:
            raise Corrupt(f"{remote.url}: trust metadata without a root")
        pinned = files[roots[max(roots)]]
    updater = Updater(pinned, NoFiles(), remote.url, time.time())
    return pinned, updater.refresh(fetch_from(remote, updater))


def fetch_from(remote: Remote, updater: Updater, deadline: float | None = None) -> Fetch:
    """Return a function that takes files from one answer with all that this node lacks, or else asks for
    one."""
    files = _ask_update(remote, *updater.versions(), deadline=deadline)

    def fetch(name: str, limit: int) -> bytes:
        if name in files:
            if len(files[name]) > limit:
                raise Corrupt(f"{remote.url}: {name}: more than {limit} bytes")
            return files[name]
        if name.endswith(".root.json"):
            raise NotFound(f"{name}: there is no newer root")
        return ask_file(remote, name, limit, deadline)

    return fetch


def _ask_update(
    remote: Remote, root: int, snapshot: int, targets: int, deadline: float | None = None
) -> dict[str, bytes]:
    """Ask for the files that a client with these versions lacks; return them by name, unchecked."""
    path = f"/v1/trust/update?root={root}&snapshot={snapshot}&targets={targets}"
    answer = remote.call("GET", path, None, TrustAnswer, deadline=deadline)
    return {name: text.encode("utf-8", "surrogatepass") for name, text in answer.files.items()}


def ask_file(remote: Remote, name: str, limit: int, deadline: float | None = None) -> bytes:
    """Return one file of the trust metadata, of ``limit`` bytes at most, unchecked."""
    return remote.raw(f"/v1/trust/{urllib.parse.quote(name, safe='')}", limit, deadline)


class NoFiles:
    """Keep nothing: before a root is pinned, this node keeps no metadata; nor does a registry that checks a
    file as a client does."""

    def read(self, name: str) -> bytes | None:
        """Return nothing."""
        del name
        return None

    def write(self, name: str, data: bytes) -> None:
        """Drop a file."""
        del name, data

    def remove(self, name: str) -> None:
        """Do nothing."""
        del name
