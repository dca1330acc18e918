"""``cachesvc coverage``: which targets are warm in which environments, and would be in planned ones."""

from __future__ import annotations

from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cachesvc.console.output import AsJson, print_json
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import NotWarm
from cachesvc_client.wire.names import Tag

from . import app, completion
from .arguments import examples, parse_name, parse_option

if TYPE_CHECKING:
    from cachesvc.queries.coverage import Coverage


class Allowed(str, Enum):
    """A state that a gate may let pass."""

    stale = "stale"
    unknown = "unknown"


@app.command(
    epilog=examples(
        "cachesvc coverage team/bert --environment new.json",
        "cachesvc coverage team/bert --gate --torch 2.15.0",
        "cachesvc coverage team/bert --gate --environment image.json",
    )
)
def coverage(
    name: Annotated[str, typer.Argument(help="namespace/name[:tag]", autocompletion=completion.names)],
    tag_fallback: Annotated[
        list[str] | None,
        typer.Option(metavar="TAG", help="A tag to try after the name's own; may be repeated."),
    ] = None,
    environment: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Also this environment: what cachesvc-client environment printed there; may be repeated.",
        ),
    ] = None,
    here: Annotated[bool, typer.Option("--here", help="Also the environment of this process.")] = False,
    like: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SEEN",
            help="Also one that the registry has seen: the begin of its digest, or a part of its GPU's name.",
        ),
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|SEEN",
            help="Put each --environment and --here on the machine of this one: its GPU and its CPU.",
        ),
    ] = None,
    torch: Annotated[
        str | None, typer.Option(metavar="VERSION", help="With this torch, such as 2.15.0.")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="With this GPU, such as 'NVIDIA H200'.")
    ] = None,
    changed: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FACTOR=VALUE", help="With this fact (docs/keys.md); may be repeated."),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(metavar="TARGET", help="Only this target, or those below it; may be repeated."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="HASH",
            help="The model that will start, as reports and warm name it; other models' entries are unknown.",
        ),
    ] = None,
    gate: Annotated[
        bool,
        typer.Option(
            "--gate",
            help="Judge the planned environments only: by default all that were seen, with the changes.",
        ),
    ] = False,
    allow: Annotated[
        list[Allowed] | None,
        typer.Option(help="A state that is as good as warm for the exit status; may be repeated."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show which targets of a name are warm in which environments, and would be in planned ones."""
    from cachesvc.queries.coverage import cover
    from cachesvc.queries.planned import Plan, PlannedEnvironment, parse_change, read_environment
    from cachesvc_client.config.settings import Config
    from cachesvc_client.environment.detect import detect
    from cachesvc_client.queries.explain import environment_facts

    config = Config.read()
    changes = dict(map(parse_change, changed or ()))
    changes |= {fact: value for fact, value in (("torch", torch), ("gpu", gpu)) if value}
    given = [read_environment(path) for path in environment or ()]
    if here:
        given.append(PlannedEnvironment(environment_facts(detect()), "this machine"))
    plan = Plan(
        given=tuple(given),
        like=tuple(like or ()),
        # Without an environment, a gate or a change is about all seen ones.
        of_all=not (given or like) and (gate or bool(changes)),
        machine=machine,
        changes=changes,
        targets=tuple(target or ()),
        model=parse_option(lambda: Digest(model), "--model") if model else None,
    )
    fallback = parse_option(lambda: tuple(map(Tag, tag_fallback or ())), "--tag-fallback")
    covered = cover(
        config,
        parse_name(name),
        fallback=(*fallback, *config.tag_fallback),
        plan=plan,
        gate=gate,
        allowed=tuple(one.value for one in allow or ()),
    )
    if as_json:
        rest = {field.name: getattr(covered, field.name) for field in fields(covered)}
        print_json({"passed": covered.passed, **rest})
    else:
        print(_text(covered))
    raise typer.Exit(0 if covered.passed else NotWarm.exit_status)


def _text(coverage: Coverage) -> str:
    """Return the text for a terminal: the grid, and a line for each cell that is not warm."""
    from cachesvc_client.console.tables import aligned, environment_label

    cells = coverage.cells
    warm = sum(cell.state == "warm" for cell in cells)
    labels = any(row.label for row in coverage.environments)
    starts = any(row.starts for row in coverage.environments)
    head = ("torch", "device", "python", *coverage.targets, *(["starts"] if starts else []))
    grid = [
        (
            *environment_label(row.facts),
            *(cell.state for cell in row.cells),
            *([str(row.starts or "")] if starts else []),
            *([row.label] if labels else []),
        )
        for row in coverage.environments
    ]
    planned = " in the planned environments" if coverage.gate else ""
    parts = [f"{coverage.name}: {warm} of {len(cells)} are warm{planned}"]
    parts.append(aligned([(*head, *(["planned"] if labels else [])), *grid], "  "))
    reasons = [
        (f"{cell.target} is {cell.state} on {', '.join(environment_label(row.facts)[:2])}", cell.why)
        for row in coverage.environments
        for cell in row.cells
        if cell.state != "warm"
    ]
    if reasons:
        parts.append("\nnot warm:\n" + aligned(reasons, "  "))
    traced = dict.fromkeys(cell.target for cell in cells if cell.state == "warm" and cell.traced)
    if traced:
        parts.append(f"\nhits will trace, as nothing was recorded: {', '.join(traced)}")
    names = dict.fromkeys(name for cell in cells for name in cell.assumed)
    if names:
        parts.append(f"\nnot known before a start, and taken to be the entry's: {', '.join(names)}")
    return "\n".join(parts)
