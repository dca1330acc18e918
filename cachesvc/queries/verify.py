"""Owns ``verify``: says offline who signed and built a bundle, whether every byte matches, and why it is
trusted.

Of what no trusted key has signed, nothing but the key ids is read.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cachesvc_client.bundle.check import ExpectedStatement, Policy, check_pack
from cachesvc_client.bundle.file import SUFFIX, open_bundle
from cachesvc_client.bundle.pack import PackReader
from cachesvc_client.config.settings import Config
from cachesvc_client.console.documents import present, utc_text
from cachesvc_client.console.tables import aligned, bytes_text, when_text
from cachesvc_client.http.registry import Remote, parse_resolved
from cachesvc_client.queries.provenance import proof_facts, provenance_facts
from cachesvc_client.queries.pull import every_revision, registry_of, request_here
from cachesvc_client.queries.trust import demand_trust, node_store, policy_here
from cachesvc_client.trust.accept import Accepted
from cachesvc_client.trust_root.registry_metadata import policy_of
from cachesvc_client.wire.codec import canonical
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.durations import MAX_OFFLINE_SECONDS
from cachesvc_client.wire.errors import CacheSvcError, InvalidRequest, NotFound
from cachesvc_client.wire.names import Name
from cachesvc_client.wire.requests.protocol import ResolvedRevision
from cachesvc_client.wire.text import count_text

from .release import SUFFIX as SUFFIX_OF_RELEASE
from .release import VerifiedRelease, verify_release

if TYPE_CHECKING:
    from cachesvc_client.node.store import NodeStore

ALL_MATCH = "every frame and file has the digest that was signed"
NOT_HERE = "not checked: the pack is not on this node"


@dataclass(frozen=True, slots=True)
class Verification:
    """Holds a revision that is trusted here, and why it is.

    ``what``: the file or the name that was asked for. ``bytes``: whether the pack's bytes match.
    ``trusted_for``: the namespace for which the signer's key is trusted; ``*`` is every one. ``require``: the
    requirement that the build meets. ``delegated_by``: the registry whose trust metadata name the signer;
    ``None`` without a pinned root.
    """

    what: str
    accepted: Accepted
    bytes: str
    trusted_for: str
    require: str | None
    delegated_by: str | None

    @property
    def signed(self) -> int:
        """Return when the revision was signed, in seconds of UTC."""
        return self.accepted.manifest.statement.sequence // 1000

    def as_answer(self) -> dict[str, Any]:
        """Return the fields that the command's JSON has. ``statement``: the provenance, as an in-toto
        statement. ``proof``: on what the revision was shown to work."""
        manifest, statement = self.accepted.manifest, self.accepted.manifest.statement
        return {
            "what": self.what,
            "name": str(statement.full_name),
            "target": str(statement.target),
            "entry": str(manifest.entry),
            "revision": str(self.accepted.revision),
            "signer": str(self.accepted.signer),
            "trusted_for": self.trusted_for,
            "signed": utc_text(self.signed),
            "pack_bytes": manifest.pack.size,
            "file_count": len(manifest.files),
            "bytes": self.bytes,
            "lane": statement.lane,
            "expires": utc_text(statement.expires),
            "require": present(self.require),
            "delegated_by": self.delegated_by,
            "statement": present(manifest.attestation),
            "proof": present(manifest.proof),
        }


def verify(
    config: Config, what: str
) -> tuple[list[Verification] | list[VerifiedRelease], list[CacheSvcError]]:
    """Verify a bundle file, the files of a release, or each revision under a name. Return what is trusted,
    and why the rest is not.

    Raises ``Untrusted`` if no key is trusted here, ``NotFound``, ``InvalidRequest`` for a text that is
    neither a file nor a name, and what ``Remote`` raises where this node has no answer of its own.
    """
    if what.endswith(SUFFIX_OF_RELEASE):
        return [verify_release(config, Path(what).expanduser())], []
    if _names_file(what):
        demand_trust(config)
        return [verify_bundle(config, Path(what).expanduser())], []
    try:
        name = Name.parse(what)
    except ValueError as error:
        if Path(what).expanduser().is_dir():
            raise InvalidRequest(f"{what}: is a folder", f"name its bundle files, *{SUFFIX}") from None
        raise InvalidRequest(f"neither a bundle file nor a name: {error}") from None
    store = node_store(config)
    trusted: list[Verification] = []
    refused: list[CacheSvcError] = []
    with registry_of(config) as remote:
        demand_trust(config)
        policy = policy_of(config, store, remote)
        revisions = _revisions(remote, config, name, store)
    for revision in revisions:
        try:
            trusted.append(_verify_resolved(config, name, revision, store, policy))
        except CacheSvcError as error:
            refused.append(error)
    if not trusted and not refused:
        raise NotFound(f"no revision of {name} is offered", "see: cachesvc explain")
    return trusted, refused


def verify_bundle(config: Config, path: Path) -> Verification:
    """Verify a bundle file, without a registry. Raises ``NotFound``, ``Untrusted``, ``Corrupt``."""
    envelope, offset = open_bundle(path)
    policy, _ = policy_here(config)
    verified = config.acceptance(policy).accept(envelope, None)
    _check_bytes(path, verified, offset)
    return _verification(config, str(path), verified, ALL_MATCH, policy)


def render_verification(row: Verification | VerifiedRelease) -> str:
    """Return the text for a terminal."""
    if isinstance(row, VerifiedRelease):
        return row.render()
    where = "every namespace" if row.trusted_for == "*" else f"namespace {row.trusted_for}"
    manifest, signer = row.accepted.manifest, row.accepted.signer.short
    statement, now = manifest.statement, time.time()
    facts = [
        ("name", str(statement.full_name)),
        ("lane", statement.lane or "trunk"),
        ("target", str(statement.target)),
        ("entry", str(manifest.entry)),
        ("revision", str(row.accepted.revision)),
        ("signed by", f"{signer}, {when_text(row.signed, now)}"),
        ("expires", "never" if statement.expires is None else when_text(statement.expires, now)),
        ("size", f"{bytes_text(manifest.pack.size)}, {count_text(len(manifest.files), 'file')}"),
        ("bytes", row.bytes),
        *(fact for fact in provenance_facts(row.accepted.provenance) if fact[0] not in ("target", "lane")),
        *proof_facts(manifest.proof),
        ("trusted", f"{signer} is trusted here for {where}"),
    ]
    if row.delegated_by:
        facts.append(("named by", f"the trust metadata of {row.delegated_by}"))
    if row.require:
        facts.append(("required", f"{row.require}: met"))
    return f"{aligned([(row.what,)])}: trusted\n{aligned(facts, '  ')}"


def _names_file(what: str) -> bool:
    return what.endswith(SUFFIX) or what.startswith(("/", ".", "~")) or Path(what).is_file()


def _revisions(remote: Remote, config: Config, name: Name, store: NodeStore) -> list[ResolvedRevision]:
    """Return what the registry offers under a name; while it cannot be reached, this node's last answer."""
    try:
        return list(every_revision(remote, config, name, name.tags(config.tag_fallback)))
    except CacheSvcError as error:
        if not error.retry:
            raise
        return _last_answer(remote, config, name, store, error)


def _last_answer(
    remote: Remote, config: Config, name: Name, store: NodeStore, error: CacheSvcError
) -> list[ResolvedRevision]:
    request = request_here(config, name, name.tags(config.tag_fallback))
    raw = store.answers.recent_answer(Digest.of(canonical([remote.identity, request])), MAX_OFFLINE_SECONDS)
    if raw is None:
        raise error
    return list(parse_resolved(raw).revisions)


def _verify_resolved(
    config: Config, name: Name, revision: ResolvedRevision, store: NodeStore, policy: Policy | None
) -> Verification:
    expected = ExpectedStatement(name.namespace, name.name, name.tags(config.tag_fallback), config.lane)
    verified = config.acceptance(policy).accept(revision.envelope_bytes, expected)
    pack = store.pack(verified.manifest.pack.digest, verified.manifest.pack.size)
    if pack is not None:
        _check_bytes(pack, verified, 0)
    return _verification(config, str(name), verified, ALL_MATCH if pack else NOT_HERE, policy)


def _check_bytes(path: Path, verified: Accepted, offset: int) -> None:
    """Raise ``Corrupt`` unless the pack, its frames and its files are those that were signed."""
    with open(path, "rb") as file:
        file.seek(offset)
        check_pack(file, verified.manifest)
    with PackReader(path, verified.manifest, offset) as reader:
        reader.verify()


def _verification(
    config: Config, what: str, verified: Accepted, bytes_: str, policy: Policy | None
) -> Verification:
    namespace = verified.manifest.statement.namespace
    keys = [key for key in config.trusted_keys if key.key == verified.signer]
    trust = next((key for key in keys if key.counts_for(namespace)), None)
    return Verification(
        what=what,
        accepted=verified,
        bytes=bytes_,
        trusted_for=namespace if trust is None else trust.namespace or "*",
        require=config.require,
        delegated_by=None if policy is None else config.url,
    )
