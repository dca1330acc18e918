"""Owns the command line of ``cachesvc-client``: the commands that a service image needs.

Exit status: 0 done; 1 ``doctor`` found a failure, or an internal error; 2 bad usage or a malformed value;
3 token; 4 nothing there, or nothing fits; 6 registry or disk; 7 a check failed; 8 not usable; 126 and 127
``run`` could not start the command. ``run`` starts its command whatever is wrong with the words before it or
with the configuration, unless it is strict.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from .. import __version__
from ..console.answers import print_json, report_error, with_program
from ..wire.errors import CacheSvcError, InvalidRequest, printable
from . import shells
from .arguments import add_json, add_tag_fallback, lane_argument, name_argument
from .cache import add_cache, add_stats
from .entry_commands import add_environment, add_explain
from .parser import Parser, examples


def main(argv: Sequence[str] | None = None, program: str = "cachesvc-client") -> int:
    """Run one command and return its exit status. A ``CacheSvcError`` becomes one line on stderr.

    ``program``: the name of the program in the usage lines.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if shell := os.environ.get(shells.VARIABLE):
        sys.stdout.write(shells.answer(parser(program), shell, words))
        return 0
    command: list[str] = []
    if words[:1] == ["run"] and "--" in words:  # what follows is another program's, options and all
        command = words[words.index("--") + 1 :]
        words = words[: words.index("--")]
    parsers = parser(program)
    if not words:
        parsers.print_help(sys.stderr)
        return InvalidRequest.exit_status
    try:
        arguments = parsers.parse_args(words)
        arguments.argv = command
        arguments.program = program
        return int(arguments.command(arguments))
    except CacheSvcError as error:
        error.hint = with_program(program, error.hint)
        if command and not _is_strict(words):
            _launch_unattached(command, error)
        report_error(error, words)
        return error.exit_status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def parser(program: str) -> Parser:
    """Return the parser of all commands. ``program``: see `main`."""
    top = Parser(program, description="Start services with compiled code.")
    top.add_argument(
        "--version", action="version", version=f"{program} {__version__}", help="print the version and exit"
    )
    if program == shells.PROGRAM:  # `cachesvc` has both from Typer
        shells.add_completion(top)
    commands = top.add_subparsers(required=True)
    for add in (
        _add_run,
        _add_doctor,
        add_explain,
        add_environment,
        _add_pull,
        add_stats,
        add_cache,
    ):
        add(commands)
    return top


def _add_run(commands: Any) -> None:
    run = commands.add_parser(
        "run",
        help="start a command with every Python process of it attached",
        usage="%(prog)s [OPTIONS] NAME -- COMMAND…",
        epilog=examples(
            "%(prog)s team/bert -- python serve.py",
            "%(prog)s team/bert:prod -v -- uvicorn app:app --workers 2",
        ),
    )
    run.add_argument("name", type=name_argument, help="namespace/name[:tag]")
    add_tag_fallback(run)
    run.add_argument("--lane", type=lane_argument, help="the lane to read, before the trunk")
    run.add_argument(
        "--mode",
        choices=("read", "readwrite", "off"),
        help="readwrite: this process publishes what it compiles, too",
    )
    run.add_argument(
        "--deadline", metavar="SECONDS", help="seconds that the first compile waits for the restore"
    )
    run.add_argument(
        "--strict", action="store_true", help="fail instead of compiling locally or starting unattached"
    )
    run.add_argument(
        "-v",
        "--verbose",
        action="count",
        default=0,
        help="show what was restored and the outcome on stderr, as CACHESVC_LOG=info does; -vv: as debug",
    )
    run.set_defaults(command=_run)


def _is_strict(words: Sequence[str]) -> bool:
    """Return whether the words of ``run`` or the environment ask for a failure instead of a local compile."""
    from ..environment.variables import is_switched_on

    return "--strict" in words or is_switched_on("CACHESVC_STRICT")


def _launch_unattached(command: Sequence[str], error: CacheSvcError) -> NoReturn:
    """Start the command of ``run`` as it would start without cachesvc, and say in one line why."""
    from .launch import execute

    print(printable(f"cachesvc: not attached, the command compiles: {error}"), file=sys.stderr)
    execute(command, {**os.environ, "CACHESVC_MODE": "off"})


def _run(arguments: argparse.Namespace) -> int:
    from ..config import Config
    from .launch import launch

    if not arguments.argv:
        raise InvalidRequest("run: no command", "cachesvc-client run NAME -- python serve.py")
    by_variable = {
        "CACHESVC_NAME": str(arguments.name),
        "CACHESVC_TAG_FALLBACK": ",".join(arguments.tag_fallback),
        "CACHESVC_LANE": arguments.lane or "",
        "CACHESVC_MODE": arguments.mode or "",
        "CACHESVC_DEADLINE": arguments.deadline or "",
        "CACHESVC_STRICT": "1" if arguments.strict else "",
        "CACHESVC_LOG": ("", "info", "debug")[min(arguments.verbose, 2)],
    }
    variables = {name: value for name, value in by_variable.items() if value}
    # This command reports a malformed variable once; else each process of the command would report it.
    Config.read({**os.environ, **variables})
    launch(arguments.argv, variables)


def _add_doctor(commands: Any) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="whether this environment can hit, and how to fix it",
        epilog=examples("%(prog)s team/bert", "%(prog)s --json > here.json"),
    )
    doctor.add_argument(
        "names", nargs="*", type=name_argument, metavar="NAME", help="also whether its entries fit here"
    )
    doctor.add_argument(
        "--hooks",
        action="store_true",
        help="list the names of torch and Triton that are wrapped, and whether they are there",
    )
    add_json(doctor)
    doctor.set_defaults(command=_doctor)


def _doctor(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict, replace

    from ..environment.detect import detect
    from .doctor import diagnose, hook_states, render, render_hooks

    if arguments.hooks:
        states = hook_states()
        if arguments.json:
            print_json(
                "doctor hooks",
                {"rows": [{"presence": state.presence, **asdict(state.hook)} for state in states]},
            )
        else:
            print(render_hooks(states))
        return 0
    checks = [
        replace(check, mend=with_program(arguments.program, check.mend))
        for check in diagnose(tuple(arguments.names))
    ]
    failed = any(check.status == "fail" for check in checks)
    if arguments.json:
        print_json("doctor", {"ok": not failed, "checks": checks, "fingerprint": detect()})
    else:
        print(render(checks))
    return 1 if failed else 0


def _add_pull(commands: Any) -> None:
    pull = commands.add_parser(
        "pull",
        help="write what fits this environment as bundle files",
        epilog=examples(
            "%(prog)s team/bert --into /image/bundles",
            "%(prog)s team/bert --all --into bundles",
        ),
    )
    pull.add_argument("name", type=name_argument, help="namespace/name[:tag]")
    pull.add_argument("--into", type=Path, required=True, metavar="DIR", help="folder for the bundles")
    add_tag_fallback(pull)
    pull.add_argument(
        "--all", action="store_true", help="also what does not fit here: for an image that runs elsewhere"
    )
    add_json(pull)
    pull.set_defaults(command=_pull)


def _pull(arguments: argparse.Namespace) -> int:
    from ..config import Config
    from ..console.tables import aligned, bytes_text, fitting, terminal_width
    from ..queries.pull import pull

    config = Config.read()
    fallback = (*arguments.tag_fallback, *config.tag_fallback)
    bundles = pull(config, arguments.name, arguments.into, fallback=fallback, every=arguments.all)
    if arguments.json:
        print_json("pull", {"rows": bundles})
        return 0
    rows = [
        (row.target, bytes_text(row.bytes), bytes_text(row.moved), row.signer.short, row.path)
        for row in bundles
    ]
    table = [("target", "size", "moved", "signed by", "bundle"), *rows]
    print(aligned(fitting(table, terminal_width(), ("moved", "signed by", "size", "target"))[0]))
    return 0
