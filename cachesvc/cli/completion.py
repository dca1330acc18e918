"""Complete values at the tab key: what the registry has, asked for a second at most and in silence."""

from __future__ import annotations

from typing import Any

from cachesvc.schema.access import SignerRecord, TokenAnswer
from cachesvc.schema.namespaces import NamespaceRecord
from cachesvc.schema.publishers import PublisherRecord
from cachesvc_client.queries.names import ask_quickly, registry_names


def namespaces(incomplete: str) -> list[str]:
    """Return the namespaces that the user administers."""
    return _column(incomplete, "/v1/namespaces", NamespaceRecord, "namespace")


def names(incomplete: str) -> list[str]:
    """Return namespaces with their names."""
    return [name for name in registry_names() if name.startswith(incomplete)]


def tokens(incomplete: str) -> list[str]:
    """Return the ids of tokens."""
    return _column(incomplete, "/v1/tokens", TokenAnswer, "token")


def keys(incomplete: str) -> list[str]:
    """Return the keys of signers."""
    return _column(incomplete, "/v1/signers", SignerRecord, "key")


def publishers(incomplete: str) -> list[str]:
    """Return the ids of rules."""
    return _column(incomplete, "/v1/publishers", PublisherRecord, "publisher")


def _column(incomplete: str, path: str, record: type[Any], field: str) -> list[str]:
    found = ask_quickly(lambda remote: [str(getattr(row, field)) for row in remote.rows(path, record)])
    return [one for one in dict.fromkeys(found) if one.startswith(incomplete)]
