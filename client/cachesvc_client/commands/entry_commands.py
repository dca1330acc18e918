"""The commands ``explain`` and ``coverage``: what the entries of a name are worth here and elsewhere."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .arguments import add_json, add_tag_fallback, name_argument, print_json, without_provenance
from .parser import examples

if TYPE_CHECKING:
    from ..config import Config


def add_explain(commands: Any) -> None:
    """Add the command to the parser of all commands."""
    explain = commands.add_parser(
        "explain",
        help="which entries fit here, and what differs from the others",
        epilog=examples(
            "%(prog)s team/bert",
            "%(prog)s team/bert --target encoder --here other.json",
        ),
    )
    explain.add_argument("name", type=name_argument, help="namespace/name[:tag]")
    add_tag_fallback(explain)
    explain.add_argument("--target", help="one target, or a beginning of it such as bert")
    explain.add_argument(
        "--here",
        type=Path,
        metavar="FILE",
        help="another environment: what doctor --json printed there, or a report",
    )
    explain.add_argument(
        "--provenance", action="store_true", help="instead: who built each revision, from what and when"
    )
    add_json(explain)
    explain.set_defaults(command=_explain)


def _explain(arguments: argparse.Namespace) -> int:
    from ..config import Config
    from ..publication.as_you_go import with_lane
    from ..wire.errors import Incompatible
    from .explain import explain, read_facts, render

    config = with_lane(Config.read())
    if arguments.provenance:
        return _explain_provenance(config, arguments)
    explanation = explain(
        config,
        arguments.name,
        fallback=(*arguments.tag_fallback, *config.tag_fallback),
        target=arguments.target,
        here=read_facts(arguments.here) if arguments.here else None,
    )
    if arguments.json:
        print_json("explain", explanation)
    else:
        print(render(explanation))
    return 0 if explanation.fitting else Incompatible.exit_status


def _explain_provenance(config: Config, arguments: argparse.Namespace) -> int:
    from ..wire.errors import Untrusted
    from .provenance import list_provenance, render_provenance

    fallback = (*arguments.tag_fallback, *config.tag_fallback)
    rows = list_provenance(config, arguments.name, fallback)
    if arguments.json:
        print_json("explain provenance", {"rows": [without_provenance(row) for row in rows]})
    else:
        print(render_provenance(rows))
    return Untrusted.exit_status if any(row.refused for row in rows) else 0


def add_coverage(commands: Any) -> None:
    """Add the command to the parser of all commands."""
    coverage = commands.add_parser(
        "coverage",
        help="which targets of a name are warm in which environments",
        epilog=examples("%(prog)s team/bert --environment new.json"),
    )
    coverage.add_argument("name", type=name_argument, help="namespace/name[:tag]")
    add_tag_fallback(coverage)
    coverage.add_argument(
        "--environment",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="also this environment: what doctor --json printed there; may be repeated",
    )
    add_json(coverage)
    coverage.set_defaults(command=_coverage)


def _coverage(arguments: argparse.Namespace) -> int:
    from ..config import Config
    from ..wire.errors import NotWarm
    from .coverage import cover, render
    from .explain import read_facts

    config = Config.read()
    others = [read_facts(path) for path in arguments.environment]
    fallback = (*arguments.tag_fallback, *config.tag_fallback)
    coverage = cover(config, arguments.name, fallback=fallback, others=others)
    if arguments.json:
        print_json("coverage", coverage)
    else:
        print(render(coverage))
    return 0 if all(cell.state == "warm" for cell in coverage.cells) else NotWarm.exit_status
