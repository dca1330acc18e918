"""Owns ``node``: the agent that keeps the store of a node warm."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..wire.errors import InvalidRequest
from .parser import examples

if TYPE_CHECKING:
    from ..agent.agent import AgentOptions
    from ..agent.peers.options import PeerOptions
    from ..config import Config

T = TypeVar("T")

_DEFAULT_LISTEN = "127.0.0.1:8751"


def add_node(commands: Any) -> None:
    """Add the command to the parser of all commands."""
    node = commands.add_parser(
        "node",
        help="keep a store of this node warm, from which services start without the registry",
        epilog=examples(
            "%(prog)s team/bert --store /var/cache/cachesvc",
            '%(prog)s "team/*:prod" --only "gpu=NVIDIA H100*" --max-size 40GiB',
            '%(prog)s "team/*" --peers 10.0.0.7:8752 --peer-networks 10.0.0.0/8',
        ),
    )
    node.add_argument("patterns", nargs="+", metavar="PATTERN", help="namespace/name[:tag], with * and ?")
    node.add_argument("--store", type=Path, metavar="DIR", help="the store; by default CACHESVC_NODE_STORE")
    node.add_argument(
        "--pin",
        action="append",
        default=[],
        metavar="PATTERN",
        help="names of which packs are held before all others; may be repeated",
    )
    node.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="FACTOR=GLOB",
        help="entries of these environments only, such as gpu=NVIDIA*; may be repeated",
    )
    node.add_argument(
        "--max-size", metavar="SIZE", help="bytes of packs; by default CACHESVC_STORE_BYTES, or 20GiB"
    )
    node.add_argument(
        "--keep", default="1h", metavar="TIME", help="how long a replaced pack is kept; by default 1h"
    )
    node.add_argument("--interval", default="30s", metavar="TIME", help="between two rounds; by default 30s")
    node.add_argument(
        "--listen",
        default=_DEFAULT_LISTEN,
        metavar="HOST:PORT",
        help=f"where /metrics, /healthz and /readyz are; by default {_DEFAULT_LISTEN}",
    )
    node.add_argument(
        "--peers",
        metavar="ADDRESS:PORT",
        help="give packs to other agents at this address, and get packs from them at their addresses and "
        "this port; needs --peer-networks, and the registry's setting peers",
    )
    node.add_argument(
        "--peer-networks",
        metavar="NETWORKS",
        help="where other agents may be, with commas, such as 10.4.0.0/16; no other address is called",
    )
    node.add_argument("--once", action="store_true", help="one round, without these pages")
    node.set_defaults(command=_node)


def _node(arguments: argparse.Namespace) -> int:
    from ..agent.agent import run_agent
    from ..config import Config

    config = Config.read()
    options = _options(arguments, config)
    if not config.url:
        raise InvalidRequest("node: no registry", "set CACHESVC_URL or run: cachesvc-client login URL")
    if not config.trusted_keys and config.trust_root is None:
        raise InvalidRequest(
            "node: nobody is trusted", "set CACHESVC_TRUSTED_KEYS, or log in with --trust KEY"
        )
    _log_to_stderr()
    run_agent(config, options)
    return 0


def _options(arguments: argparse.Namespace, config: Config) -> AgentOptions:
    """Return what the words of the command say. Raise ``InvalidRequest`` that names the option."""
    from ..agent.agent import AgentOptions
    from ..agent.round import Selection
    from ..agent.watch import FactorPattern, Pattern
    from ..node.store import max_store_bytes
    from ..wire.durations import parse_duration
    from ..wire.sizes import parse_size

    root = arguments.store or config.node_store
    if root is None:
        raise InvalidRequest(
            "node: no store", "name one: --store /var/cache/cachesvc, or CACHESVC_NODE_STORE"
        )
    interval = _parsed("--interval", parse_duration, arguments.interval)
    if not 1 <= interval <= 86400:
        raise InvalidRequest("--interval: allowed: 1s to 1d")
    host, port = _parsed("--listen", _address, arguments.listen)
    selection = Selection(
        tuple(_parsed("PATTERN", Pattern.parse, text) for text in arguments.patterns),
        tuple(_parsed("--pin", Pattern.parse, text) for text in arguments.pin),
        tuple(_parsed("--only", FactorPattern.parse, text) for text in arguments.only),
        _parsed("--keep", parse_duration, arguments.keep),
    )
    size = arguments.max_size
    bound = max_store_bytes() if size is None else _parsed("--max-size", parse_size, size)
    peers = _peer_options(arguments)
    return AgentOptions(root.absolute(), selection, bound, interval, host, port, arguments.once, peers)


def _peer_options(arguments: argparse.Namespace) -> PeerOptions | None:
    """Return where packs are exchanged with other agents; ``None`` if nowhere."""
    from ..agent.peers.options import PeerOptions
    from ..http.origin import parse_networks

    peers, networks = arguments.peers, arguments.peer_networks
    if peers is None and networks is None:
        return None
    if peers is None or networks is None:
        raise InvalidRequest(
            "--peers, --peer-networks: one is set without the other",
            "set both, such as --peers 10.4.0.17:8752 --peer-networks 10.4.0.0/16",
        )
    if arguments.once:
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
