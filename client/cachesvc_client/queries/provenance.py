"""Owns how provenance is shown: who built a revision, from what, with what and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from ..bundle.check import ExpectedStatement
from ..bundle.seal import PublicKey, key_text
from ..config.settings import Config
from ..console.tables import aligned
from ..trust.accept import Acceptance
from ..wire.digest import Digest
from ..wire.errors import CacheSvcError, NotFound, printable
from ..wire.manifest.proof import Proof
from ..wire.manifest.provenance import CHECKOUT, CLEAN, UNKNOWN, Dependency, Provenance
from ..wire.names import Name, Tag
from ..wire.requests.protocol import ResolvedRevision
from .pull import every_revision, registry_of
from .trust import demand_trust, registry_policy

_FILES_SHOWN = 5
_DISTRIBUTION = "pkg:pypi/"
"""Beginning of the URI of an installed distribution."""


@dataclass(frozen=True, slots=True)
class ProvenanceRow:
    """Holds the provenance of one revision. ``statement``: the in-toto statement; ``None`` if the revision
    has none. ``refused``: why this client does not accept the revision; empty if it does. ``proof``: on what
    the revision was shown to work."""

    target: str
    revision: Digest
    signer: PublicKey | None = None
    refused: str = ""
    statement: dict[str, Any] | None = None
    provenance: Provenance | None = None
    proof: Proof | None = None


def list_provenance(config: Config, name: Name, fallback: tuple[Tag, ...] = ()) -> list[ProvenanceRow]:
    """Return the provenance of each revision under ``name``, also of those that do not fit here.

    Of a revision that no trusted key has signed nothing is read. Raises ``NotFound`` if nothing is published
    under the name, ``Untrusted`` if no key is trusted, and what ``Remote`` raises.
    """
    tags = name.tags(fallback)
    with registry_of(config) as remote:
        demand_trust(config)
        acceptance = config.acceptance(registry_policy(config, remote))
        revisions = list(every_revision(remote, config, name, tags))
    if not revisions:
        raise NotFound(f"the registry offers no revision under {name}", "see: cachesvc-client explain")
    expected = ExpectedStatement(name.namespace, name.name, tags, config.lane)
    return [_row(revision, acceptance, expected) for revision in revisions]


def _row(revision: ResolvedRevision, acceptance: Acceptance, expected: ExpectedStatement) -> ProvenanceRow:
    try:
        verified = acceptance.accept(revision.envelope_bytes, expected)
    except CacheSvcError as error:
        return ProvenanceRow("", revision.revision, refused=str(error))
    return ProvenanceRow(
        target=str(verified.manifest.statement.target),
        revision=verified.revision,
        signer=verified.signer,
        statement=verified.manifest.attestation,
        provenance=verified.provenance,
        proof=verified.manifest.proof,
    )


def render_provenance(rows: Sequence[ProvenanceRow]) -> str:
    """Return the text for a terminal: a paragraph for each revision."""
    parts = []
    for row in rows:
        built = [*provenance_facts(row.provenance), *proof_facts(row.proof)]
        facts = [("refused", row.refused)] if row.refused else built
        signer = [("signed by", key_text(row.signer))] if row.signer else []
        head = " ".join(filter(None, [row.target, row.revision.hex[:12]]))
        parts.append(f"{aligned([(head,)])}\n{aligned([*signer, *facts], '  ')}")
    return "\n".join(parts)


def provenance_facts(provenance: Provenance | None) -> list[tuple[str, str]]:
    """Return (what, value) of a build, for people."""
    if provenance is None:
        return [("built by", "the revision does not say")]
    by = provenance.builder if provenance.vouched else f"{provenance.builder}: nobody vouches for the builder"
    spec = provenance.parameters.get("spec")
    spec_text = (
        " ".join(str(spec[key]) for key in ("name", "sha256") if key in spec)
        if isinstance(spec, dict)
        else ""
    )
    checkout = provenance.named(CHECKOUT)
    if checkout and provenance.source and checkout.commit == provenance.source.commit:
        checkout = None
    lane = provenance.parameters.get("lane")
    facts = [
        ("built by", by),
        ("run", provenance.invocation),
        ("source", _checkout_text(provenance.source)),
        ("checkout", _checkout_text(checkout)),
        ("files", _tree_text(provenance)),
        ("spec", spec_text),
        ("target", str(provenance.parameters.get("target", ""))),
        ("lane", str(lane or "")),
        ("with", _distributions(provenance)),
        (
            "on",
            ", ".join(
                f"{key} {value}"
                for key, value in sorted(provenance.environment.items())
                if key != "partition"
            ),
        ),
        ("started", provenance.started),
        ("finished", provenance.finished),
    ]
    return [(what, value) for what, value in facts if value]


def proof_facts(proof: Proof | None) -> list[tuple[str, str]]:
    """Return (what, value) of a proof, for people; nothing for a revision without one."""
    return [] if proof is None else [("proven", str(proof))]


def _checkout_text(dependency: Dependency | None) -> str:
    return " ".join(filter(None, [dependency.uri, dependency.commit])) if dependency else ""


def _tree_text(provenance: Provenance) -> str:
    """Return how the files of the checkout were; empty if they were those of the commit, or if nothing says
    it."""
    checkout = provenance.named(CHECKOUT)
    if checkout is None or provenance.tree in ("", CLEAN):
        return ""
    if provenance.tree == UNKNOWN:
        return "not known whether they are those of the commit"
    names = checkout.annotations.get("changed")
    named = [printable(name) for name in names if isinstance(name, str)] if isinstance(names, list) else []
    more = ", …" if len(named) > _FILES_SHOWN else ""
    return f"not those of the commit: {', '.join(named[:_FILES_SHOWN])}{more}"


def _distributions(provenance: Provenance) -> str:
    packages = [one for one in provenance.dependencies if one.uri.startswith(_DISTRIBUTION)]
    return ", ".join(unquote(one.uri.removeprefix(_DISTRIBUTION)).replace("@", " ") for one in packages)
