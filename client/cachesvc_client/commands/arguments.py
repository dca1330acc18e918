"""Parse arguments that several commands have, and print JSON.

Every command imports this module, so it imports nothing heavy.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeVar

from ..wire.names import Lane, Name, Tag

T = TypeVar("T")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json`` to a command."""
    parser.add_argument(
        "--json",
        action="store_true",
        help="JSON on stdout; an error is JSON on stderr (docs/reference/json.md)",
    )


def add_tag_fallback(parser: argparse.ArgumentParser) -> None:
    """Add ``--tag-fallback`` to a command."""
    parser.add_argument(
        "--tag-fallback",
        action="append",
        default=[],
        type=tag_argument,
        metavar="TAG",
        help="a tag to try after the name's own; may be repeated",
    )


def name_argument(text: str) -> Name:
    """Parse ``namespace/name[:tag]`` of a command line."""
    return _parse(Name.parse, text)


def tag_argument(text: str) -> Tag:
    """Parse a tag of a command line."""
    return _parse(Tag, text)


def lane_argument(text: str) -> Lane:
    """Parse a lane of a command line."""
    return _parse(Lane, text)


def _parse(parse: Callable[[str], T], text: str) -> T:
    """Parse an argument. A ``ValueError`` becomes argparse's error, which names the argument."""
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
