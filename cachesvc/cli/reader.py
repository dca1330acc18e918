"""``cachesvc ls | search | show``: what a registry has for its readers."""

from __future__ import annotations

from typing import Annotated

import typer

from cachesvc.console.columns import ENTRY_COLUMNS, NAME_COLUMNS
from cachesvc.console.output import AsJson, Form, Output, form_of, print_json
from cachesvc_client.console.listing import print_listing
from cachesvc_client.wire.errors import InvalidRequest

from . import app, completion
from .arguments import begins_entry, examples, parse_namespace


def _row_count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise InvalidRequest(f"--limit {text[:40]!r}: a number of rows, 1 or more")
    return int(text)


Where = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME",
        help="A namespace, namespace/name[:tag], a part of a name, or a pattern; without: all.",
        autocompletion=completion.names,
    ),
]


@app.command(
    epilog=examples("cachesvc ls", "cachesvc ls team", "cachesvc ls 'team/be*'", "cachesvc ls team/bert")
)
def ls(where: Where = None, output: Output = Form.table, as_json: AsJson = False) -> None:
    """List names with their tags; of one name, its entries."""
    from cachesvc.queries.matching import entries_in, names_in
    from cachesvc_client.config.settings import Config
    from cachesvc_client.queries.pull import registry_of

    form = form_of(output, as_json)
    with registry_of(Config.read()) as registry:
        names = [] if ":" in (where or "") else names_in(registry, where)
        found = [f"{row.namespace}/{row.name}" for row in names]
        if where and (not found or found == [where]):  # no name, such as one with a tag; or exactly this one
            print_listing("ls entries", entries_in(registry, where), ENTRY_COLUMNS, form)
        else:
            print_listing("ls", names, NAME_COLUMNS, form)


@app.command(
    epilog=examples(
        "cachesvc search bert --gpu H200 --torch 2.11", "cachesvc search --dtype bfloat16 --shape 8x128"
    )
)
def search(
    where: Where = None,
    model: Annotated[str | None, typer.Option(metavar="HASH", help="The beginning of a model hash.")] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu",
            "--device",
            metavar="NAME",
            help="A part of the GPU's name, or of the CPU's instruction set: H200, avx512.",
        ),
    ] = None,
    torch: Annotated[
        str | None, typer.Option(metavar="VERSION", help="A version, or its beginning, such as 2.11.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(metavar="DTYPE", help="Of an input, such as bfloat16.")] = None,
    shape: Annotated[str | None, typer.Option(metavar="SHAPE", help="Of an input, such as 8x128.")] = None,
    target: Annotated[str | None, typer.Option(metavar="TARGET", help="A part of the target.")] = None,
    lane: Annotated[
        list[str] | None, typer.Option(metavar="LANE", help="Only this lane; may be repeated.")
    ] = None,
    trunk: Annotated[
        bool, typer.Option("--trunk", help="Only the trunk (and the lanes that are named).")
    ] = False,
    limit: Annotated[
        int | None, typer.Option(parser=_row_count, metavar="ROWS", help="Rows, at most; without: all.")
    ] = None,
    output: Output = Form.table,
    as_json: AsJson = False,
) -> None:
    """Find entries by name, model, device, torch, inputs or target, the newest first."""
    from cachesvc.queries.matching import entries_in
    from cachesvc_client.config.settings import Config
    from cachesvc_client.queries.pull import registry_of

    facts = {"model": model, "gpu": gpu, "torch": torch, "dtype": dtype, "shape": shape, "target": target}
    with registry_of(Config.read()) as registry:
        rows = entries_in(registry, where, limit, **facts, lane=lane, trunk=trunk)
    form = form_of(output, as_json)
    print_listing("search", rows, ENTRY_COLUMNS, form, "none that has all these facts")


@app.command(epilog=examples("cachesvc misses", "cachesvc misses team --days 7"))
def misses(
    namespace: Annotated[
        str | None,
        typer.Argument(help="Only of this namespace.", autocompletion=completion.namespaces),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=90, help="Of the starts of the last days.")] = 30,
    output: Output = Form.table,
    as_json: AsJson = False,
) -> None:
    """List the starts that compiled and would again: why, what they cost, and what to do."""
    from cachesvc.console.columns import MISS_COLUMNS
    from cachesvc.queries.matching import check_namespace
    from cachesvc.queries.registry_calls import path_with_query
    from cachesvc.schema.wanted import MissesAnswer
    from cachesvc_client.config.settings import Config
    from cachesvc_client.queries.pull import registry_of

    where = None if namespace is None else parse_namespace(namespace)
    with registry_of(Config.read()) as registry:
        if where is not None:
            check_namespace(registry, where)
        path = path_with_query("/v1/misses", namespace=where, days=days)
        answer = registry.call("GET", path, None, MissesAnswer)
    form = form_of(output, as_json)
    print_listing(
        "misses", answer.rows, MISS_COLUMNS, form, f"no start of the last {days} days would compile again"
    )
    if answer.more and form == "table":
        typer.echo(f"{answer.more} more are not shown", err=True)


@app.command(
    epilog=examples("cachesvc show team/bert", "cachesvc show team/bert:prod", "cachesvc show 3f2a9c01")
)
def show(
    what: Annotated[
        str,
        typer.Argument(
            metavar="NAME|ENTRY",
            help="namespace/name[:tag], or the beginning of an entry's digest.",
            autocompletion=completion.names,
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Show a name or an entry: what it is for, its starts, its revisions."""
    from cachesvc.queries.inventory import print_entry, print_name, read_entry, read_name
    from cachesvc_client.config.settings import Config
    from cachesvc_client.queries.pull import registry_of

    with registry_of(Config.read()) as registry:
        if begins_entry(what):
            entry = read_entry(registry, what)
            print_json(entry, "entry") if as_json else print_entry(entry)
            return
        name = read_name(registry, what)
        print_json(name) if as_json else print_name(name)
