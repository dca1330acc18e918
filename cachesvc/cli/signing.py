"""``cachesvc keygen | cosign``: makes a signing key, and adds a signature to bundle files of others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cachesvc_client.wire.errors import printable

from . import app
from .arguments import examples

if TYPE_CHECKING:
    from cachesvc_client.bundle.seal import PublicKey, Signer, TrustedKey
    from cachesvc_client.config import Config
    from cachesvc_client.trust.accept import Accepted


@app.command(epilog=examples("cachesvc keygen ci.key"))
def keygen(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File for the private key; must not exist.")],
) -> None:
    """Make a signing key, for a publisher."""
    from cachesvc_client.bundle.seal import SigningKey

    key = SigningKey.generate()
    key.save(file)
    print(key.public)


@app.command()
def cosign(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Bundle files (*.cachesvc).")],
) -> None:
    """Add your signature to bundle files that others have signed."""
    from cachesvc_client.config import Config
    from cachesvc_client.publication.signer import demand_signer

    config = Config.read()
    signer = demand_signer(config, "no signing key")
    for path in files:
        verified = cosign_bundle(path, signer, config)
        statement = verified.manifest.statement
        signers = f"signed by {verified.signer.short}, and now by {signer.public.short}"
        print(printable(f"{path}: {statement.full_name} {statement.target}: {signers}"))


def cosign_bundle(path: Path, signer: Signer, config: Config) -> Accepted:
    """Add the signature of ``signer`` to a bundle file, and return what it signed.

    The bundle is whole, and another key has signed it that this configuration trusts: a trusted key, or one
    that the pinned root names, although one alone may be too few there. Raise ``Untrusted``, ``Corrupt``,
    ``NotFound``, ``StorageFull``; the file is then as it was.
    """
    from cachesvc_client.bundle.check import check_pack
    from cachesvc_client.bundle.file import open_bundle, replace_envelope
    from cachesvc_client.queries.trust import policy_here
    from cachesvc_client.trust.accept import Acceptance

    envelope, offset = open_bundle(path)
    trusted: list[PublicKey | TrustedKey] = [*config.trusted_keys]
    if config.trust_root is not None:
        policy, _ = policy_here(config)
        trusted += policy.keys if policy is not None else ()
    others = [trust for trust in trusted if getattr(trust, "key", trust) != signer.public]
    verified = Acceptance(others).accept_signed(envelope, None)
    check_pack(path, verified.manifest, offset)
    cosigned = signer.add_signature(envelope)
    Acceptance([signer.public]).accept_signed(cosigned, None)
    replace_envelope(path, path, cosigned)
    return verified
