"""Ask for the names of a registry, also at the tab key: for a second at most, and in silence if it fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from ..wire.errors import CacheSvcError, Forbidden, NotFound
from ..wire.names import Name, Namespace
from ..wire.requests.protocol import NameSummary, WhoAmI
from ..wire.suggestion import nearest

if TYPE_CHECKING:
    from ..http.registry import Remote

R = TypeVar("R")

SECONDS = 1.0
"""How long completion waits for the registry."""


@dataclass(frozen=True, slots=True)
class _Namespace:
    """A row of the list of namespaces, of which this needs the name alone."""

    namespace: Namespace


class Connection(Protocol):
    """A connection to a registry's API; every call sends the user's token.

    The client's ``Remote`` is one. With ``cachesvc admin --local`` the API runs in this process and needs no
    token.
    """

    def call(
        self, method: str, path: str, record: object | None, answer_type: type[R], *, idempotent: bool = True
    ) -> R:
        """Send ``record`` and return the answer as ``answer_type``."""
        ...

    def rows(self, path: str, item: type[R]) -> tuple[R, ...]:
        """Return the list at ``path``, each row as ``item``."""
        ...

    def tell(self, method: str, path: str, record: object | None = None) -> None:
        """Send ``record`` to a route whose answer has no body."""
        ...


def namespaces_of(registry: Connection) -> list[Namespace]:
    """Return the namespaces that the user may see.

    Raises ``Forbidden`` for a token that reads every namespace and administers none: it cannot list them.
    """
    who = registry.call("GET", "/v1/whoami", None, WhoAmI)
    if who.namespace != "*":
        return [Namespace(who.namespace)]
    try:
        return [row.namespace for row in registry.rows("/v1/namespaces", _Namespace)]
    except Forbidden:
        raise Forbidden(
            f"token {who.token} reads every namespace, and only an administrator's token lists them",
            "name a namespace: NAMESPACE or NAMESPACE/NAME",
        ) from None


def all_names(registry: Connection, namespaces: list[Namespace] | None = None) -> list[NameSummary]:
    """Return the names of these namespaces; by default of every one that the user may see."""
    spaces = namespaces_of(registry) if namespaces is None else namespaces
    return [row for space in spaces for row in registry.rows(f"/v1/namespaces/{space}/names", NameSummary)]


@contextmanager
def suggesting(registry: Connection, name: Name) -> Iterator[None]:
    """Have the ``NotFound`` of the block, if nothing is under the name, say which one is nearest."""
    try:
        yield
    except NotFound as error:
        known: list[str] = []
        with suppress(CacheSvcError):
            known = [row.name for row in all_names(registry, [name.namespace])]
        near = None if name.name in known else nearest(name.name, known)
        if near is None:
            raise
        raise NotFound(error.message, f"did you mean {name.namespace}/{near}?") from None


def registry_names() -> list[str]:
    """Return the names that the token may read, as ``namespace/name``."""
    return ask_quickly(lambda remote: [f"{row.namespace}/{row.name}" for row in all_names(remote)])


def ask_quickly(ask: Callable[[Remote], list[str]]) -> list[str]:
    """Return what ``ask`` returns of the configured registry; nothing if that fails or takes longer than
    ``SECONDS``."""
    from ..config.settings import Config
    from ..http.registry import Remote

    answer: list[str] = []

    def run() -> None:
        with suppress(CacheSvcError, OSError, ValueError):
            config = Config.read()
            if config.url is not None:
                with Remote(
                    config.url, config.token, timeout=SECONDS, connect_timeout=SECONDS, retries=0
                ) as remote:
                    answer.extend(ask(remote))

    # No timeout of a request bounds all of them together.
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(SECONDS)
    return [] if thread.is_alive() else answer
