"""Complete values of `cachesvc admin`: what the registry has, asked for a second at most and in silence."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from cachesvc_client.queries.names import SECONDS, registry_names, within
from cachesvc_client.wire.admin import NamespaceRecord
from cachesvc_client.wire.protocol import SignerRecord, TokenAnswer
from cachesvc_client.wire.publishers import PublisherRecord


def namespaces(incomplete: str) -> list[str]:
    """Return the namespaces that the user administers."""
    return _matching(incomplete, lambda: _column("/v1/namespaces", NamespaceRecord, "namespace"))


def names(incomplete: str) -> list[str]:
    """Return namespaces with their names."""
    return [name for name in registry_names() if name.startswith(incomplete)]


def tokens(incomplete: str) -> list[str]:
    """Return the ids of tokens."""
    return _matching(incomplete, lambda: _column("/v1/tokens", TokenAnswer, "token"))


def keys(incomplete: str) -> list[str]:
    """Return the keys of signers."""
    return _matching(incomplete, lambda: _column("/v1/signers", SignerRecord, "key"))


def publishers(incomplete: str) -> list[str]:
    """Return the ids of rules."""
    return _matching(incomplete, lambda: _column("/v1/publishers", PublisherRecord, "publisher"))


def _matching(incomplete: str, ask: Callable[[], Iterable[str]]) -> list[str]:
    return [one for one in dict.fromkeys(within(ask)) if one.startswith(incomplete)]


def _column(path: str, record: type[Any], field: str) -> list[str]:
    from cachesvc_client.config import Config
    from cachesvc_client.http.registry import Remote

    config = Config.read()
    if config.url is None:
        return []
    with Remote(config.url, config.token, timeout=SECONDS, connect_timeout=SECONDS, retries=0) as remote:
        return [str(getattr(row, field)) for row in remote.rows(path, record)]
