"""The command ``cosign``: add a signature to bundle files that others have signed."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..wire.errors import printable

if TYPE_CHECKING:
    from ..bundle.seal import PublicKey, Signer, TrustedKey
    from ..config import Config
    from ..trust.accept import Accepted


def add_cosign(commands: Any) -> None:
    """Add the command to the parser of all commands."""
    cosign = commands.add_parser("cosign", help="add your signature to bundle files that others have signed")
    cosign.add_argument("files", nargs="+", type=Path, metavar="FILE", help="bundle files (*.cachesvc)")
    cosign.set_defaults(command=_cosign)


def _cosign(arguments: argparse.Namespace) -> int:
    from ..config import Config
    from ..publication.signer import demand_signer

    config = Config.read()
    signer = demand_signer(config, "no signing key")
    for path in arguments.files:
        verified = cosign_bundle(path, signer, config)
        statement = verified.manifest.statement
        signers = f"signed by {verified.signer.short}, and now by {signer.public.short}"
        print(printable(f"{path}: {statement.full_name} {statement.target}: {signers}"))
    return 0


def cosign_bundle(path: Path, signer: Signer, config: Config) -> Accepted:
    """Add the signature of ``signer`` to a bundle file, and return what it signed.

    The bundle is whole, and another key has signed it that this configuration trusts: a trusted key, or one
    that the pinned root names, although one alone may be too few there. Raise ``Untrusted``, ``Corrupt``,
    ``NotFound``, ``StorageFull``; the file is then as it was.
    """
    from ..bundle.check import check_pack
    from ..bundle.file import open_bundle, replace_envelope
    from ..node.store import NodeStore, default_root
    from ..trust.accept import Acceptance
    from ..trust_root.registry_metadata import policy_of_node

    envelope, offset = open_bundle(path)
    trusted: list[PublicKey | TrustedKey] = [*config.trusted_keys]
    if config.trust_root is not None:
        policy, _ = policy_of_node(config, NodeStore(config.store or default_root()))
        trusted += policy.keys if policy is not None else ()
    others = [trust for trust in trusted if getattr(trust, "key", trust) != signer.public]
    verified = Acceptance(others).accept_signed(envelope, None)
    check_pack(path, verified.manifest, offset)
    cosigned = signer.add_signature(envelope)
    Acceptance([signer.public]).accept_signed(cosigned, None)
    replace_envelope(path, path, cosigned)
    return verified
