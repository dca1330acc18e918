"""``cachesvc node``: runs the agent that keeps the store of a node warm."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from cachesvc_client.wire.errors import InvalidRequest

from . import app, completion
from .arguments import examples

if TYPE_CHECKING:
    from cachesvc.agent.peers.options import PeerOptions

T = TypeVar("T")


@app.command(
    epilog=examples(
        "cachesvc node team/bert --store /var/cache/cachesvc",
        'cachesvc node "team/*:prod" --only "gpu=NVIDIA H100*" --max-size 40GiB',
        'cachesvc node "team/*" --peers 10.0.0.7:8752 --peer-networks 10.0.0.0/8',
    )
)
def node(
    patterns: Annotated[
        list[str],
        typer.Argument(
            metavar="PATTERN", help="namespace/name[:tag], with * and ?", autocompletion=completion.names
        ),
    ],
    store: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The store; by default CACHESVC_NODE_STORE.")
    ] = None,
    pin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN", help="Names of which packs are held before all others; may be repeated."
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FACTOR=GLOB",
            help="Entries of these environments only, such as gpu=NVIDIA*; may be repeated.",
        ),
    ] = None,
    max_size: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Bytes of packs; by default CACHESVC_STORE_BYTES, or 20GiB."),
    ] = None,
    keep: Annotated[str, typer.Option(metavar="TIME", help="How long a replaced pack is kept.")] = "1h",
    interval: Annotated[str, typer.Option(metavar="TIME", help="Between two rounds.")] = "30s",
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where /metrics, /healthz and /readyz are.")
    ] = "127.0.0.1:8751",
    peers: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS:PORT",
            help="Give packs to other agents at this address, and get packs from them at their addresses and "
            "this port; needs --peer-networks, and the registry's setting peers.",
        ),
    ] = None,
    peer_networks: Annotated[
        str | None,
        typer.Option(
            metavar="NETWORKS",
            help="Where other agents may be, with commas, such as 10.4.0.0/16; no other address is called.",
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="One round, without these pages.")] = False,
) -> None:
    """Keep a store of this node warm, from which services start without the registry."""
    from cachesvc.agent.agent import AgentOptions, run_agent
    from cachesvc.agent.round import Selection
    from cachesvc.agent.watch import FactorPattern, Pattern
    from cachesvc_client.config.settings import Config
    from cachesvc_client.node.parts.pack_store import max_store_bytes
    from cachesvc_client.wire.durations import parse_duration
    from cachesvc_client.wire.sizes import parse_size

    config = Config.read()
    root = store or config.node_store
    if root is None:
        raise InvalidRequest(
            "node: no store", "name one: --store /var/cache/cachesvc, or CACHESVC_NODE_STORE"
        )
    seconds = _parsed("--interval", parse_duration, interval)
    if not 1 <= seconds <= 86400:
        raise InvalidRequest("--interval: allowed: 1s to 1d")
    host, port = _parsed("--listen", _address, listen)
    selection = Selection(
        tuple(_parsed("PATTERN", Pattern.parse, text) for text in patterns),
        tuple(_parsed("--pin", Pattern.parse, text) for text in pin or ()),
        tuple(_parsed("--only", FactorPattern.parse, text) for text in only or ()),
        _parsed("--keep", parse_duration, keep),
    )
    bound = max_store_bytes() if max_size is None else _parsed("--max-size", parse_size, max_size)
    exchange = _peer_options(peers, peer_networks, once)
    if not config.url:
        raise InvalidRequest("node: no registry", "set CACHESVC_URL or run: cachesvc login URL")
    if not config.trusted_keys and config.trust_root is None:
        raise InvalidRequest(
            "node: nobody is trusted", "set CACHESVC_TRUSTED_KEYS, or log in with --trust KEY"
        )
    _log_to_stderr()
    run_agent(config, AgentOptions(root.absolute(), selection, bound, seconds, host, port, once, exchange))


def _peer_options(peers: str | None, networks: str | None, once: bool) -> PeerOptions | None:
    """Return where packs are exchanged with other agents; ``None`` if nowhere."""
    from cachesvc.agent.peers.options import PeerOptions
    from cachesvc_client.http.origin import parse_networks

    if peers is None and networks is None:
        return None
    if peers is None or networks is None:
        raise InvalidRequest(
            "--peers, --peer-networks: one is set without the other",
            "set both, such as --peers 10.4.0.17:8752 --peer-networks 10.4.0.0/16",
        )
    if once:
        raise InvalidRequest("--peers: an agent with --once ends and gives nothing", "leave one of them out")
    allowed = _parsed("--peer-networks", parse_networks, networks)
    address, port = _parsed("--peers", _address, peers)
    return _parsed("--peers", lambda _text: PeerOptions(address, port, allowed), peers)


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise ValueError("allowed: HOST:PORT, such as 127.0.0.1:8751")
    return host.strip("[]"), int(port)


def _parsed(option: str, parse: Callable[[str], T], text: str) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise InvalidRequest(f"{option} {text[:80]!r}: {error}") from None


def _log_to_stderr() -> None:
    """Has the agent say on stderr what it does, unless CACHESVC_LOG has set up a log."""
    log = logging.getLogger("cachesvc")
    if not log.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(handler)
    log.setLevel(min(log.level or logging.INFO, logging.INFO))
