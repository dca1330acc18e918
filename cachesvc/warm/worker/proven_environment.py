"""Say whether entries of an environment need a proof, make the proofs, and keep where the conformance probe
has passed. A supported release needs no probe: the project's tests ran on it.

The node store keeps it by the digest of the environment, with this node's own signature: a store may come
from a cache that others filled.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import cachesvc_client
from cachesvc_client.bundle.seal import pae
from cachesvc_client.config.settings import Config
from cachesvc_client.environment import releases
from cachesvc_client.environment.detect import detect
from cachesvc_client.environment.support import Support, check_proof, present_names
from cachesvc_client.hooks.source import source_of
from cachesvc_client.hooks.table import Hook
from cachesvc_client.node.store import NodeStore, default_root
from cachesvc_client.own_results.node_key import node_key
from cachesvc_client.process.every_hook import every_hook, support_of
from cachesvc_client.wire.codec import canonical
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import CacheSvcError, Incompatible, Unsupported
from cachesvc_client.wire.factors import Fingerprint
from cachesvc_client.wire.manifest.proof import PROBE, Proof
from cachesvc_client.wire.manifest.records import Manifest

_MARK_TYPE = "application/vnd.cachesvc.probe-passed"
"""Type of what a kept mark signs: the digest of the environment."""


@dataclass(frozen=True, slots=True)
class ProvenEnvironment:
    """Makes the proofs of the entries that are built in this environment. ``present``: full names of the
    hooks that the installed sources have."""

    fingerprint: Fingerprint
    support: Support
    present: frozenset[str]

    @property
    def needs_probe(self) -> bool:
        """Return whether services use an entry of this environment only with a proof."""
        return self.support.state != "supported"

    def proof(self, kinds: Iterable[str]) -> Proof | None:
        """Return the proof of an entry with files of these kinds; ``None`` where an entry needs none.

        Raises ``Unsupported`` if such an entry needs a hook that is missing.
        """
        if not self.needs_probe:
            return None
        needed = self.support.needs(kinds)
        missing = next((name for name in needed if name not in self.present), None)
        if missing is not None:
            raise Unsupported(f"not usable: hook {missing} is missing in torch {self.fingerprint['torch']}")
        triton = self.fingerprint.get("triton")
        return Proof(str(self.fingerprint["torch"]), needed, None if triton is None else str(triton))

    def refusal_of(self, manifest: Manifest) -> str:
        """Return why services of this environment refuse an entry for its proof; empty if they do not."""
        try:
            check_proof(manifest, self.support, self.fingerprint)
        except Incompatible as error:
            return error.message
        return ""


def judge_environment() -> ProvenEnvironment:
    """Return this environment without a probe, for a run that builds nothing.

    Raises ``Unsupported`` for a torch that is not usable. Imports no torch.
    """
    fingerprint = detect()
    support = support_of(fingerprint)
    if support.state == "not usable":
        raise Unsupported(support.line)
    return ProvenEnvironment(fingerprint, support, present_names(every_hook(), fingerprint))


def has_passed(fingerprint: Fingerprint, config: Config) -> bool:
    """Return whether the conformance probe has passed in this environment, in an earlier run."""
    store, environment = _store(config), _digest(fingerprint)
    mark = store.probe_mark(environment) if store is not None else None
    key = node_key(make=False) if mark is not None else None
    return mark is not None and key is not None and key.public.verifies(mark, _message(environment))


def keep_passed(fingerprint: Fingerprint, config: Config) -> None:
    """Keep that the conformance probe has passed in this environment."""
    store, environment = _store(config), _digest(fingerprint)
    key = node_key(make=True) if store is not None else None
    if store is not None and key is not None:
        with contextlib.suppress(CacheSvcError):  # the next run probes again
            store.keep_probe_mark(environment, key.sign_message(_message(environment)))


def _digest(fingerprint: Fingerprint) -> Digest:
    """Return the digest of what the probe depends on: the environment, the hooked sources, and this code."""
    facts: list[Any] = [PROBE, cachesvc_client.__version__, fingerprint]
    facts += sorted({_source_facts(hook) for hook in every_hook()})
    return Digest.of(canonical(facts))


def _source_facts(hook: Hook) -> tuple[str, int, int]:
    """Return the module of a hook with size and time of its source: a version text does not tell a torch that
    somebody has edited."""
    package = releases.package(hook.module.partition(".")[0])
    source = source_of(package, hook.module) if package is not None else None
    if source is None:
        return hook.module, 0, 0
    status = source.stat()
    return hook.module, status.st_size, status.st_mtime_ns


def _store(config: Config) -> NodeStore | None:
    try:
        return NodeStore(config.store or default_root())
    except CacheSvcError:
        return None  # a CI job without a home probes in each run


def _message(environment: Digest) -> bytes:
    return pae(_MARK_TYPE, str(environment).encode())
