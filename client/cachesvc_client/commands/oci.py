"""The commands ``oci push``, ``pull``, ``export`` and ``import``: bundles as artifacts and images of OCI."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..console.answers import print_json
from ..wire.errors import InvalidRequest
from .arguments import add_json, name_argument, target_argument

if TYPE_CHECKING:
    from ..bundle.seal import Signer
    from ..config import Config
    from ..oci.credentials import CredentialSource
    from ..oci.distribution import Repository
    from ..oci.places import ImageSource
    from ..oci.reference import Reference
    from .oci_transfer import SentBundle

_MAX_PASSWORD = 65_536
"""Largest number of characters of a password on standard input."""


def add_oci(commands: Any) -> None:
    """Add the group of commands to the parser of all commands."""
    oci = commands.add_parser(
        "oci", help="exchange bundles with OCI registries and image layouts, also as images of MCV"
    )
    group = oci.add_subparsers(required=True)
    _add_push(group)
    _add_pull(group)
    _add_export(group)
    _add_import(group)
    key = group.add_parser("cosign-key", help="print a public key as cosign verify --key takes it")
    key.add_argument("key", metavar="KEY", help="ed25519:…, as keygen printed it")
    key.set_defaults(command=_cosign_key)


def _add_push(group: Any) -> None:
    push = group.add_parser("push", help="put bundles into a repository of an OCI registry")
    _add_what(push)
    push.add_argument("reference", metavar="REFERENCE", help="host[:port]/repository[:tag]")
    _add_access(push)
    add_json(push)
    push.set_defaults(command=_push)


def _add_pull(group: Any) -> None:
    pull = group.add_parser(
        "pull", help="write the bundles of an OCI registry as files, after they are verified"
    )
    pull.add_argument("reference", metavar="REFERENCE", help="host[:port]/repository, then :tag or @digest")
    _add_into(pull)
    _add_access(pull)
    add_json(pull)
    pull.set_defaults(command=_pull, action="pull")


def _add_export(group: Any) -> None:
    export = group.add_parser("export", help="write bundles as an OCI image layout on disk")
    _add_what(export)
    export.add_argument(
        "path", type=Path, metavar="PATH", help="a folder, to which images are added, or a new .tar file"
    )
    export.add_argument("--tag", default="latest", help="tag in the layout")
    add_json(export)
    export.set_defaults(command=_export)


def _add_import(group: Any) -> None:
    imports = group.add_parser(
        "import", help="write the bundles of an OCI image layout as files, after they are verified"
    )
    imports.add_argument("path", type=Path, metavar="PATH", help="a folder or a tar file")
    _add_into(imports)
    imports.add_argument("--tag", default="", help="tag in the layout; not needed for the only one")
    add_json(imports)
    imports.set_defaults(command=_import, action="import")


def _add_what(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", metavar="FILE|DIR|NAME", help="bundle files, or namespace/name[:tag]")
    parser.add_argument(
        "--format",
        choices=("bundle", "mcv", "volume"),
        default="bundle",
        help="an artifact; an image of MCV with Triton's kernels; an image that a cluster mounts as a volume",
    )
    parser.add_argument("--kserve", action="store_true", help="with mcv: the labels of KServe too")
    parser.add_argument(
        "--folder",
        default="",
        metavar="PATH",
        help="with mcv: where the files are mounted; /root/.triton/cache if not given",
    )


def _add_into(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "into", type=Path, metavar="INTO", help="a folder, or one file that ends with .cachesvc"
    )
    parser.add_argument("--format", choices=("bundle", "mcv"), default="bundle", help="what is there")
    parser.add_argument(
        "--name",
        type=name_argument,
        metavar="NAME",
        help="the name that the bundles must be signed for; with mcv the name that the new bundle gets",
    )
    parser.add_argument(
        "--target", type=target_argument, metavar="TARGET", help="with mcv: target of the new bundle"
    )
    parser.add_argument(
        "--signing-key", type=Path, metavar="FILE", help="with mcv: your key, which signs the new bundle"
    )
    parser.add_argument(
        "--sign", action="store_true", help="with mcv: sign the new bundle with the key that is configured"
    )
    parser.add_argument(
        "--here",
        type=Path,
        metavar="FILE",
        help="with mcv: the environment that the kernels are for, as doctor --json printed it; else this one",
    )


def _add_access(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--username", metavar="NAME", help="with --password-stdin; else docker's config.json")
    parser.add_argument("--password-stdin", action="store_true", help="read the password from standard input")
    parser.add_argument(
        "--plain-http", action="store_true", help="HTTP to another machine, to which no credentials are sent"
    )


def _push(arguments: argparse.Namespace) -> int:
    from ..config import Config
    from ..oci.reference import Reference
    from .oci_transfer import send

    config, reference = Config.read(), Reference.parse(arguments.reference)
    if reference.digest is not None:
        raise InvalidRequest(f"{reference}: a digest cannot be written to", "name a tag")
    repository = _repository(arguments, config, reference)
    name = f"{reference.host}/{reference.repository}"
    rows = send(config, arguments.what, repository, reference.tag, name, _options(arguments))
    return _show_sent("push", rows, arguments.json)


def _export(arguments: argparse.Namespace) -> int:
    import re

    from ..config import Config
    from ..oci.image_layout import layout_target
    from ..oci.reference import TAG
    from .oci_transfer import send

    if not re.fullmatch(TAG, arguments.tag):
        raise InvalidRequest(
            f"tag {arguments.tag[:80]!r}: not a tag", "letters, digits and . _ -; at most 128"
        )
    with layout_target(arguments.path) as target:
        rows = send(Config.read(), arguments.what, target, arguments.tag, "", _options(arguments))
    return _show_sent("export", rows, arguments.json)


def _pull(arguments: argparse.Namespace) -> int:
    from ..config import Config
    from ..oci.reference import Reference

    config, reference = Config.read(), Reference.parse(arguments.reference)
    repository = _repository(arguments, config, reference)
    name = str(reference.digest or reference.tag)
    return _receive(arguments, config, repository, name, str(reference))


def _import(arguments: argparse.Namespace) -> int:
    from ..config import Config
    from ..oci.image_layout import open_layout

    layout = open_layout(arguments.path)
    return _receive(arguments, Config.read(), layout, arguments.tag, str(arguments.path))


def _receive(arguments: argparse.Namespace, config: Config, source: ImageSource, name: str, what: str) -> int:
    if arguments.format == "mcv":
        return _receive_mcv(arguments, config, source, name, what)
    for option in ("target", "signing_key", "sign", "here"):
        if getattr(arguments, option):
            raise InvalidRequest(
                f"--{option.replace('_', '-')}: a bundle is signed already", "with --format mcv"
            )
    from ..console.tables import aligned, bytes_text
    from .oci_transfer import receive

    rows = receive(config, source, name, arguments.into, arguments.name, what)
    if arguments.json:
        print_json(f"oci {arguments.action}", {"rows": rows})
        return 0
    table = [
        (row.name, row.target, bytes_text(row.bytes), bytes_text(row.moved), row.signer.short, row.path)
        for row in rows
    ]
    print(aligned([("name", "target", "size", "moved", "signed by", "bundle"), *table]))
    return 0


def _receive_mcv(
    arguments: argparse.Namespace, config: Config, source: ImageSource, name: str, what: str
) -> int:
    from ..console.tables import aligned
    from ..environment.detect import detect
    from ..queries.explain import read_facts
    from .oci_mcv import ImportOptions, import_mcv

    if arguments.name is None or arguments.target is None:
        raise InvalidRequest("an image of MCV names no entry", "give --name NAME and --target TARGET")
    signer = _signer(arguments, config)
    facts = read_facts(arguments.here) if arguments.here else detect()
    options = ImportOptions(signer, arguments.name, arguments.target, facts)
    row = import_mcv(source, source.document(name), arguments.into, options, what)
    if arguments.json:
        print_json(f"oci {arguments.action} mcv", row)
        return 0
    files = f"{row.files} files" + (f", {row.left_out} left out" if row.left_out else "")
    print(
        aligned(
            [
                ("name", "target", "files", "signed by", "bundle"),
                (row.name, row.target, files, row.signer.short, row.path),
            ]
        )
    )
    return 0


def _signer(arguments: argparse.Namespace, config: Config) -> Signer:
    """Return what signs an image that nobody signed: the user names it with the command."""
    from ..bundle.seal import SigningKey
    from ..publication.signer import demand_signer

    if arguments.signing_key is not None:
        return SigningKey.load(arguments.signing_key)
    if arguments.sign:
        return demand_signer(config, "--sign: no signing key")
    raise InvalidRequest(
        "nobody whom you trust has signed an image of MCV, so it becomes a bundle that you sign",
        "if you know where it is from: --signing-key FILE, or --sign for the key that is configured",
    )


def _repository(arguments: argparse.Namespace, config: Config, reference: Reference) -> Repository:
    from ..oci.distribution import Repository

    return Repository.of(
        reference, _credentials(arguments), plain_http=arguments.plain_http, allow_links=config.allow_links
    )


def _credentials(arguments: argparse.Namespace) -> CredentialSource | None:
    """Return the credentials of the command line; ``None`` without any."""
    from ..oci.credentials import Credentials, CredentialSource

    if not arguments.username and not arguments.password_stdin:
        return None
    if not arguments.username or not arguments.password_stdin:
        raise InvalidRequest("--username and --password-stdin: one is given without the other", "give both")
    password = sys.stdin.read(_MAX_PASSWORD).removesuffix("\n")
    if not password or ":" in arguments.username:
        raise InvalidRequest("--password-stdin: no password, or a colon in the name of the user")
    return CredentialSource(Credentials(arguments.username, password), "--username")


def _options(arguments: argparse.Namespace) -> Any:
    from .oci_transfer import SendOptions

    if arguments.format != "mcv" and (arguments.kserve or arguments.folder):
        raise InvalidRequest("--kserve, --folder: only an image of MCV has them", "with --format mcv")
    return SendOptions(arguments.format, arguments.kserve, arguments.folder)


def _show_sent(action: str, rows: list[SentBundle], as_json: bool) -> int:
    from ..console.tables import aligned, bytes_text

    if as_json:
        print_json(f"oci {action}", {"rows": rows})
        return 0
    table = [(row.name, row.target, bytes_text(row.bytes), row.signature, row.digest) for row in rows]
    print(aligned([("name", "target", "size", "cosign signature", "digest"), *table]))
    for row in rows:
        if row.note:
            print(f"note: {row.name} {row.target}: {row.note}")
    return 0


def _cosign_key(arguments: argparse.Namespace) -> int:
    from ..bundle.seal import PublicKey
    from ..oci.signatures import public_key_pem

    try:
        print(public_key_pem(PublicKey(arguments.key)), end="")
    except ValueError as error:
        raise InvalidRequest(str(error), "give what keygen printed") from None
    return 0
