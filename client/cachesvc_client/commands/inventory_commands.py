"""The commands ``ls``, ``search`` and ``show``: what a registry has for its readers."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

from ..console.answers import print_json
from .arguments import add_json
from .parser import examples

if TYPE_CHECKING:
    from ..console.listing import Form

_FILTERS = {
    "--model": ("HASH", "the beginning of a model hash"),
    "--gpu": ("NAME", "a part of the GPU's name, or of the CPU's instruction set: H200, avx512"),
    "--torch": ("VERSION", "a version, or its beginning, such as 2.11"),
    "--dtype": ("DTYPE", "of an input, such as bfloat16"),
    "--shape": ("SHAPE", "of an input, such as 8x128"),
    "--target": ("TARGET", "a part of the target"),
}
"""Options of ``search`` that take one text, each with its metavar and help."""

_ENTRY = re.compile(r"(sha256:)?[0-9a-fA-F]{4,64}")
"""What ``show`` takes for the beginning of an entry's digest."""


def add_ls(commands: Any) -> None:
    """Add the command to the parser of all commands."""
    ls = commands.add_parser(
        "ls",
        help="list names with their tags; of one name, its entries",
        epilog=examples("%(prog)s", "%(prog)s team", "%(prog)s 'team/be*'", "%(prog)s team/bert"),
    )
    _add_where(ls)
    _add_form(ls)
    ls.set_defaults(command=_ls)


def _ls(arguments: argparse.Namespace) -> int:
    from ..config import Config
    from ..console.columns import ENTRY_COLUMNS, NAME_COLUMNS
    from ..console.listing import print_listing
    from ..queries.matching import entries_in, names_in
    from ..queries.transfer import registry_of

    where, form = arguments.where, _form(arguments)
    with registry_of(Config.read()) as registry:
        names = [] if ":" in (where or "") else names_in(registry, where)
        found = [f"{row.namespace}/{row.name}" for row in names]
        if where and (not found or found == [where]):  # no name, such as one with a tag; or exactly this one
            print_listing("ls entries", entries_in(registry, where), ENTRY_COLUMNS, form)
        else:
            print_listing("ls", names, NAME_COLUMNS, form)
    return 0


def add_search(commands: Any) -> None:
    """Add the command to the parser of all commands."""
    search = commands.add_parser(
        "search",
        help="find entries by name, model, device, torch, inputs or target, the newest first",
        epilog=examples("%(prog)s bert --gpu H200 --torch 2.11", "%(prog)s --dtype bfloat16 --shape 8x128"),
    )
    _add_where(search)
    for option, (metavar, about) in _FILTERS.items():
        names = (option, "--device") if option == "--gpu" else (option,)
        search.add_argument(*names, metavar=metavar, help=about)
    search.add_argument("--lane", action="append", metavar="LANE", help="only this lane; may be repeated")
    search.add_argument("--trunk", action="store_true", help="only the trunk (and the lanes that are named)")
    search.add_argument("--limit", type=_limit_argument, metavar="ROWS", help="rows, at most; without: all")
    _add_form(search)
    search.set_defaults(command=_search)


def _search(arguments: argparse.Namespace) -> int:
    from ..config import Config
    from ..console.columns import ENTRY_COLUMNS
    from ..console.listing import print_listing
    from ..queries.matching import entries_in
    from ..queries.transfer import registry_of

    facts = {option[2:]: getattr(arguments, option[2:]) for option in _FILTERS}
    facts |= {"lane": arguments.lane, "trunk": arguments.trunk}
    with registry_of(Config.read()) as registry:
        rows = entries_in(registry, arguments.where, arguments.limit, **facts)
    print_listing("search", rows, ENTRY_COLUMNS, _form(arguments), "none that has all these facts")
    return 0


def add_show(commands: Any) -> None:
    """Add the command to the parser of all commands."""
    show = commands.add_parser(
        "show",
        help="show a name or an entry: what it is for, its starts, its revisions",
        epilog=examples("%(prog)s team/bert", "%(prog)s team/bert:prod", "%(prog)s 3f2a9c01"),
    )
    show.add_argument(
        "what", metavar="NAME|ENTRY", help="namespace/name[:tag], or the beginning of an entry's digest"
    )
    add_json(show)
    show.set_defaults(command=_show)


def _show(arguments: argparse.Namespace) -> int:
    from ..config import Config
    from ..queries.inventory import print_entry, print_name, read_entry, read_name
    from ..queries.transfer import registry_of

    with registry_of(Config.read()) as registry:
        if _ENTRY.fullmatch(arguments.what):
            entry = read_entry(registry, arguments.what)
            print_json("show entry", entry) if arguments.json else print_entry(entry)
            return 0
        name = read_name(registry, arguments.what)
        print_json("show", name) if arguments.json else print_name(name)
    return 0


def _limit_argument(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: a number of rows, 1 or more")
    return int(text)


def _add_where(parser: argparse.ArgumentParser) -> None:
    """Add the argument that says which names."""
    parser.add_argument(
        "where",
        nargs="?",
        metavar="NAME",
        help="a namespace, namespace/name[:tag], a part of a name, or a pattern; without: all",
    )


def _add_form(parser: argparse.ArgumentParser) -> None:
    """Add the options of a listing's form."""
    parser.add_argument(
        "-o",
        "--output",
        choices=("table", "wide", "json", "csv"),
        default="table",
        help="wide: all columns, on a narrow terminal too; json; csv: times in UTC",
    )
    add_json(parser)


def _form(arguments: argparse.Namespace) -> Form:
    form: Form = "json" if arguments.json else arguments.output
    return form
