"""Owns where ``login`` reads the token: a file, stdin, a variable, the login before, or the user."""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path

from ..config import Login, registry_url
from ..wire.errors import InvalidRequest

_MAX_TOKEN_BYTES = 4096
"""Largest number of bytes of a token's file."""


def read_token(url: str, token: str | None, token_file: str | None) -> str | None:
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
    try:
        stored = Login.read().registries.get(registry_url(url))
    except ValueError as error:
        raise InvalidRequest(f"URL: {error}") from None
    return stored.token if stored else None


def _asked() -> str | None:
    """Return what the user types; ``None`` for an empty line and where nobody can be asked."""
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    return getpass.getpass("token (empty for none): ").strip() or None
