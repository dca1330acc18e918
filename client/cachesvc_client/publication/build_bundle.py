"""Builds a bundle: packs captured files, writes the manifest and signs it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..wire.errors import InvalidRequest, NotWarm, Untrusted
from ..wire.factors import Facts, Fingerprint
from ..wire.manifest.ancestors import MAX_ANCESTORS, Ancestor
from ..wire.manifest.key_components import KeyFacts
from ..wire.manifest.proof import Proof
from ..wire.manifest.records import MAX_AHEAD_MILLISECONDS, Manifest, PackRecord, Statement, Workload
from ..wire.names import Lane, Name, Target

if TYPE_CHECKING:
    from ..bundle.pack import SourceFile
    from ..bundle.seal import Signer


@dataclass(frozen=True, slots=True)
class Build:
    """Describes how the files of a bundle were built, and what that showed.

    ``measured``: seconds, by what took them. ``remarks``: what a person may want to know. ``attest``: returns
    the statement of who built a pack; ``None`` leaves it out. ``proof``: on what the entry was shown to work;
    ``None`` for an entry without a proof. ``ancestors``: the revisions whose code can be in it.
    """

    measured: Mapping[str, float] = field(default_factory=dict)
    remarks: Mapping[str, str] = field(default_factory=dict)
    attest: Callable[[PackRecord], dict[str, Any] | None] | None = None
    proof: Proof | None = None
    ancestors: tuple[Ancestor, ...] = ()


@dataclass(frozen=True, slots=True)
class Draft:
    """Describes a bundle before it is built: its manifest without files, pack, frames and sequence."""

    name: Name
    target: Target
    fingerprint: Fingerprint
    workload: Workload
    scopes: tuple[str, ...]
    lane: Lane | None = None
    expires: int | None = None
    keys: KeyFacts | None = None
    asked: Facts = field(default_factory=dict)
    build: Build = field(default_factory=Build)


def next_sequence(head: int = 0) -> int:
    """Returns the sequence for a revision over ``head``: milliseconds of UTC, or more if the head's
    sequence is not lower. So a registry that was set up anew does not look rolled back.

    Raises ``Untrusted`` if ``head`` is more than a day ahead of this machine's clock. No honest
    publisher signed such a head, and nodes that saw its successor would refuse every later revision.
    """
    now = int(time.time() * 1000)
    if head > now + MAX_AHEAD_MILLISECONDS:
        raise Untrusted(
            f"the registry names a sequence, {head}, that is {(head - now) // 86_400_000} days ahead of this "
            "machine's clock: nothing is signed over it",
            "check this machine's clock and the registry's database",
        )
    return max(now, head + 1)


def build_bundle(
    files: Sequence[SourceFile], draft: Draft, key: Signer, path: Path, *, quick: bool = False
) -> Manifest:
    """Packs and signs ``files`` into the bundle file ``path``, whole or not at all.

    ``quick``: see `write_pack`. The pack is read back before it is signed: an install trusts a signer's
    file digests and checks frames alone. Raises ``NotWarm`` if there is nothing to pack, ``InvalidRequest``
    for too many ancestors, ``StorageFull`` if there is no room, ``Corrupt`` if the pack does not have the
    packed content.
    """
    from ..bundle.file import write_bundle
    from ..bundle.pack import PackReader, write_pack

    if not files:
        raise NotWarm(f"{draft.target}: nothing was compiled, so there is nothing to publish")
    if (count := len(draft.build.ancestors)) > MAX_ANCESTORS:
        raise InvalidRequest(
            f"{draft.target}: made with {count} revisions; a manifest names {MAX_ANCESTORS} at most",
            "publish it from a process that restores nothing: cachesvc warm --force",
        )
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".cachesvc-") as folder:
        pack = Path(folder) / "pack"
        with open(pack, "wb") as out:
            contents = write_pack(files, out, quick=quick)
        manifest = Manifest(
            statement=Statement(
                namespace=draft.name.namespace,
                name=draft.name.name,
                target=draft.target,
                sequence=next_sequence(),
                tag=draft.name.tag,
                lane=draft.lane,
                expires=draft.expires,
            ),
            pack=contents.pack,
            frames=contents.frames,
            files=contents.files,
            fingerprint=dict(draft.fingerprint),
            workload=draft.workload,
            scopes=draft.scopes,
            measured=dict(draft.build.measured),
            provenance=dict(draft.build.remarks),
            key_facts=draft.keys.encode() or None if draft.keys else None,
            asked=dict(draft.asked) or None,
            attestation=draft.build.attest(contents.pack) if draft.build.attest else None,
            proof=draft.build.proof,
            ancestors=draft.build.ancestors or None,
            deferrable=_is_deferrable(files) or None,
        )
        with PackReader(pack, manifest) as reader:
            reader.verify()
        write_bundle(path, key.sign(manifest), pack)
    return manifest


def _is_deferrable(files: Sequence[SourceFile]) -> bool:
    """Return whether a process can do without all of these files until it compiles a graph."""
    from ..kinds import RULES

    return all(file.kind in RULES and RULES[file.kind].deferrable for file in files)
