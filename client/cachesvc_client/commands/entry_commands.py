"""The commands ``explain`` and ``coverage``: what the entries of a name are worth here and elsewhere."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..console.answers import print_json, without_provenance
from .arguments import add_json, add_tag_fallback, name_argument
from .parser import examples

if TYPE_CHECKING:
    from ..config.settings import Config


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
    from ..config.settings import Config
    from ..console.tables import terminal_width
    from ..publication.as_you_go import with_lane
    from ..queries.explain import explain, read_facts, render
    from ..wire.errors import Incompatible

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
        print(render(explanation, terminal_width()))
        if not arguments.here:
            _print_starts_here(config, explanation.name)
    return 0 if explanation.fitting else Incompatible.exit_status


def _print_starts_here(config: Config, name: str) -> None:
    """Print what this machine's own starts with a name say, in the words of their log: a report to the
    registry says less, since it has no values."""
    from ..node.store import default_root
    from .stats import last_of_name, read_starts

    if lines := last_of_name(read_starts(config.store or default_root()), name):
        print("\nstarts of this machine:\n" + "\n".join(f"  {line}" for line in lines))


def _explain_provenance(config: Config, arguments: argparse.Namespace) -> int:
    from ..queries.provenance import list_provenance, render_provenance
    from ..wire.errors import Untrusted

    fallback = (*arguments.tag_fallback, *config.tag_fallback)
    rows = list_provenance(config, arguments.name, fallback)
    if arguments.json:
        print_json("explain provenance", {"rows": [without_provenance(row) for row in rows]})
    else:
        print(render_provenance(rows))
    return Untrusted.exit_status if any(row.refused for row in rows) else 0


def add_environment(commands: Any) -> None:
    """Add the command to the parser of all commands."""
    environment = commands.add_parser(
        "environment",
        help="print the facts of this environment that decide what fits, for coverage elsewhere",
        epilog=examples(
            "%(prog)s > here.json",
            "%(prog)s --label bert@sha256:… > image.json",
        ),
    )
    environment.add_argument("--label", default="", help="what coverage calls it, such as the image's digest")
    add_json(environment)
    environment.set_defaults(command=_environment)


def _environment(arguments: argparse.Namespace) -> int:
    from ..environment.detect import detect
    from ..wire.errors import InvalidRequest

    if len(arguments.label) > 200 or not arguments.label.isprintable():
        raise InvalidRequest("--label: at most 200 printable characters")
    print_json("environment", {"label": arguments.label, "fingerprint": detect()})
    return 0
