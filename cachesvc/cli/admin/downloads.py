"""Download revisions, and trust nothing that the registry says of what is signed.

An envelope must verify under a key that the operator trusts and that the pinned root names, and state the
very name or have the very digest that was typed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from cachesvc_client.bundle.check import ExpectedStatement, check_pack
from cachesvc_client.bundle.file import write_bundle
from cachesvc_client.queries.trust import registry_policy
from cachesvc_client.trust.accept import Acceptance, Accepted, SequenceRecord
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import CacheSvcError, Corrupt, StorageFull
from cachesvc_client.wire.manifest.records import MAX_ENVELOPE_BYTES

if TYPE_CHECKING:
    from cachesvc_client.config.settings import Config
    from cachesvc_client.http.registry import Remote


def acceptance_of(config: Config, remote: Remote) -> Acceptance:
    """Returns whose signatures this operator accepts: by the trusted keys and, where one is pinned, by the
    root. An operator names each revision, so no builder decides; what is signed under another tag must not be
    too old for services. Raises ``Untrusted`` for trust metadata that do not hold."""
    return Acceptance(config.trusted_keys, registry_policy(config, remote), config.max_age)


def download_envelope(
    remote: Remote,
    revision: Digest,
    acceptance: Acceptance,
    expected: ExpectedStatement | None = None,
    record: SequenceRecord | None = None,
) -> Accepted:
    """Downloads the envelope of ``revision``; its digest is that of the received bytes, and a signer that
    ``acceptance`` accepts has signed it for ``expected``; it is not older than what ``record`` has.
    Raises ``Untrusted``, ``Corrupt``."""
    raw = remote.raw(f"/v1/revisions/{revision}/envelope", MAX_ENVELOPE_BYTES)
    verified = acceptance.accept_signed(raw, expected, record)
    if verified.revision != revision:
        raise Corrupt(f"revision {revision}: the registry sent the envelope of {verified.revision}")
    return verified


@contextmanager
def download_bundle(remote: Remote, verified: Accepted) -> Iterator[Path]:
    """Downloads the revision into a temporary folder, checks it, and yields the path of its bundle."""
    pack = verified.manifest.pack
    with tempfile.TemporaryDirectory(prefix="cachesvc-admin-") as folder:
        received = Path(folder, "pack")
        where = f"/v1/revisions/{verified.revision}/pack"
        with writable_file(received) as out:
            for chunk in remote.downloads.download(where, 0, pack.size, pack=pack.digest):
                out.write(chunk)
        check_pack(received, verified.manifest)
        path = Path(folder, "revision.cachesvc")
        write_bundle(path, verified.envelope, received)
        received.unlink()
        yield path


@contextmanager
def writable_file(path: Path) -> Iterator[IO[bytes]]:
    """Opens ``path`` for writing. Raises ``StorageFull`` where the system refuses a write."""
    try:
        with open(path, "wb") as out:
            yield out
    except CacheSvcError:
        raise
    except OSError as error:
        raise StorageFull(f"{path}: cannot be written: {error.strerror or error}") from None
