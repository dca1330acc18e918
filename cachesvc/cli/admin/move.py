"""``cachesvc admin tag | rollback | export | import``: what moves whole revisions.

A signed statement names its tag and its sequence, and clients hold the registry to both: nobody can move a
tag or a head to other bytes by the database alone. So a tag and a rollback are publications: the same bytes,
signed again with the operator's own key. The registry is not trusted with what is signed: an envelope must
verify under a key that the operator trusts, and state the very name or have the very digest that was typed.
"""

from __future__ import annotations

import json
import re
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from cachesvc_client.bundle.check import (
    ExpectedStatement,
    Verified,
    check_envelope,
    check_pack,
    check_sequence,
)
from cachesvc_client.bundle.file import open_bundle, write_bundle
from cachesvc_client.bundle.seal import PublicKey, SigningKey, TrustedKey
from cachesvc_client.commands.tables import bytes_text
from cachesvc_client.node.store import NodeStore, default_root
from cachesvc_client.publication.build_bundle import next_sequence
from cachesvc_client.publication.publish_bundle import publish_bundle, publish_signed
from cachesvc_client.wire import codec
from cachesvc_client.wire.admin import EntryPage, EntryRecord, RevisionRecord
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import (
    CacheSvcError,
    Corrupt,
    HeadConflict,
    InvalidRequest,
    NotFound,
    StorageFull,
)
from cachesvc_client.wire.names import LATEST, Name, Tag
from cachesvc_client.wire.protocol import EntrySummary
from cachesvc_client.wire.records import MAX_ENVELOPE_BYTES, MAX_PACK_BYTES, Manifest

from . import admin
from .content import revisions
from .desk import Apply, AsJson, digest_of, made, namespace_of, over_api, pages, planned, short, when

if TYPE_CHECKING:
    from cachesvc_client.config import Config
    from cachesvc_client.http.registry import Remote

Trusted = Sequence[PublicKey | TrustedKey]

EXPORT_FORMAT = "cachesvc.export/1"
_FIRST, _LAST = "cachesvc-export.json", "end.json"
_MEMBER = re.compile(r"\d{6}-[0-9a-f]{12}\.cachesvc")
_LEAST_DIGITS = 12
"""Of a revision's digest, for what is signed: as many as listings show. Nobody finds another revision of a
trusted signer that begins with the same 48 bits."""
_MAX_FACTS = 64 << 20
_MAX_MEMBER = MAX_PACK_BYTES + MAX_ENVELOPE_BYTES + 4096


@dataclass(frozen=True, slots=True)
class Republished:
    """A revision that is signed again: as what, over which head. ``signed``: when it was signed before, in
    seconds of UTC."""

    name: str
    target: str
    revision: Digest
    signed: int
    bytes: int
    over: Digest | None
    state: str


@dataclass(frozen=True, slots=True)
class Carried:
    """A revision in an export, and what an import makes of it: new, newer, same, or kept (what the registry
    has is newer)."""

    name: str
    target: str
    revision: Digest
    bytes: int
    signer: str
    state: str = ""


_REPUBLISHED: dict[str, Callable[[Any], object]] = {
    "name": lambda row: row.name,
    "target": lambda row: row.target,
    "bytes of": lambda row: short(row.revision),
    "signed": lambda row: when(row.signed),
    "size": lambda row: bytes_text(row.bytes),
    "over": lambda row: short(row.over) or "-",
    "": lambda row: row.state,
}
_CARRIED: dict[str, Callable[[Any], object]] = {
    "name": lambda row: row.name,
    "target": lambda row: row.target,
    "revision": lambda row: short(row.revision),
    "size": lambda row: bytes_text(row.bytes),
    "signer": lambda row: row.signer[:20] + "…",
    "": lambda row: row.state,
}


@admin.command("tag")
def tag(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="namespace/name:tag, whose entries get another tag too.")],
    new: Annotated[str, typer.Argument(metavar="TAG", help="Such as prod.")],
    apply: Apply = False,
    as_json: AsJson = False,
) -> None:
    """Publish what is under a name under another tag too, signed with your own key. The trunk only: a lane is
    never promoted, the trunk recompiles."""
    source, target = made(lambda: Name.parse(name)), made(lambda: Tag(new))
    if target == source.tag:
        raise InvalidRequest(f"{source}: that is its tag", "name another")
    config, remote = over_api(context)
    signer = _Signer.of(config)
    query = {"namespace": source.namespace, "name": source.name, "tag": source.tag, "trunk": True}
    wanted = ExpectedStatement(source.namespace, source.name, (source.tag,))
    with remote:
        listed = pages(remote, "/v1/entries", EntryPage, None, **query)
        heads = list(_heads(remote, signer, listed, wanted))  # all are checked before one is signed
        rows = [_republish(remote, signer, verified, target, apply) for verified in heads]
    if not rows:
        raise NotFound(f"nothing is published as {source}", "see: cachesvc admin names list")
    moved = sum(row.state != "the same already" for row in rows)
    summary = f"tag {moved} of {len(rows)} entries of {source} as {target}"
    planned(rows, _REPUBLISHED, applied=apply, as_json=as_json, summary=summary)


@revisions.command("rollback")
def rollback(context: typer.Context, revision: str, apply: Apply = False, as_json: AsJson = False) -> None:
    """Publish an older revision's bytes over the head of its entry, signed with your own key: clients refuse
    an older sequence. REVISION: its digest, or 12 or more of its first digits."""
    config, remote = over_api(context)
    signer = _Signer.of(config)
    if len(revision.removeprefix("sha256:")) < _LEAST_DIGITS:
        raise InvalidRequest(
            f"revision: {revision[:80]!r} is too short for what is to be signed",
            f"give {_LEAST_DIGITS} or more of its first digits: cachesvc admin revisions list",
        )
    with remote:
        verified = _envelope(remote, digest_of(remote, "revision", revision), signer.trusted)
        statement = verified.manifest.statement
        head = _head(remote, verified.manifest.entry)
        if head is not None and head.revision == verified.revision:
            raise InvalidRequest(f"revision {short(head.revision)} is the head already", "name an older one")
        done = _republish(remote, signer, verified, statement.tag, apply)
    summary = f"roll {done.name} {done.target} back to the bytes of {short(done.revision)}"
    planned([done], _REPUBLISHED, applied=apply, as_json=as_json, summary=summary)


@admin.command("export")
def export(
    context: typer.Context,
    where: Annotated[str, typer.Argument(help="A namespace, namespace/name, or namespace/name:tag.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")],
    as_json: AsJson = False,
) -> None:
    """Write the heads of a namespace's trunk as one file, for a registry that cannot be reached from here."""
    name = made(lambda: Name.parse(where)) if "/" in where else None
    namespace = name.namespace if name else namespace_of(where)
    query = {
        "namespace": namespace,
        "name": name and name.name,
        "tag": name.tag if name and (name.tag != LATEST or ":" in where) else None,
        "trunk": True,
    }
    _, remote = over_api(context)
    rows: list[Carried] = []
    with remote, _writing(out) as archive:
        _add_json(
            archive, _FIRST, {"format": EXPORT_FORMAT, "namespace": namespace, "made": int(time.time())}
        )
        for entry in pages(remote, "/v1/entries", EntryPage, None, **query):
            row = remote.call("GET", f"/v1/revisions/{entry.revision}", None, RevisionRecord)
            # Nothing is signed here, and an import decides by its own keys: the signer is whoever it was.
            signers = [made(partial(PublicKey, row.signer))]
            verified = _envelope(remote, entry.revision, signers)
            with _bundle(remote, verified) as path:
                member = f"{len(rows) + 1:06d}-{verified.revision.hex[:12]}.cachesvc"
                archive.add(path, member, recursive=False, filter=_plain_member)
            rows.append(_carried(verified, "exported"))
        if not rows:
            raise NotFound(f"nothing is published under {where}", "see: cachesvc admin names list")
        _add_json(archive, _LAST, {"revisions": [row.revision for row in rows]})
    summary = f"{len(rows)} revisions of {where} in {out}, {bytes_text(out.stat().st_size)}"
    planned(rows, _CARRIED, applied=True, as_json=as_json, summary=summary)


@admin.command("import")
def import_(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="What export wrote.")],
    trust: Annotated[
        list[str] | None, typer.Option(help="Accept this signer too (team=ed25519:…). May be repeated.")
    ] = None,
    apply: Apply = False,
    as_json: AsJson = False,
) -> None:
    """Publish an export as it was signed. All of it is verified before anything is sent; what the registry
    has newer is kept."""
    config, remote = over_api(context)
    keys: list[PublicKey | TrustedKey] = [
        *config.trusted_keys,
        *made(lambda: [TrustedKey(key) for key in trust or ()]),
    ]
    if config.signing_key is not None:
        keys.append(SigningKey.load(config.signing_key).public)
    with remote:
        rows = [_judged(remote, verified) for _, verified in _bundles(file, keys)]
        if apply:
            rows = [_sent(remote, path, verified, keys) for path, verified in _bundles(file, keys)]
    moved = sum(row.state in ("new", "newer") for row in rows)
    summary = f"publish {moved} of {len(rows)} revisions"
    planned(rows, _CARRIED, applied=apply, as_json=as_json, summary=summary)


def _own_key(config: Config) -> SigningKey:
    if config.signing_key is None:
        raise InvalidRequest(
            "no signing key: the bytes are signed again as what they become",
            "cachesvc login URL --signing-key FILE, or set CACHESVC_SIGNING_KEY",
        )
    return SigningKey.load(config.signing_key)


@dataclass(frozen=True, slots=True)
class _Signer:
    """The operator: the key that signs, the keys that are trusted, and what this machine has seen."""

    key: SigningKey
    trusted: Trusted
    store: NodeStore

    @classmethod
    def of(cls, config: Config) -> _Signer:
        """Raises ``InvalidRequest`` without a signing key."""
        key = _own_key(config)
        return cls(key, [*config.trusted_keys, key.public], NodeStore(config.store or default_root()))


def _heads(
    remote: Remote, signer: _Signer, entries: Iterable[EntryRecord], wanted: ExpectedStatement
) -> Iterator[Verified]:
    """Yields the heads that the registry lists, each checked: signed for what is ``wanted``, not older than
    what this machine has seen, and one for each entry. Raises ``Untrusted``, ``Corrupt``."""
    listed: set[Digest] = set()
    for row in entries:
        verified = _envelope(remote, row.revision, signer.trusted, wanted)
        entry = verified.manifest.entry
        check_sequence(verified, signer.store.highest_sequence(entry))
        if entry in listed:
            raise Corrupt(
                f"the registry lists entry {short(entry)} twice: only one of its revisions is the head"
            )
        listed.add(entry)
        yield verified


def _republish(remote: Remote, signer: _Signer, verified: Verified, tag: Tag, apply: bool) -> Republished:
    """The bytes of a revision under ``tag``, over the head that is there."""
    before = verified.manifest.statement
    manifest = _renamed(verified, tag, signer.store)
    head = _head(remote, manifest.entry)
    if head is not None:
        next_sequence(head.sequence)  # refuses one of the far future in the plan already
    state = "to publish"
    if head is not None and head.pack == manifest.pack.digest:
        state = "the same already"
    elif apply:
        with _bundle(remote, verified) as path:
            again = path.with_suffix(".again")
            _resealed(path, again, signer.key.sign(manifest))
            publish_bundle(remote, again, signer.key, deed="rollback" if tag == before.tag else "tag")
        signer.store.record_sequence(manifest.entry, manifest.statement.sequence)
        state = "published"
    return Republished(
        name=f"{manifest.statement.full_name}" + (f" [{before.lane}]" if before.lane else ""),
        target=str(before.target),
        revision=verified.revision,
        signed=before.sequence // 1000,
        bytes=manifest.pack.size,
        over=head.revision if head else None,
        state=state,
    )


def _renamed(verified: Verified, tag: Tag, store: NodeStore) -> Manifest:
    """The same under another tag, or under the same and a later sequence than any that was seen."""
    manifest, before = verified.manifest, verified.manifest.statement
    provenance = {**manifest.provenance, "bytes_of": f"{before.full_name}@{verified.revision}"}
    named = replace(manifest, statement=replace(before, tag=tag), provenance=provenance)
    sequence = next_sequence(max(before.sequence, store.highest_sequence(named.entry) or 0))
    return replace(named, statement=replace(named.statement, sequence=sequence))


def _head(remote: Remote, entry: Digest) -> RevisionRecord | None:
    try:
        line = remote.rows(f"/v1/entries/{entry}/revisions", RevisionRecord)
    except NotFound:
        return None
    return next((row for row in line if row.head), None)


def _envelope(
    remote: Remote, revision: Digest, trusted: Trusted, wanted: ExpectedStatement | None = None
) -> Verified:
    """The revision's manifest: its digest is that of the bytes received, signed by a key of ``trusted`` for
    what is ``wanted``. Raises ``Untrusted``, ``Corrupt``."""
    raw = remote.raw(f"/v1/revisions/{revision}/envelope", MAX_ENVELOPE_BYTES)
    verified = check_envelope(raw, trusted=trusted, expected=wanted, now=time.time())
    if verified.revision != revision:
        raise Corrupt(f"revision {revision}: the registry sent the envelope of {verified.revision}")
    return verified


@contextmanager
def _bundle(remote: Remote, verified: Verified) -> Iterator[Path]:
    """The revision as a bundle in a temporary folder, checked."""
    pack = verified.manifest.pack
    with tempfile.TemporaryDirectory(prefix="cachesvc-admin-") as folder:
        received = Path(folder, "pack")
        where = f"/v1/revisions/{verified.revision}/pack"
        with _written(received) as out:
            for chunk in remote.downloads.download(where, 0, pack.size, pack=pack.digest):
                out.write(chunk)
        check_pack(received, verified.manifest)
        path = Path(folder, "revision.cachesvc")
        write_bundle(path, verified.envelope, received)
        received.unlink()
        yield path


def _resealed(path: Path, out: Path, envelope: bytes) -> None:
    """The pack of a bundle under another envelope."""
    _, offset = open_bundle(path)
    pack = out.with_suffix(".pack")
    with open(path, "rb") as source, _written(pack) as copy:
        source.seek(offset)
        while chunk := source.read(1 << 20):
            copy.write(chunk)
    write_bundle(out, envelope, pack)
    pack.unlink()


def _carried(verified: Verified, state: str) -> Carried:
    statement, pack = verified.manifest.statement, verified.manifest.pack
    name, target = str(statement.full_name), str(statement.target)
    return Carried(name, target, verified.revision, pack.size, verified.signer, state)


def _judged(remote: Remote, verified: Verified) -> Carried:
    statement = verified.manifest.statement
    try:
        head: EntrySummary | None = remote.entry(verified.manifest.entry)
    except NotFound:
        head = None
    if head is None:
        return _carried(verified, "new")
    if head.revision == verified.revision:
        return _carried(verified, "same")
    return _carried(verified, "newer" if head.sequence < statement.sequence else "kept")


def _sent(remote: Remote, path: Path, verified: Verified, keys: Trusted) -> Carried:
    row = _judged(remote, verified)
    if row.state in ("new", "newer"):
        try:
            publish_signed(remote, path, keys, deed="import")
        except HeadConflict:  # somebody published meanwhile
            return replace(row, state="kept")
    return row


# The file: a tar of bundles between a first member that says what it is and a last one that says it is whole.


@contextmanager
def _writing(path: Path) -> Iterator[tarfile.TarFile]:
    temporary = path.with_name(f".{path.name}.part")
    try:
        with (
            _written(temporary) as out,
            tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as made,
        ):
            yield made
        temporary.replace(path)
    except OSError as error:
        raise StorageFull(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _written(path: Path) -> Iterator[IO[bytes]]:
    try:
        with open(path, "wb") as out:
            yield out
    except CacheSvcError:
        raise
    except OSError as error:
        raise StorageFull(f"{path}: cannot be written: {error.strerror or error}") from None


def _plain_member(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Nothing of this machine: equal revisions make equal members."""
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    member.mode = 0o644
    return member


def _add_json(archive: tarfile.TarFile, name: str, value: object) -> None:
    import io

    data = codec.canonical(value)
    member = _plain_member(tarfile.TarInfo(name))
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def _bundles(file: Path, keys: Trusted) -> Iterator[tuple[Path, Verified]]:
    """Each bundle of an export as a temporary file, checked by the one gate: signature, statement, pack.

    Raises ``Untrusted``, ``Corrupt`` (also for a file that ends early), ``NotFound``.
    """
    found: list[str] = []
    ended = False
    with _opened(file) as archive, tempfile.TemporaryDirectory(prefix="cachesvc-admin-") as folder:
        facts = _json_member(archive, archive.next(), _FIRST, file)
        if facts.get("format") != EXPORT_FORMAT:
            raise Corrupt(f"{file}: format {str(facts.get('format'))[:40]!r}", f"{EXPORT_FORMAT} is read")
        for member in iter(archive.next, None):
            if member.name == _LAST:
                ended = _json_member(archive, member, _LAST, file).get("revisions") == found
                break
            if not (member.isreg() and _MEMBER.fullmatch(member.name) and member.size <= _MAX_MEMBER):
                raise Corrupt(f"{file}: {member.name[:80]!r} is no member of an export")
            path = Path(folder, "bundle")
            with _written(path) as out:
                _copied(archive, member, out)
            verified = _checked(path, keys, facts.get("namespace"))
            found.append(verified.revision)
            yield path, verified
    if not ended:
        raise Corrupt(f"{file}: it is not whole", "export it again")


def _checked(path: Path, keys: Trusted, namespace: object) -> Verified:
    envelope, offset = open_bundle(path)
    verified = check_envelope(envelope, trusted=keys, expected=None, now=time.time())
    with open(path, "rb") as file:
        file.seek(offset)
        check_pack(file, verified.manifest)
    if verified.manifest.statement.namespace != namespace:
        raise Corrupt(f"{verified.manifest.statement.full_name} in an export of {str(namespace)[:80]!r}")
    return verified


@contextmanager
def _opened(file: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(file, "r:") as archive:
            yield archive
    except tarfile.TarError as error:
        raise Corrupt(f"{file}: no export: {str(error)[:100]}") from None
    except OSError as error:
        raise NotFound(f"{file}: {error.strerror or error}") from None


def _copied(archive: tarfile.TarFile, member: tarfile.TarInfo, out: IO[bytes]) -> None:
    source = archive.extractfile(member)
    assert source is not None  # a regular member
    while chunk := source.read(1 << 20):
        out.write(chunk)


def _json_member(
    archive: tarfile.TarFile, member: tarfile.TarInfo | None, name: str, file: Path
) -> dict[str, Any]:
    if member is None or member.name != name or not member.isreg() or member.size > _MAX_FACTS:
        raise Corrupt(f"{file}: no export", f"{name} is expected")
    source = archive.extractfile(member)
    assert source is not None  # a regular member
    try:
        value = json.loads(source.read())
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise Corrupt(f"{file}: {name} cannot be read")
    return value
