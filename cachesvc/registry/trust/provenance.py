"""Check who built what is published, and show it.

A registry vouches for a builder: it accepts the identity of a CI job only under a token that it gave to that
job. An operator who publishes the same bytes again (``bytes_of``) may repeat what was checked before, and an
import may repeat what another registry has checked.
"""

from __future__ import annotations

from cachesvc.domain.access import Action, Role, Token, demand
from cachesvc.domain.builders import demand_identity
from cachesvc.index.unit import Unit
from cachesvc.schema.entries import ProvenanceRecord
from cachesvc.schema.namespaces import RequireRequest
from cachesvc_client.trust.accept import Accepted
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import CacheSvcError, InvalidRequest, Untrusted
from cachesvc_client.wire.manifest.requirement import Requirement
from cachesvc_client.wire.names import Namespace

from ..answers import forget_answers
from ..audit import note
from ..context import Registry
from ..inventory import get_envelope, get_revision, verify_revision

IMPORT = "import"
"""Deed of an operator who publishes what another registry has checked."""


def demand_vouched(unit: Unit, token: Token, verified: Accepted, deed: str | None) -> None:
    """Raise ``Untrusted`` if the provenance names a builder that the token is not of.

    Without provenance nothing is claimed, and nothing is checked.
    """
    manifest, provenance = verified.manifest, verified.provenance
    if manifest.attestation is None:
        return
    if provenance is None:
        raise Untrusted("provenance: of a type that this registry cannot check", "upgrade the registry")
    if deed == IMPORT and token.role is Role.admin:
        return
    try:
        demand_identity(provenance, token.builder)
    except Untrusted:
        if not _repeats_checked(unit, verified):
            raise


def demand_required(unit: Unit, verified: Accepted) -> None:
    """Raise ``Untrusted`` if a revision of the trunk was not built as its namespace requires."""
    statement = verified.manifest.statement
    text = unit.namespaces.require(statement.namespace)
    if text is None or statement.lane is not None:
        return
    difference = Requirement(text).difference_of(verified.provenance)
    if difference is not None:
        raise Untrusted(
            f"namespace {statement.namespace} requires {text}, and {difference}",
            "warm it in that CI job with --oidc; an admin sees: cachesvc admin namespaces show",
        )


def set_requirement(
    registry: Registry, by: Token, namespace: Namespace, request: RequireRequest
) -> RequireRequest:
    """Set what a namespace requires of the builders of its trunk, or require nothing any more (``None``).

    On this replica it counts at once, on the others within 5 s. Raises ``Forbidden``, ``InvalidRequest``.
    """
    demand(by, Action.admin, namespace)
    require = None
    if request.require is not None:
        try:
            require = Requirement.parse(request.require)
        except ValueError as error:
            raise InvalidRequest(f"require: {error}") from None
    with registry.index.write() as unit:
        unit.namespaces.set_require(namespace, require, registry.now)
        note(registry, unit, by, "namespace.require", namespace, namespace, require=require or "nothing")
    forget_answers(registry, namespace)
    return RequireRequest(require)


def show_provenance(registry: Registry, by: Token, revision: Digest) -> ProvenanceRecord:
    """Return the statement and the proof of a revision. Verifies the envelope again: the index is not
    trusted."""
    row = get_revision(registry, by, revision)
    verified = verify_revision(revision, row.signer, get_envelope(registry, by, revision))
    accepted = verified.provenance is not None and row.builder == verified.provenance.builder
    manifest = verified.manifest
    return ProvenanceRecord(revision, manifest.attestation, accepted, manifest.proof)


def _repeats_checked(unit: Unit, verified: Accepted) -> bool:
    """Return whether the revision repeats the bytes and the provenance of one whose builder was checked here.

    Only the tag may be another: with the provenance of one name no one publishes another.
    """
    manifest, statement = verified.manifest, verified.manifest.statement
    try:
        origin = Digest(manifest.provenance.get("bytes_of", "").rpartition("@")[2])
    except ValueError:
        return False
    row, envelope = unit.inventory.revision(origin), unit.inventory.envelope(origin)
    if row is None or envelope is None or verified.provenance is None:
        return False
    place = (statement.namespace, statement.name, statement.target, statement.lane)
    if (row.namespace, row.name, row.target, row.lane) != place or row.builder != verified.provenance.builder:
        return False
    try:
        before = verify_revision(origin, row.signer, envelope).manifest
    except CacheSvcError:
        return False
    return (before.attestation, before.pack) == (manifest.attestation, manifest.pack)
