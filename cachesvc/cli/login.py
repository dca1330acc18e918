"""``cachesvc login | logout | whoami``: the registries that this user has stored."""

from __future__ import annotations

import getpass
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from cachesvc.console.output import AsJson, print_json
from cachesvc_client.console.documents import present
from cachesvc_client.console.tables import aligned, when_text
from cachesvc_client.wire.errors import InvalidRequest, NotFound, Unauthenticated, printable
from cachesvc_client.wire.suggestion import did_you_mean

from . import app
from .arguments import examples

_MAX_TOKEN_BYTES = 4096
"""Largest number of bytes of a token's file."""


@app.command(
    epilog=examples(
        "cachesvc login https://cache.example --token-stdin < token",
        "cachesvc login https://cache.example --trust team=ed25519:KEY",
    )
)
def login(
    url: Annotated[str, typer.Argument(help="Address of the registry, such as https://cache.example.")],
    token_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="File of the token, - for stdin; else CACHESVC_TOKEN, the one stored before, or a question.",
        ),
    ] = None,
    token_stdin: Annotated[
        bool,
        typer.Option("--token-stdin", help="Read the token from standard input, as --token-file - does."),
    ] = False,
    token: Annotated[
        str | None, typer.Option(help="The token itself, which every user of this machine can see meanwhile.")
    ] = None,
    trust: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="ed25519:…, or namespace=ed25519:… (may be repeated)"),
    ] = None,
    signing_key: Annotated[Path | None, typer.Option(metavar="FILE", help="For publishing.")] = None,
    root: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The registry's root of trust, got another way; else the root that the registry gives is "
            "pinned.",
        ),
    ] = None,
    new_root: Annotated[
        bool,
        typer.Option(
            "--new-root",
            help="Pin the registry's present root in place of the one that is pinned for its address.",
        ),
    ] = False,
) -> None:
    """Store a registry, its token and trusted keys for this user."""
    from cachesvc_client.config import login as configuration

    chosen = _read_token(url, token, "-" if token_stdin else token_file)
    path, probe, pin = configuration.login(
        url, chosen, tuple(trust or ()), signing_key, root=root, new_root=new_root
    )
    who = (
        f"{probe.whoami.role} on {probe.whoami.namespace}"
        if probe.whoami
        else "no token: reading may be refused"
    )
    version = probe.info.version
    print(printable(f"logged in to {url} (cachesvc {version}; {who}); stored in {path}"))
    if pin is not None:
        print(printable(pin.text))


@app.command()
def logout(
    url: Annotated[
        str | None, typer.Argument(help="Address of the registry; the default one if absent.")
    ] = None,
) -> None:
    """Forget what login stored for a registry. Its pinned root stays, so that the next login still refuses
    another registry at the address."""
    from cachesvc_client.config.login import Login, RegistryLogin

    stored = Login.read()
    chosen = _normal(url) if url else stored.default
    known = [one for one, row in stored.registries.items() if row != RegistryLogin(trust_root=row.trust_root)]
    if chosen is None or chosen not in known:
        hint = did_you_mean(chosen or "", known, "stored: " + (", ".join(known) or "none"))
        missing = f"no login is stored for {chosen}" if chosen else "you are logged in to no registry"
        raise NotFound(missing, hint)
    left = [one for one in known if one != chosen]
    default = stored.default if stored.default != chosen else left[0] if len(left) == 1 else None
    emptied = RegistryLogin(trust_root=stored.registries[chosen].trust_root)
    path = replace(stored, registries={**stored.registries, chosen: emptied}, default=default).write()
    print(printable(f"logged out of {chosen}; {path} has its pinned root alone"))
    if left:
        print(printable(f"the default is now {default or 'none'}; stored: {', '.join(left)}"))


@app.command()
def whoami(as_json: AsJson = False) -> None:
    """Show the registry in use, and what your token may do there."""
    from cachesvc_client.config.login import Login
    from cachesvc_client.config.settings import Config
    from cachesvc_client.queries.pull import registry_of

    config = Config.read()
    with registry_of(config) as remote:
        if config.token is None:
            raise Unauthenticated(f"no token for {config.url}", f"cachesvc login {config.url}")
        who = remote.whoami()
    if as_json:
        print_json({"registry": config.url, **present(who)})
        return
    facts = [("registry", config.url), ("token", who.token), ("label", who.label), ("role", who.role)]
    facts.append(("namespaces", "all" if who.namespace == "*" else who.namespace))
    facts.append(("lane", who.lane))
    expires = "never" if who.expires is None else when_text(who.expires, time.time())
    facts.append(("expires", expires))
    others = [url for url, row in Login.read().registries.items() if row.token and url != config.url]
    facts.append(("stored too", ", ".join(others) and f"{', '.join(others)} (CACHESVC_URL chooses one)"))
    print(aligned([fact for fact in facts if fact[1]]))


def _read_token(url: str, token: str | None, token_file: str | None) -> str | None:
    """Return the token to log in with: an argument's, else that of CACHESVC_TOKEN, else the one stored for
    ``url``, else what the user types, if stdin is a terminal.

    ``token_file``: the path of a file, ``-`` for stdin. Raises ``InvalidRequest``.
    """
    if token and token_file:
        raise InvalidRequest("--token and --token-file: one of them, please", "leave --token out")
    if token:
        print(
            "warning: --token shows the token to every user of this machine, in the list of processes; "
            "use --token-file FILE, or --token-file - for stdin",
            file=sys.stderr,
        )
        return token
    if token_file:
        return _from_file(token_file)
    return os.environ.get("CACHESVC_TOKEN") or _stored(url) or _asked()


def _from_file(path: str) -> str:
    """Return the first line of a file, or of stdin."""
    try:
        if path == "-":
            text = sys.stdin.readline(_MAX_TOKEN_BYTES)
        else:
            with Path(path).expanduser().open(encoding="utf-8") as file:
                text = file.readline(_MAX_TOKEN_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(
            f"--token-file {path}: {getattr(error, 'strerror', None) or 'no text'}"
        ) from None
    if not text.strip():
        raise InvalidRequest(f"--token-file {path}: nothing is in it")
    return text.strip()


def _stored(url: str) -> str | None:
    from cachesvc_client.config.login import Login

    stored = Login.read().registries.get(_normal(url))
    return stored.token if stored else None


def _normal(url: str) -> str:
    """Return the address of a registry as logins are stored by it. Raises ``InvalidRequest``."""
    from cachesvc_client.config.urls import registry_url

    try:
        return registry_url(url)
    except ValueError as error:
        raise InvalidRequest(f"URL: {error}") from None


def _asked() -> str | None:
    """Return what the user types; ``None`` for an empty line and where nobody can be asked."""
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    return getpass.getpass("token (empty for none): ").strip() or None
