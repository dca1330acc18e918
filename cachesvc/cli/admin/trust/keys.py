"""Complete the key that a user means: the whole key, the beginning of one, or the id that messages show."""

from __future__ import annotations

from collections.abc import Iterable

from cachesvc.schema.access import SignerRecord
from cachesvc.schema.revocations import RevokedSigner
from cachesvc_client.bundle.seal import PublicKey
from cachesvc_client.queries.names import Connection
from cachesvc_client.wire.errors import InvalidRequest, NotFound
from cachesvc_client.wire.suggestion import nearest

from ...arguments import parse_option

_PREFIX = "ed25519:"
LEAST = 4
"""Characters of a key after ``ed25519:``, or hex digits of its id, at least."""


def complete_key(registry: Connection, text: str) -> PublicKey:
    """Return the key that ``text`` means, among the registry's signers and the keys that were revoked; a
    whole key need not be there. Raises what `match_key` raises."""
    if (whole := _whole(text)) is not None:
        return whole
    _require_enough(text)
    rows = (*registry.rows("/v1/signers", SignerRecord), *registry.rows("/v1/revocations", RevokedSigner))
    known = {parse_option(lambda row=row: PublicKey(row.key)) for row in rows}  # type: ignore[misc]
    return match_key(text, known, "signer's key", "see: cachesvc admin signers list")


def match_key(text: str, known: Iterable[PublicKey], what: str, otherwise: str) -> PublicKey:
    """Return the key that ``text`` means: one of ``known``, whole, by its beginning or by its id.

    ``what``: what these keys are, for messages; ``otherwise``: the hint where no key is like ``text``. Raises
    ``InvalidRequest`` for a text that is too short or that several keys begin with, ``NotFound``.
    """
    short = _bare(text)
    _require_enough(text)
    keys = set(known)
    matches = sorted(key for key in keys if _begins(key, short))
    if not matches:
        raise NotFound(f"no {what} begins with {text[:60]!r}", near_key(short, keys) or otherwise)
    if len(matches) > 1:
        raise InvalidRequest(
            f"{len(matches)} keys begin with {text[:60]!r}", "give more of it: " + ", ".join(matches[:4])
        )
    return matches[0]


def _bare(text: str) -> str:
    """Return a key as somebody copied it from a table, without the id in parentheses and the dots."""
    return text.strip().partition(" ")[0].rstrip("…").rstrip(".")


def _whole(text: str) -> PublicKey | None:
    short = _bare(text)
    return parse_option(lambda: PublicKey(short)) if PublicKey.pattern.fullmatch(short) else None


def _require_enough(text: str) -> None:
    if len(_bare(text).removeprefix(_PREFIX)) < LEAST:
        raise InvalidRequest(f"key {text[:60]!r}", f"{_PREFIX}… , or {LEAST} or more of its first characters")


def _begins(key: PublicKey, short: str) -> bool:
    return key.startswith(short) or key.removeprefix(_PREFIX).startswith(short) or key.keyid.startswith(short)


def near_key(short: str, keys: Iterable[PublicKey]) -> str:
    """Return which key somebody meant who mistyped its beginning or its id; nothing where none is like it."""
    count = len(short.removeprefix(_PREFIX))
    forms = {form[:count]: key for key in keys for form in (key.keyid, key.removeprefix(_PREFIX))}
    form = nearest(short.removeprefix(_PREFIX), forms)
    return f"did you mean {forms[form].short}?" if form is not None else ""
