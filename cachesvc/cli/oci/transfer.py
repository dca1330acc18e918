"""Owns what ``oci push``, ``pull``, ``export`` and ``import`` do: bundles between files and places of OCI
images.

What goes out was checked whole before its first byte is sent, and what comes in passes the same gate as a
bundle of a registry: `bundle.check`, with the keys that this user trusts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cachesvc.oci.bundle_artifact import envelopes, find_bundles, pack_of, put_bundle, tag_bundles
from cachesvc.oci.descriptors import Descriptor, Document
from cachesvc.oci.mcv_write import put_mcv
from cachesvc.oci.places import ImageSource, ImageTarget
from cachesvc.oci.signatures import put_attestation, put_signature
from cachesvc.oci.volume_image import put_volume_image
from cachesvc_client.bundle.check import ExpectedStatement, Policy, check_pack
from cachesvc_client.bundle.file import SUFFIX, bundle_files, bundle_head, open_bundle
from cachesvc_client.bundle.pack import PackReader
from cachesvc_client.bundle.seal import PublicKey, Signer
from cachesvc_client.config.settings import Config
from cachesvc_client.publication.signer import signer_of
from cachesvc_client.queries.pull import file_name, is_bundle_of, pull
from cachesvc_client.queries.trust import demand_trust, policy_here
from cachesvc_client.trust.accept import Accepted
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import CacheSvcError, InvalidRequest, StorageFull, Untrusted
from cachesvc_client.wire.names import Name, Target

if TYPE_CHECKING:
    from cachesvc_client.node.store import NodeStore

Format = Literal["bundle", "mcv", "volume"]
"""What a place gets: bundles as artifacts, an image of MCV, or an image for a volume."""


@dataclass(frozen=True, slots=True)
class SentBundle:
    """Describes a bundle that was put into a place. ``digest``: of its manifest there. ``signature``: who
    signed that manifest in cosign's form; else why nobody did. ``note``: what else the user must know."""

    name: str
    target: Target
    digest: Digest
    bytes: int
    signature: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class ReceivedBundle:
    """Describes a bundle that came from a place. ``moved``: bytes of its pack that were read."""

    name: str
    target: Target
    revision: Digest
    signer: PublicKey
    bytes: int
    moved: int
    path: Path


@dataclass(frozen=True, slots=True)
class SendOptions:
    """Says what is written: bundles, an image of MCV, or an image for a volume. ``kserve``, ``folder``: the
    labels of KServe in an image of MCV, and where its files are mounted; empty is the compiler's own
    folder."""

    format: Format = "bundle"
    kserve: bool = False
    folder: str = ""


@dataclass(frozen=True, slots=True)
class CheckedBundle:
    """Holds a bundle file whose envelope and pack passed the gate. ``offset``: where the pack begins."""

    path: Path
    verified: Accepted
    offset: int


def send(
    config: Config, what: str, target: ImageTarget, tag: str, repository: str, options: SendOptions
) -> list[SentBundle]:
    """Put a bundle file, each of a folder, or all under a name of the configured registry, into a place.

    ``repository``: the name that signatures state; empty is the name of the bundle. Raises ``Untrusted``,
    ``Corrupt``, ``NotFound``, ``InvalidRequest``, and what the place raises.
    """
    signer = signer_of(config)
    with _checked_bundles(config, what, signer) as bundles:
        repository = repository or str(bundles[0].verified.manifest.statement.full_name).rpartition(":")[0]
        if options.format == "mcv":
            return [_send_mcv(bundles, target, tag, repository, signer, options)]
        if options.format == "volume":
            return _send_volume(bundles, target, tag, repository, signer)
        documents = [put_bundle(target, one.path, one.verified, one.offset) for one in bundles]
        rows = [
            _signed(one, document, target, repository, signer)
            for one, document in zip(bundles, documents, strict=True)
        ]
        named = tag_bundles(target, documents, tag)
        if named.is_index and signer is not None and all(_signs(one, signer) for one in bundles):
            put_signature(target, named, signer, repository)
        return rows


def receive(
    config: Config, source: ImageSource, name: str, into: Path, expected: Name | None, what: str
) -> list[ReceivedBundle]:
    """Write each bundle that a tag or digest names as a file: into a folder, or as ``into`` itself if that
    ends as bundle files do.

    A bundle counts if a key that this user trusts signed it, for ``expected`` if a name is given; its pack
    is read only then. A file that is there already costs no transfer. Raises ``Untrusted``, ``Corrupt``,
    ``NotFound``, ``InvalidRequest``, ``StorageFull``, and what the place raises.
    """
    demand_trust(config)
    policy, store = policy_here(config)
    documents = find_bundles(source, source.document(name), what)
    if into.suffix == SUFFIX and len(documents) != 1:
        raise InvalidRequest(f"{what}: {len(documents)} bundles, and one file", "name a folder")
    accepted = [
        (document, _accepted(config, source, document, expected, policy, store, what))
        for document in documents
    ]
    return [_receive_one(source, document, verified, into, store, what) for document, verified in accepted]


def _accepted(
    config: Config,
    source: ImageSource,
    document: Document,
    expected: Name | None,
    policy: Policy | None,
    store: NodeStore,
    what: str,
) -> Accepted:
    """Return the newest envelope of a bundle that counts here. Raise why the last one does not."""
    statement = None
    if expected is not None:
        tags = expected.tags(config.tag_fallback)
        statement = ExpectedStatement(expected.namespace, expected.name, tags, config.lane)
    best: Accepted | None = None
    refusal: CacheSvcError = Untrusted(
        f"{what}: no signed manifest belongs to {document.descriptor.digest}",
        "copy the referrers too (oras cp -r), or push the bundle again",
    )
    for envelope in envelopes(source, document):
        try:
            verified = config.acceptance(policy).accept(envelope, statement, store.marks)
            _check_lane(config, verified)
            pack_of(document, verified, what)
        except Untrusted as error:
            refusal = type(error)(f"{what}: {error.message.removeprefix(f'{what}: ')}", error.hint)
            continue
        if best is None or _sequence(verified) > _sequence(best):
            best = verified
    if best is None:
        raise refusal
    return best


def _sequence(verified: Accepted) -> int:
    return verified.manifest.statement.sequence


def _check_lane(config: Config, verified: Accepted) -> None:
    lane = verified.manifest.statement.lane
    if lane is not None and lane != config.lane:
        raise Untrusted(
            f"key {verified.signer.short} signed this for the lane {lane}",
            f"set CACHESVC_LANE={lane} to accept it",
        )


def _receive_one(
    source: ImageSource, document: Document, verified: Accepted, into: Path, store: NodeStore, what: str
) -> ReceivedBundle:
    statement, pack = verified.manifest.statement, verified.manifest.pack
    path = into if into.suffix == SUFFIX else into / file_name(verified)
    moved = 0
    if not is_bundle_of(path, verified):
        _write(path, verified, source, pack_of(document, verified, what))
        moved = pack.size
    store.marks.record_sequence(verified.manifest.entry, statement.sequence, verified.signer)
    return ReceivedBundle(
        str(statement.full_name),
        statement.target,
        verified.revision,
        verified.signer,
        pack.size,
        moved,
        path,
    )


def _write(path: Path, verified: Accepted, source: ImageSource, layer: Descriptor) -> None:
    """Write the bundle file, whole or not at all: the pack is checked while it is read."""
    from cachesvc_client.atomic import replacing

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as out:
            out.write(bundle_head(verified.envelope))
            for chunk in source.chunks(layer):
                out.write(chunk)
    except OSError as error:
        raise StorageFull(f"{path}: cannot be written: {error.strerror or error}") from None


@contextmanager
def _checked_bundles(config: Config, what: str, signer: Signer | None) -> Iterator[list[CheckedBundle]]:
    """Yield the bundles that a path or a name means, whole and signed by somebody who is trusted here, or by
    this user's own key."""
    policy, _ = policy_here(config)
    accepted = config.acceptance(policy).trusting(*([signer.public] if signer else []))
    with ExitStack() as stack:
        paths = _paths(what)
        if not paths:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cachesvc-oci-")))
            paths = [row.path for row in pull(config, _name(what), folder, every=True)]
        bundles = []
        for path in paths:
            envelope, offset = open_bundle(path)
            verified = accepted.accept_signed(envelope, None)
            check_pack(path, verified.manifest, offset)
            bundles.append(CheckedBundle(path, verified, offset))
        yield bundles


def _paths(what: str) -> list[Path]:
    """Return the bundle files that a path names; none if the text is a name of a registry."""
    path = Path(what).expanduser()
    if path.is_dir():
        return bundle_files(path)
    names_file = what.endswith(SUFFIX) or what.startswith(("/", ".", "~"))
    return [path] if names_file or path.is_file() else []


def _name(what: str) -> Name:
    try:
        return Name.parse(what)
    except ValueError as error:
        raise InvalidRequest(f"neither a bundle file nor a name: {error}") from None


def _signs(one: CheckedBundle, signer: Signer) -> bool:
    return one.verified.signer == signer.public


def _signed(
    one: CheckedBundle, document: Document, target: ImageTarget, repository: str, signer: Signer | None
) -> SentBundle:
    """Sign a bundle's manifest in cosign's form and attach its provenance, if this user's key signed it."""
    statement = one.verified.manifest.statement
    if signer is None or not _signs(one, signer):
        state = "none: its signer's key is not here"
    else:
        put_signature(target, document, signer, repository)
        put_attestation(target, document, one.verified, signer, repository)
        state = signer.public.short
    return SentBundle(
        str(statement.full_name),
        statement.target,
        document.descriptor.digest,
        one.verified.manifest.pack.size,
        state,
    )


def _send_mcv(
    bundles: Sequence[CheckedBundle],
    target: ImageTarget,
    tag: str,
    repository: str,
    signer: Signer | None,
    options: SendOptions,
) -> SentBundle:
    if len(bundles) != 1:
        raise InvalidRequest(f"{len(bundles)} bundles, and an image of MCV is one", "name one bundle file")
    [one] = bundles
    statement = one.verified.manifest.statement
    with (
        tempfile.TemporaryDirectory(prefix="cachesvc-oci-") as scratch,
        PackReader(one.path, one.verified.manifest, one.offset) as reader,
    ):
        image = put_mcv(target, reader, Path(scratch), kserve=options.kserve, folder=options.folder)
    state = _sign_image(image.document, target, repository, signer)
    target.put_document(image.document, tag)
    size = sum(entry.size for entry in image.document.entries)
    note = f"{image.left_out} files of other caches are left out" if image.left_out else ""
    return SentBundle(
        str(statement.full_name), statement.target, image.document.descriptor.digest, size, state, note
    )


def _send_volume(
    bundles: Sequence[CheckedBundle], target: ImageTarget, tag: str, repository: str, signer: Signer | None
) -> list[SentBundle]:
    image = put_volume_image(target, [(file_name(one.verified), one.path) for one in bundles])
    state = _sign_image(image, target, repository, signer)
    target.put_document(image, tag)
    return [
        SentBundle(
            str(one.verified.manifest.statement.full_name),
            one.verified.manifest.statement.target,
            image.descriptor.digest,
            one.verified.manifest.pack.size,
            state,
        )
        for one in bundles
    ]


def _sign_image(image: Document, target: ImageTarget, repository: str, signer: Signer | None) -> str:
    """Sign an image with this user's key, if there is one. Return who signed."""
    if signer is None:
        return "none: no signing key"
    put_signature(target, image, signer, repository)
    return signer.public.short
