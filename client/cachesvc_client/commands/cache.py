"""Owns ``cache``: where the node store of this machine is, what it holds, and how to make it smaller; and the
parser of ``stats``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..console.answers import print_json
from ..console.tables import aligned, bytes_text
from ..wire.errors import InvalidRequest
from ..wire.sizes import parse_size
from ..wire.text import count_text
from .arguments import add_json
from .parser import examples

if TYPE_CHECKING:
    from pathlib import Path


def add_cache(commands: Any) -> None:
    """Add the group of commands to the parser of all commands."""
    cache = commands.add_parser(
        "cache", help="show and empty the store that the processes of this node share"
    )
    group = cache.add_subparsers(required=True)
    folder = group.add_parser("dir", help="print the folder of the store")
    folder.set_defaults(command=_dir)
    size = group.add_parser("size", help="show what the store holds, and its bound")
    add_json(size)
    size.set_defaults(command=_size)
    prune = group.add_parser("prune", help="remove the packs that were used longest ago, until the rest fits")
    prune.add_argument(
        "--max-size", metavar="SIZE", help="such as 5GiB; by default the bound, CACHESVC_STORE_BYTES"
    )
    _add_apply(prune)
    prune.set_defaults(command=_prune)
    clean = group.add_parser("clean", help="remove all that the store can get again and no process uses")
    _add_apply(clean)
    clean.set_defaults(command=_clean)


def add_stats(commands: Any) -> None:
    """Add the command ``stats`` to the parser of all commands."""
    stats = commands.add_parser(
        "stats", help="show what the starts on this machine came to", epilog=examples("%(prog)s --days 7")
    )
    stats.add_argument(
        "--days",
        type=_days_argument,
        default=30,
        metavar="DAYS",
        help="of the last days; by default 30, at most",
    )
    add_json(stats)
    stats.set_defaults(command=_stats)


def _days_argument(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 30:
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: 1 to 30 days")
    return int(text)


def _stats(arguments: argparse.Namespace) -> int:
    from .stats import show

    return show(arguments)


def _add_apply(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--apply", action="store_true", help="do it; without, the plan is printed")


def _root() -> Path:
    from ..config.settings import Config
    from ..node.store import default_root

    return Config.read().store or default_root()


def _dir(arguments: argparse.Namespace) -> int:
    del arguments
    print(_root())
    return 0


def _size(arguments: argparse.Namespace) -> int:
    from ..node.parts.pack_store import max_store_bytes
    from ..node.usage import measure

    root, bound = _root(), max_store_bytes()
    parts = measure(root)
    total = sum(part.bytes for part in parts)
    if arguments.json:
        print_json("cache size", {"folder": root, "bound_bytes": bound, "bytes": total, "parts": parts})
        return 0
    rows = [(bytes_text(part.bytes), part.count, part.holds) for part in parts if part.count]
    print(aligned([("size", "count", "what"), *rows, (bytes_text(total), "", f"in {root}")]))
    print(
        f"packs are kept up to {bytes_text(bound)} (CACHESVC_STORE_BYTES), cache folders while they are in "
        "use, the rest for 30 days without use"
    )
    return 0


def _prune(arguments: argparse.Namespace) -> int:
    from ..node.parts.pack_store import max_store_bytes
    from ..node.store import NodeStore
    from ..node.usage import measure

    try:
        bound = parse_size(arguments.max_size) if arguments.max_size is not None else max_store_bytes()
    except ValueError as error:
        raise InvalidRequest(f"--max-size {arguments.max_size[:40]!r}: {error}") from None
    root = _root()
    before = _packs(measure(root))
    if not arguments.apply:
        return _planned(f"remove packs of {bytes_text(max(0, before - bound))} of {bytes_text(before)}")
    NodeStore(root, bound).evict()
    left = _packs(measure(root))
    print(f"removed packs of {bytes_text(before - left)}; {bytes_text(left)} are left")
    return 0


def _packs(parts: list[Any]) -> int:
    return sum(part.bytes for part in parts if part.part == "packs")


def _clean(arguments: argparse.Namespace) -> int:
    from ..node.usage import measure, remove_cached

    root = _root()
    if not arguments.apply:
        parts = measure(root)
        count = count_text(sum(part.count for part in parts), "entry", "entries")
        return _planned(f"remove {count}, {bytes_text(sum(part.bytes for part in parts))}, from {root}")
    removal = remove_cached(root)
    print(
        f"removed {count_text(removal.removed, 'entry', 'entries')}, {bytes_text(removal.bytes)}, from {root}"
    )
    if removal.in_use:
        stayed = count_text(removal.in_use, "entry", "entries")
        print(f"{stayed} stayed: processes use them, or have just read them")
    return 0


def _planned(what: str) -> int:
    print(f"would {what}")
    print("nothing was changed; --apply does it")
    return 0
