"""``cachesvc push | verify | cosign | keygen``: publishes, checks and signs bundle files."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cachesvc.console.output import AsJson, print_json
from cachesvc_client.console.documents import error_record
from cachesvc_client.console.tables import aligned, bytes_text
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import CacheSvcError, printable
from cachesvc_client.wire.names import Target

from . import app, completion
from .arguments import examples

if TYPE_CHECKING:
    from cachesvc_client.bundle.seal import PublicKey, Signer, TrustedKey
    from cachesvc_client.config.settings import Config
    from cachesvc_client.trust.accept import Accepted


@dataclass(frozen=True, slots=True)
class PushedRevision:
    """Describes a revision that ``push`` published. ``created``: false if the registry had it already."""

    path: Path
    name: str
    target: Target
    revision: Digest
    bytes: int
    created: bool


@app.command(epilog=examples("cachesvc push out/*.cachesvc"))
def push(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="Bundle files (*.cachesvc), signed already.")
    ],
    as_json: AsJson = False,
) -> None:
    """Publish bundle files."""
    from cachesvc_client.config.settings import Config

    config = Config.read()
    revisions: list[PushedRevision] = []
    refused: list[tuple[Path, CacheSvcError]] = []
    for path in files:
        try:
            revisions.append(push_bundle(config, path))
        except CacheSvcError as error:  # one bad file does not hold up the others
            refused.append((path, error))
            if not as_json:  # the line names the file once
                line = f"{path}: {str(error).removeprefix(f'bundle {path}: ')}"
                print(printable(f"error: {line}"), file=sys.stderr)
    if as_json:
        errors = [{"path": path, **error_record(error)} for path, error in refused]
        print_json({"rows": revisions, "refused": errors})
    elif revisions:
        states = {True: "published", False: "there already"}
        print(
            aligned(
                (states[row.created], row.name, row.target, bytes_text(row.bytes), row.path)
                for row in revisions
            )
        )
    raise typer.Exit(refused[0][1].exit_status if refused else 0)


def push_bundle(config: Config, path: Path) -> PushedRevision:
    """Publish a bundle file under the name in its signed statement, over the head that is there now.

    The registry decides whether the signer may publish. Raises ``Untrusted``, ``Corrupt``, ``HeadConflict``
    if another publication was first or the registry's revision is newer, ``Forbidden``, ``Unavailable``.
    """
    from cachesvc_client.bundle.file import open_bundle
    from cachesvc_client.publication.publish_bundle import publish_signed
    from cachesvc_client.publication.signer import signer_of
    from cachesvc_client.queries.pull import registry_of
    from cachesvc_client.queries.trust import registry_policy

    signer = signer_of(config)
    open_bundle(path)  # an error in the file is reported without a registry too
    with registry_of(config) as remote:
        accepted = config.acceptance(registry_policy(config, remote))
        accepted = accepted.trusting(*([signer.public] if signer else []))
        verified, answer = publish_signed(remote, path, accepted)
    statement = verified.manifest.statement
    return PushedRevision(
        path=path,
        name=str(statement.full_name),
        target=statement.target,
        revision=verified.revision,
        bytes=verified.manifest.pack.size,
        created=answer.created,
    )


@app.command(epilog=examples("cachesvc verify bundles/bert.cachesvc", "cachesvc verify team/bert"))
def verify(
    what: Annotated[
        str,
        typer.Argument(
            metavar="FILE|NAME",
            help="A bundle file, namespace/name[:tag], or a release's statement (*.intoto.json).",
            autocompletion=completion.names,
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Say who signed and built a bundle, whether every byte matches, and why it is trusted."""
    from cachesvc.queries import release
    from cachesvc.queries import verify as verification
    from cachesvc_client.config.settings import Config

    trusted, refused = verification.verify(Config.read(), what)
    if as_json:
        form = "release" if what.endswith(release.SUFFIX) else ""
        print_json({"rows": trusted, "refused": [*map(error_record, refused)]}, form)
    else:
        for row in trusted:
            print(verification.render_verification(row))
        for error in refused:
            print(f"error: {error}", file=sys.stderr)
    raise typer.Exit(max((error.exit_status for error in refused), default=0))


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
    from cachesvc_client.config.settings import Config
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
