"""The commands ``explain`` and ``coverage``: what the entries of a name are worth here and elsewhere."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..console.answers import print_json, without_provenance
from .arguments import add_json, add_tag_fallback, name_argument
from .parser import examples

if TYPE_CHECKING:
    from ..config import Config
    from ..queries.planned import Plan


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
    return 0 if explanation.fitting else Incompatible.exit_status


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


def add_coverage(commands: Any) -> None:
    """Add the command to the parser of all commands."""
    coverage = commands.add_parser(
        "coverage",
        help="which targets of a name are warm in which environments, and would be in planned ones",
        epilog=examples(
            "%(prog)s team/bert --environment new.json",
            "%(prog)s team/bert --gate --torch 2.15.0",
            "%(prog)s team/bert --gate --environment image.json",
        ),
    )
    coverage.add_argument("name", type=name_argument, help="namespace/name[:tag]")
    add_tag_fallback(coverage)
    _add_plan(coverage)
    coverage.add_argument(
        "--gate",
        action="store_true",
        help="judge the planned environments only: by default all that were seen, with the changes",
    )
    coverage.add_argument(
        "--allow",
        action="append",
        default=[],
        choices=("stale", "unknown"),
        help="a state that is as good as warm for the exit status; may be repeated",
    )
    add_json(coverage)
    coverage.set_defaults(command=_coverage)


def _add_plan(coverage: argparse.ArgumentParser) -> None:
    """Add the options that say what is planned."""
    coverage.add_argument(
        "--environment",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="also this environment: what the command environment printed there; may be repeated",
    )
    coverage.add_argument("--here", action="store_true", help="also the environment of this process")
    coverage.add_argument(
        "--like",
        action="append",
        default=[],
        metavar="SEEN",
        help="also one that the registry has seen: the begin of its digest, or a part of its GPU's name",
    )
    coverage.add_argument(
        "--machine",
        metavar="FILE|SEEN",
        help="put each --environment and --here on the machine of this one: its GPU and its CPU",
    )
    coverage.add_argument("--torch", metavar="VERSION", help="with this torch, such as 2.15.0")
    coverage.add_argument("--gpu", metavar="NAME", help="with this GPU, such as 'NVIDIA H200'")
    coverage.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FACTOR=VALUE",
        help="with this fact (docs/keys.md); may be repeated",
    )
    coverage.add_argument(
        "--target", action="append", default=[], help="only this target, or those below it; may be repeated"
    )


def _coverage(arguments: argparse.Namespace) -> int:
    from dataclasses import fields

    from ..config import Config
    from ..queries.coverage import cover, render
    from ..wire.errors import NotWarm

    config = Config.read()
    coverage = cover(
        config,
        arguments.name,
        fallback=(*arguments.tag_fallback, *config.tag_fallback),
        plan=_plan(arguments),
        gate=arguments.gate,
        allowed=tuple(arguments.allow),
    )
    if arguments.json:
        print_json(
            "coverage",
            {
                "passed": coverage.passed,
                **{field.name: getattr(coverage, field.name) for field in fields(coverage)},
            },
        )
    else:
        print(render(coverage))
    return 0 if coverage.passed else NotWarm.exit_status


def _plan(arguments: argparse.Namespace) -> Plan:
    """Return what the options say. Without an environment, a gate or a change is about all seen ones."""
    from ..environment.detect import detect
    from ..queries.explain import environment_facts
    from ..queries.planned import Plan, PlannedEnvironment, parse_change, read_environment

    changes = dict(parse_change(text) for text in arguments.set)
    changes |= {name: getattr(arguments, name) for name in ("torch", "gpu") if getattr(arguments, name)}
    given = [read_environment(path) for path in arguments.environment]
    if arguments.here:
        given.append(PlannedEnvironment(environment_facts(detect()), "this machine"))
    return Plan(
        given=tuple(given),
        like=tuple(arguments.like),
        of_all=not (given or arguments.like) and (arguments.gate or bool(changes)),
        machine=arguments.machine,
        changes=changes,
        targets=tuple(arguments.target),
    )


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
