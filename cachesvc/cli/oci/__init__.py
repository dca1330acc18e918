"""``cachesvc oci``: bundles as artifacts of OCI registries and image layouts, and as images of MCV."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cachesvc.console.output import AsJson, print_json
from cachesvc_client.wire.errors import InvalidRequest
from cachesvc_client.wire.names import Target
from cachesvc_client.wire.text import count_text

from .. import app, completion
from ..arguments import parse_name, parse_option
from ..group import Group

if TYPE_CHECKING:
    from cachesvc.oci.credentials import CredentialSource
    from cachesvc.oci.distribution import Repository
    from cachesvc.oci.places import ImageSource
    from cachesvc.oci.reference import Reference
    from cachesvc_client.bundle.seal import Signer
    from cachesvc_client.config.settings import Config

    from .transfer import SendOptions, SentBundle

_MAX_PASSWORD = 65_536
"""Largest number of characters of a password on standard input."""

oci = typer.Typer(cls=Group, no_args_is_help=True, rich_markup_mode=None)
app.add_typer(oci, name="oci")


@oci.callback()
def _oci() -> None:
    """Exchange bundles with OCI registries and layouts, also as images of MCV."""


class Written(str, Enum):
    """What a place gets."""

    bundle = "bundle"
    mcv = "mcv"
    volume = "volume"


class Read(str, Enum):
    """What a place has."""

    bundle = "bundle"
    mcv = "mcv"


What = Annotated[
    str,
    typer.Argument(
        metavar="FILE|DIR|NAME",
        help="Bundle files, or namespace/name[:tag].",
        autocompletion=completion.names,
    ),
]
Format = Annotated[
    Written,
    typer.Option(
        help="An artifact; an image of MCV with Triton's kernels; an image that a cluster mounts as a volume."
    ),
]
Kserve = Annotated[bool, typer.Option("--kserve", help="With mcv: the labels of KServe too.")]
Folder = Annotated[
    str,
    typer.Option(
        metavar="PATH", help="With mcv: where the files are mounted; /root/.triton/cache if not given."
    ),
]
Into = Annotated[Path, typer.Argument(help="A folder, or one file that ends with .cachesvc.")]
There = Annotated[Read, typer.Option("--format", help="What is there.")]
ExpectedName = Annotated[
    str | None,
    typer.Option(
        "--name",
        metavar="NAME",
        help="The name that the bundles must be signed for; with mcv the name that the new bundle gets.",
        autocompletion=completion.names,
    ),
]
NewTarget = Annotated[
    str | None, typer.Option("--target", metavar="TARGET", help="With mcv: target of the new bundle.")
]
SigningKeyFile = Annotated[
    Path | None,
    typer.Option("--signing-key", metavar="FILE", help="With mcv: your key, which signs the new bundle."),
]
Sign = Annotated[
    bool, typer.Option("--sign", help="With mcv: sign the new bundle with the key that is configured.")
]
Here = Annotated[
    Path | None,
    typer.Option(
        "--here",
        metavar="FILE",
        help="With mcv: the environment of the kernels, as doctor --json printed it; else this one.",
    ),
]
Username = Annotated[
    str | None, typer.Option(metavar="NAME", help="With --password-stdin; else docker's config.json.")
]
PasswordStdin = Annotated[
    bool, typer.Option("--password-stdin", help="Read the password from standard input.")
]
PlainHttp = Annotated[
    bool, typer.Option("--plain-http", help="HTTP to another machine, to which no credentials are sent.")
]


@dataclass(frozen=True, slots=True)
class _NewBundle:
    """Says what becomes of what is read; all but ``name`` are for an image of MCV."""

    into: Path
    name: str | None
    target: str | None
    signing_key: Path | None
    sign: bool
    here: Path | None


@oci.command()
def push(
    what: What,
    reference: Annotated[str, typer.Argument(help="host[:port]/repository[:tag]")],
    format: Format = Written.bundle,
    kserve: Kserve = False,
    folder: Folder = "",
    username: Username = None,
    password_stdin: PasswordStdin = False,
    plain_http: PlainHttp = False,
    as_json: AsJson = False,
) -> None:
    """Put bundles into a repository of an OCI registry."""
    from cachesvc.oci.reference import Reference
    from cachesvc_client.config.settings import Config

    from .transfer import send

    config, place = Config.read(), Reference.parse(reference)
    if place.digest is not None:
        raise InvalidRequest(f"{place}: a digest cannot be written to", "name a tag")
    repository = _repository(config, place, username, password_stdin, plain_http)
    name, options = f"{place.host}/{place.repository}", _options(format, kserve, folder)
    _show_sent(send(config, what, repository, place.tag, name, options), as_json)


@oci.command()
def pull(
    reference: Annotated[str, typer.Argument(help="host[:port]/repository, then :tag or @digest")],
    into: Into,
    format: There = Read.bundle,
    name: ExpectedName = None,
    target: NewTarget = None,
    signing_key: SigningKeyFile = None,
    sign: Sign = False,
    here: Here = None,
    username: Username = None,
    password_stdin: PasswordStdin = False,
    plain_http: PlainHttp = False,
    as_json: AsJson = False,
) -> None:
    """Write the bundles of an OCI registry as files, after they are verified."""
    from cachesvc.oci.reference import Reference
    from cachesvc_client.config.settings import Config

    config, place = Config.read(), Reference.parse(reference)
    repository = _repository(config, place, username, password_stdin, plain_http)
    new = _NewBundle(into, name, target, signing_key, sign, here)
    receive = _receive_mcv if format is Read.mcv else _receive
    receive(config, repository, str(place.digest or place.tag), str(place), new, as_json)


@oci.command()
def export(
    what: What,
    path: Annotated[Path, typer.Argument(help="A folder, to which images are added, or a new .tar file.")],
    format: Format = Written.bundle,
    kserve: Kserve = False,
    folder: Folder = "",
    tag: Annotated[str, typer.Option(help="Tag in the layout.")] = "latest",
    as_json: AsJson = False,
) -> None:
    """Write bundles as an OCI image layout on disk."""
    from cachesvc.oci.image_layout import layout_target
    from cachesvc.oci.reference import TAG
    from cachesvc_client.config.settings import Config

    from .transfer import send

    if not re.fullmatch(TAG, tag):
        raise InvalidRequest(f"tag {tag[:80]!r}: not a tag", "letters, digits and . _ -; at most 128")
    options = _options(format, kserve, folder)
    with layout_target(path) as place:
        rows = send(Config.read(), what, place, tag, "", options)
    _show_sent(rows, as_json)


@oci.command("import")
def import_(
    path: Annotated[Path, typer.Argument(help="A folder or a tar file.")],
    into: Into,
    format: There = Read.bundle,
    name: ExpectedName = None,
    target: NewTarget = None,
    signing_key: SigningKeyFile = None,
    sign: Sign = False,
    here: Here = None,
    tag: Annotated[str, typer.Option(help="Tag in the layout; not needed for the only one.")] = "",
    as_json: AsJson = False,
) -> None:
    """Write the bundles of an OCI image layout as files, after they are verified."""
    from cachesvc.oci.image_layout import open_layout
    from cachesvc_client.config.settings import Config

    new = _NewBundle(into, name, target, signing_key, sign, here)
    receive = _receive_mcv if format is Read.mcv else _receive
    receive(Config.read(), open_layout(path), tag, str(path), new, as_json)


@oci.command("cosign-key")
def cosign_key(key: Annotated[str, typer.Argument(help="ed25519:…, as keygen printed it")]) -> None:
    """Print a public key as cosign verify --key takes it."""
    from cachesvc.oci.signatures import public_key_pem
    from cachesvc_client.bundle.seal import PublicKey

    try:
        print(public_key_pem(PublicKey(key)), end="")
    except ValueError as error:
        raise InvalidRequest(str(error), "give what keygen printed") from None


def _receive(
    config: Config, source: ImageSource, name: str, what: str, new: _NewBundle, as_json: bool
) -> None:
    from cachesvc_client.console.tables import aligned, bytes_text

    from .transfer import receive

    for option in ("target", "signing_key", "sign", "here"):
        if getattr(new, option):
            raise InvalidRequest(
                f"--{option.replace('_', '-')}: a bundle is signed already", "with --format mcv"
            )
    rows = receive(config, source, name, new.into, parse_name(new.name) if new.name else None, what)
    if as_json:
        print_json({"rows": rows})
        return
    table = [
        (row.name, row.target, bytes_text(row.bytes), bytes_text(row.moved), row.signer.short, row.path)
        for row in rows
    ]
    print(aligned([("name", "target", "size", "moved", "signed by", "bundle"), *table]))


def _receive_mcv(
    config: Config, source: ImageSource, name: str, what: str, new: _NewBundle, as_json: bool
) -> None:
    from cachesvc_client.console.tables import aligned
    from cachesvc_client.environment.detect import detect
    from cachesvc_client.queries.explain import read_facts

    from .mcv import ImportOptions, import_mcv

    named, target = new.name, new.target
    if named is None or target is None:
        raise InvalidRequest("an image of MCV names no entry", "give --name NAME and --target TARGET")
    full_name, full_target = parse_name(named), parse_option(lambda: Target(target), "--target")
    signer = _signer(config, new)
    facts = read_facts(new.here) if new.here else detect()
    options = ImportOptions(signer, full_name, full_target, facts)
    row = import_mcv(source, source.document(name), new.into, options, what)
    if as_json:
        print_json(row, "mcv")
        return
    files = count_text(row.files, "file") + (f", {row.left_out} left out" if row.left_out else "")
    cells = (row.name, row.target, files, row.signer.short, row.path)
    print(aligned([("name", "target", "files", "signed by", "bundle"), cells]))


def _signer(config: Config, new: _NewBundle) -> Signer:
    """Return what signs an image that nobody signed: the user names it with the command."""
    from cachesvc_client.bundle.seal import SigningKey
    from cachesvc_client.publication.signer import demand_signer

    if new.signing_key is not None:
        return SigningKey.load(new.signing_key)
    if new.sign:
        return demand_signer(config, "--sign: no signing key")
    raise InvalidRequest(
        "nobody whom you trust has signed an image of MCV, so it becomes a bundle that you sign",
        "if you know where it is from: --signing-key FILE, or --sign for the key that is configured",
    )


def _repository(
    config: Config, reference: Reference, username: str | None, password_stdin: bool, plain_http: bool
) -> Repository:
    from cachesvc.oci.distribution import Repository

    credentials = _credentials(username, password_stdin)
    return Repository.of(reference, credentials, plain_http=plain_http, allow_links=config.allow_links)


def _credentials(username: str | None, password_stdin: bool) -> CredentialSource | None:
    """Return the credentials of the command line; ``None`` without any."""
    from cachesvc.oci.credentials import Credentials, CredentialSource

    if not username and not password_stdin:
        return None
    if not username or not password_stdin:
        raise InvalidRequest("--username and --password-stdin: one is given without the other", "give both")
    password = sys.stdin.read(_MAX_PASSWORD).removesuffix("\n")
    if not password or ":" in username:
        raise InvalidRequest("--password-stdin: no password, or a colon in the name of the user")
    return CredentialSource(Credentials(username, password), "--username")


def _options(format: Written, kserve: bool, folder: str) -> SendOptions:
    from .transfer import SendOptions

    if format is not Written.mcv and (kserve or folder):
        raise InvalidRequest("--kserve, --folder: only an image of MCV has them", "with --format mcv")
    return SendOptions(format.value, kserve, folder)


def _show_sent(rows: Sequence[SentBundle], as_json: bool) -> None:
    from cachesvc_client.console.tables import aligned, bytes_text

    if as_json:
        print_json({"rows": rows})
        return
    table = [(row.name, row.target, bytes_text(row.bytes), row.signature, row.digest) for row in rows]
    print(aligned([("name", "target", "size", "cosign signature", "digest"), *table]))
    for row in rows:
        if row.note:
            print(f"note: {row.name} {row.target}: {row.note}")
