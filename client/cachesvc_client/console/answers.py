"""Print the JSON of an answer, and an error in one line, as every command does.

Every command imports this module, so it imports nothing heavy.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..wire.errors import CacheSvcError, Unauthenticated

if TYPE_CHECKING:
    from ..config.settings import Config

_THIS_MACHINE = {"localhost", "127.0.0.1", "::1"}
"""Names of the loopback that users mix up."""


def print_json(command: str, body: object) -> None:
    """Print the answer of a command as indented JSON. ``body``: a record, or a mapping of its fields."""
    import json

    from .documents import document

    print(json.dumps(document(command, body), indent=1))


def report_error(error: CacheSvcError, words: Sequence[str]) -> None:
    """Print an error on stderr: as one line of text, or where the command's ``words`` ask for JSON, as one
    line of JSON."""
    if isinstance(error, Unauthenticated):
        error = _name_other_login(error)
    if not wants_json(words):
        print(f"error: {error}", file=sys.stderr)
        return
    import json

    from .documents import error_document

    print(json.dumps(error_document(error)), file=sys.stderr)


def _name_other_login(error: Unauthenticated) -> Unauthenticated:
    """Return the error with the login that somebody means who writes this machine's name in another way."""
    from ..config.settings import Config

    try:
        config = Config.read()
        other = other_login(config) if config.token is None else None
    except CacheSvcError:
        return error
    return Unauthenticated(error.message, f"your login is for {other}: use that URL") if other else error


def with_program(program: str, text: str) -> str:
    """Return a text with the commands in it as the user's program has them: ``cachesvc`` has all of the
    client's."""
    return text.replace("cachesvc-client ", f"{program} ")


def wants_json(words: Sequence[str]) -> bool:
    """Return whether the words of a command ask for JSON. What follows ``--`` is another program's."""
    own = words[: words.index("--")] if "--" in words else words
    output = [own[place : place + 2] for place, word in enumerate(own) if word in ("-o", "--output")]
    return (
        "--json" in own
        or any(pair[1:] == ["json"] for pair in map(list, output))
        or bool({"-ojson", "--output=json"} & set(own))
    )


def without_provenance(row: object) -> dict[str, Any]:
    """Return a row as JSON has it: the statement is whole, and what was read of it is left out."""
    from .documents import present

    return {name: value for name, value in present(row).items() if name != "provenance"}


def sentence(text: str) -> str:
    """Return a help text as a sentence: with a capital and a full stop."""
    if not text or text.startswith(("ed25519:", "host[", "namespace/", "CACHESVC_", "PATH")):
        return text
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "…")) else ".")


def other_login(config: Config) -> str | None:
    """Return the URL of a stored login that differs from the configured URL by the name of this machine alone
    (``localhost``, ``127.0.0.1``); ``None`` if there is none. A login counts for its own URL only."""
    if config.url is None:
        return None
    from ..config.login import Login

    mine = urlsplit(config.url)
    for url, row in Login.read().registries.items():
        other = urlsplit(url)
        same = (other.scheme, other.port, other.path) == (mine.scheme, mine.port, mine.path)
        if row.token and url != config.url and same and {mine.hostname, other.hostname} <= _THIS_MACHINE:
            return url
    return None
