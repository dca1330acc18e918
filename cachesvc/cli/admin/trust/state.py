"""Ask a registry which roles of the trust metadata it signs itself, and say what follows for an operator."""

from __future__ import annotations

from contextlib import suppress

import typer

from cachesvc.schema.trust_changes import TrustState
from cachesvc_client.queries.names import Connection
from cachesvc_client.wire.errors import NotFound


def read_state(registry: Connection) -> TrustState | None:
    """Return what a registry signs itself; ``None`` for a mirror."""
    with suppress(NotFound):
        return registry.call("GET", "/v1/trust/state", None, TrustState)
    return None


def no_metadata_hint(state: TrustState | None) -> str:
    """Return what an operator does for a registry without trust metadata."""
    if state is None or state.signs_all:
        return "start the registry again: it makes them"
    if state.online is None:
        return (
            "set CACHESVC_SERVER_ONLINE_KEY to a key of cachesvc keygen, on every replica, restart, and "
            "then: cachesvc admin trust init"
        )
    return "cachesvc admin trust init makes them"


def say_if_offline(registry: Connection, command: str) -> None:
    """Print which ``trust`` command changes the signed targets, where the registry does not sign them."""
    state = read_state(registry)
    if state is not None and state.root and not state.signs_all:
        typer.echo(
            "this changes what the registry accepts and offers; services with a pinned root follow the "
            f"targets, whose key the operator has: cachesvc admin trust {command} --targets-key FILE --apply",
            err=True,
        )
