"""Owns what ``verify`` says of a release: who signed the statement about its files, and whether each file
that is here has the digest that was signed.

A key counts only if it is trusted for the namespace ``cachesvc`` by name: a registry's key, which may sign
for every team, signs no releases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cachesvc_client.bundle.check import check_attestation
from cachesvc_client.bundle.seal import PublicKey
from cachesvc_client.config.settings import Config
from cachesvc_client.console.tables import aligned
from cachesvc_client.queries.provenance import provenance_facts
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import Corrupt, NotFound, printable
from cachesvc_client.wire.manifest.provenance import Provenance, read_statement
from cachesvc_client.wire.manifest.records import MAX_ENVELOPE_BYTES
from cachesvc_client.wire.names import Namespace
from cachesvc_client.wire.text import count_text

SUFFIX = ".intoto.json"
"""End of the name of a release's statement."""
BUILD_TYPE = "urn:cachesvc:build:release:v1"
"""Names how a release is built: `make release`."""
NAMESPACE = Namespace("cachesvc")
"""The namespace for which the key of a release must be trusted."""
_HINT = f"set CACHESVC_TRUSTED_KEYS={NAMESPACE}=ed25519:…, with the key of whom you have the release from"
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class VerifiedRelease:
    """The files of a release that are as a trusted key signed them. ``absent``: those that the
    statement names and that are not beside it. ``statement``: the in-toto statement."""

    what: str
    signer: PublicKey
    files: tuple[str, ...]
    absent: tuple[str, ...]
    statement: dict[str, Any]
    provenance: Provenance

    def as_answer(self) -> dict[str, Any]:
        """Return the fields that the command's JSON has."""
        names = ("what", "signer", "files", "absent", "statement")
        return {name: getattr(self, name) for name in names}

    def render(self) -> str:
        """Return the text for a terminal."""
        facts = [
            ("signed by", f"{self.signer.short}, trusted here for {NAMESPACE}"),
            *provenance_facts(self.provenance),
            ("files", f"{count_text(len(self.files), 'file')} as signed: {' '.join(self.files)}"),
        ]
        if self.absent:
            facts.append(("not here", " ".join(self.absent)))
        return f"{aligned([(self.what,)])}: trusted\n{aligned(facts, '  ')}"


def verify_release(config: Config, path: Path) -> VerifiedRelease:
    """Verify the statement of a release, and every file of it that is in the same folder. Raise ``NotFound``,
    ``Untrusted``, ``Corrupt``; nothing is read of a statement that no trusted key signed."""
    try:
        with open(path, "rb") as file:
            envelope = file.read(MAX_ENVELOPE_BYTES + 1)
    except OSError as error:
        raise NotFound(f"{path}: {error.strerror}") from None
    try:
        statement, signer = check_attestation(envelope, config.trusted_keys, NAMESPACE, _HINT)
        digests, provenance = _read(statement)
    except Corrupt as error:
        raise Corrupt(f"{path}: {error.message}", "copy it again from the release") from None
    here = {name: digest for name, digest in digests.items() if (path.parent / name).is_file()}
    if not here:
        raise NotFound(f"no file of {path.name} is in its folder")
    for name, digest in here.items():
        if (found := _digest(path.parent / name)) != digest:
            raise Corrupt(f"{path.parent / name}: its digest is {found}, signed was {digest}")
    return VerifiedRelease(
        str(path), signer, tuple(here), tuple(sorted(digests.keys() - here)), statement, provenance
    )


def _read(statement: Mapping[str, Any]) -> tuple[dict[str, Digest], Provenance]:
    """Return the signed digest of each file, and who built them of what."""
    digests: dict[str, Digest] = {}
    provenance: Provenance | None = None
    try:
        for subject in statement["subject"]:
            name = str(subject["name"])
            if Path(name).name != name or name in ("", "..") or printable(name) != name or name in digests:
                raise ValueError(f"not the name of a file beside it: {name[:80]!r}")
            digests[name] = Digest(f"sha256:{subject['digest']['sha256']}")
            provenance = read_statement({**statement, "subject": [subject]}, digests[name])
        if provenance is None or provenance.build_type != BUILD_TYPE:
            raise ValueError("it is about no release")
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(printable(f"statement: {error}")) from None
    return digests, provenance


def _digest(path: Path) -> Digest:
    with open(path, "rb") as file:
        return Digest.of_chunks(iter(lambda: file.read(_CHUNK), b""))
