"""Owns ``login``, ``logout`` and ``whoami``: the registries that this user has stored."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..console.answers import print_json
from ..wire.errors import InvalidRequest, NotFound, Unauthenticated, printable
from .arguments import add_json
from .parser import examples


def add_login(commands: Any) -> None:
    """Add the command to the parser of all commands."""
    login = commands.add_parser(
        "login",
        help="store a registry, its token and trusted keys for this user",
        epilog=examples(
            "%(prog)s https://cache.example --token-stdin < token",
            "%(prog)s https://cache.example --trust team=ed25519:KEY",
        ),
    )
    login.add_argument("url", help="address of the registry, such as https://cache.example")
    login.add_argument(
        "--token-file",
        metavar="FILE",
        help="file of the token, - for stdin; else CACHESVC_TOKEN, the one stored before, or a question",
    )
    login.add_argument(
        "--token-stdin",
        action="store_const",
        const="-",
        dest="token_file",
        help="read the token from standard input, as --token-file - does",
    )
    login.add_argument("--token", help="the token itself, which every user of this machine can see meanwhile")
    login.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="KEY",
        help="ed25519:…, or namespace=ed25519:… (may be repeated)",
    )
    login.add_argument("--signing-key", type=Path, metavar="FILE", help="for publishing")
    login.add_argument(
        "--root",
        type=Path,
        metavar="FILE",
        help="the registry's root of trust, got another way; else the root that the registry gives is pinned",
    )
    login.add_argument(
        "--new-root",
        action="store_true",
        help="pin the registry's present root in place of the one that is pinned for its address",
    )
    login.set_defaults(command=_login)


def _login(arguments: argparse.Namespace) -> int:
    from ..config import login
    from .login_token import read_token

    token = read_token(arguments.url, arguments.token, arguments.token_file)
    path, probe, pin = login(
        arguments.url,
        token,
        tuple(arguments.trust),
        arguments.signing_key,
        root=arguments.root,
        new_root=arguments.new_root,
    )
    who = (
        f"{probe.whoami.role} on {probe.whoami.namespace}"
        if probe.whoami
        else "no token: reading may be refused"
    )
    version = probe.info.version
    print(printable(f"logged in to {arguments.url} (cachesvc {version}; {who}); stored in {path}"))
    if pin is not None:
        print(printable(pin.text))
    return 0


def add_logout(commands: Any) -> None:
    """Add the command to the parser of all commands."""
    logout = commands.add_parser("logout", help="forget what login stored for a registry")
    logout.add_argument("url", nargs="?", help="address of the registry; the default one if absent")
    logout.set_defaults(command=_logout)


def _logout(arguments: argparse.Namespace) -> int:
    """Forget token, keys and signing key of a registry. Its pinned root stays, so that the next login still
    refuses another registry at the address."""
    from ..config import Login, RegistryLogin, registry_url
    from ..wire.suggestion import did_you_mean

    stored = Login.read()
    try:
        url = registry_url(arguments.url) if arguments.url else stored.default
    except ValueError as error:
        raise InvalidRequest(f"URL: {error}") from None
    known = [one for one, row in stored.registries.items() if row != RegistryLogin(trust_root=row.trust_root)]
    if url is None or url not in known:
        hint = did_you_mean(url or "", known, "stored: " + (", ".join(known) or "none"))
        raise NotFound(f"no login is stored for {url}" if url else "you are logged in to no registry", hint)
    left = [one for one in known if one != url]
    default = stored.default if stored.default != url else left[0] if len(left) == 1 else None
    emptied = RegistryLogin(trust_root=stored.registries[url].trust_root)
    path = replace(stored, registries={**stored.registries, url: emptied}, default=default).write()
    print(printable(f"logged out of {url}; {path} has its pinned root alone"))
    if left:
        print(printable(f"the default is now {default or 'none'}; stored: {', '.join(left)}"))
    return 0


def add_whoami(commands: Any) -> None:
    """Add the command to the parser of all commands."""
    whoami = commands.add_parser("whoami", help="show the registry in use, and what your token may do there")
    add_json(whoami)
    whoami.set_defaults(command=_whoami)


def _whoami(arguments: argparse.Namespace) -> int:
    from ..config import Config, Login
    from ..console.documents import present
    from ..console.tables import aligned, when_text
    from ..queries.transfer import registry_of

    config = Config.read()
    with registry_of(config) as remote:
        if config.token is None:
            raise Unauthenticated(f"no token for {config.url}", f"cachesvc login {config.url}")
        who = remote.whoami()
    if arguments.json:
        print_json("whoami", {"registry": config.url, **present(who)})
        return 0
    facts = [("registry", config.url), ("token", who.token), ("label", who.label), ("role", who.role)]
    facts.append(("namespaces", "all" if who.namespace == "*" else who.namespace))
    facts.append(("lane", who.lane))
    expires = "never" if who.expires is None else when_text(who.expires, time.time())
    facts.append(("expires", expires))
    others = [url for url, row in Login.read().registries.items() if row.token and url != config.url]
    facts.append(("stored too", ", ".join(others) and f"{', '.join(others)} (CACHESVC_URL chooses one)"))
    print(aligned([fact for fact in facts if fact[1]]))
    return 0
