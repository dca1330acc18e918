"""Pages for everybody who may read: names, their entries, an entry, coverage; and the overview."""

from __future__ import annotations

import shlex
from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import RedirectResponse

from cachesvc.domain.access import Role
from cachesvc.domain.days import sum_of_starts
from cachesvc.domain.retention import DAY
from cachesvc.index.entries.search import Search
from cachesvc.registry import environments, inventory, misses, names, reports, wanted
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import NotFound
from cachesvc_client.wire.factors import Facts
from cachesvc_client.wire.names import LATEST, Name, Namespace, ShortName, Tag
from cachesvc_client.wire.requests.reports import STATES

from . import paging, session
from .coverage_grid import cover
from .entry_page import entry_context
from .page import HEADERS, SessionRoute, TheViewer, Viewer
from .plots import plots_of

COLD = 50
"""Rows of what went cold, at most."""
ENVIRONMENTS = 20
"""Rows of a page of the coverage grid: each takes a look at all entries of the name."""
STARTED = 12
"""Environments of which the page of a name shows the starts."""
MISSED = 20
"""Names whose misses are shown, at most: each needs some reads. The command has more."""
REASONS = 100
"""Cells of a page of the coverage grid whose reasons are shown, at most."""

PLOTTED_DAYS = 30
"""Days of a plot, today among them."""

router = APIRouter(prefix=session.HOME, route_class=SessionRoute, include_in_schema=False)

Text = Annotated[str, Query(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
Cursor = Annotated[str | None, Query(max_length=1300, pattern=r"^[^\x00-\x1f\x7f]*$")]
OneTag = Annotated[Tag | None, Query()]


@router.get("")
def get_overview(viewer: TheViewer) -> Response:
    """Shows what an administrator's namespace holds, its starts of some days, and what went cold today."""
    if viewer.token.role is not Role.admin:
        return RedirectResponse(f"{session.HOME}/names", 303, HEADERS)
    totals, named = inventory.totals(viewer.registry, viewer.token)
    days = inventory.starts_by_day(viewer.registry, viewer.token, PLOTTED_DAYS)
    midnight = viewer.registry.now // DAY * DAY
    withheld = inventory.list_withheld(viewer.registry, viewer.token)
    by_operators = [row for row in withheld if row.since >= midnight and row.environment is None]
    return viewer.page(
        "overview.html",
        totals=totals,
        named=named,
        sums=sum_of_starts(days),
        days=PLOTTED_DAYS,
        cold=reports.inert_since(viewer.registry, viewer.token, midnight, COLD),
        withheld_today=len(by_operators),
        plots=plots_of(days),
    )


@router.get("/names")
def get_names(viewer: TheViewer, q: Text = "", cursor: Cursor = None) -> Response:
    """Lists names, of every namespace that the token may read."""
    page = names.find_names(viewer.registry, viewer.token, q.strip(), cursor, paging.ROWS)
    links = paging.cursor_addresses(viewer.request, cursor, page.next)
    return viewer.page("names.html", page=page, text=q.strip(), **links)


@router.get("/misses")
def get_misses(viewer: TheViewer) -> Response:
    """Lists the starts that compiled and would again, of every namespace that the token may read."""
    answer = misses.list_misses(viewer.registry, viewer.token, most=MISSED)
    return viewer.page("misses.html", answer=answer, days=wanted.DAYS)


@router.get("/names/{namespace}/{name:path}")
def get_name(
    viewer: TheViewer, namespace: Namespace, name: ShortName, tag: OneTag = None, cursor: Cursor = None
) -> Response:
    """Lists the tags and the entries of a name, and shows how its starts went."""
    tags = names.list_tags(viewer.registry, viewer.token, namespace, name)
    shown = Name(namespace, name, tag or usual_tag(tags))
    starts = environments.starts_of_name(viewer.registry, viewer.token, shown, viewer.token.lane)
    search = Search(namespace=namespace, name=name, tag=tag)
    page = inventory.search_entries(viewer.registry, viewer.token, search, cursor, paging.ROWS)
    links = paging.cursor_addresses(viewer.request, cursor, page.next)
    return viewer.page(
        "name.html",
        namespace=namespace,
        name=name,
        tags=tags,
        tag=tag,
        coverage_tag=shown.tag,
        page=page,
        starts=starts[:STARTED],
        more_starts=len(starts) - STARTED,
        sums=sum_of_starts(starts),
        states=STATES,
        **links,
    )


@router.get("/entries/{entry}")
def get_entry(
    viewer: TheViewer,
    entry: Digest,
    revision: Annotated[Digest | None, Query()] = None,
    files: paging.Number = 0,
    revisions: paging.Number = 0,
) -> Response:
    """Shows an entry: its head, or another of its revisions."""
    return viewer.page("entry.html", **entry_context(viewer, entry, revision, files, revisions))


@router.get("/revisions/{revision}")
def get_revision(viewer: TheViewer, revision: Digest) -> Response:
    """Leads to the page of a revision's entry."""
    row = inventory.get_revision(viewer.registry, viewer.token, revision)
    shown = "" if row.head else f"?revision={revision}"
    return RedirectResponse(f"{session.HOME}/entries/{row.entry}{shown}", 303, HEADERS)


@router.get("/coverage/{namespace}/{name:path}")
def get_coverage(
    viewer: TheViewer,
    namespace: Namespace,
    name: ShortName,
    tag: OneTag = None,
    torch: Text = "",
    gpu: Text = "",
    begin: Annotated[paging.Number, paging.FROM] = 0,
) -> Response:
    """Shows which targets of a name are warm in which environments; or, with another torch or GPU, in which
    they would be."""
    tags, chosen = chosen_tag(viewer, namespace, name, tag)
    changes: Facts = {what: text for what, text in (("torch", torch.strip()), ("gpu", gpu.strip())) if text}
    coverage, rows = cover(viewer, namespace, name, chosen, begin, ENVIRONMENTS, changes)
    part = paging.part(viewer.request, rows, begin, most=ENVIRONMENTS)
    reasons = [(row, cell) for row in coverage.environments for cell in row.cells if cell.state != "warm"]
    return viewer.page(
        "coverage.html",
        namespace=namespace,
        name=name,
        tags=tags,
        tag=chosen,
        place=Name(namespace, name, chosen),
        coverage=coverage,
        changes=changes,
        command=_command(coverage.name, changes),
        assumed=dict.fromkeys(fact for cell in coverage.cells for fact in cell.assumed),
        total=len(rows),
        warm=sum(cell.state == "warm" for cell in coverage.cells),
        lane=viewer.token.lane,
        reasons=reasons[:REASONS],
        more_reasons=len(reasons) > REASONS,
        first=part.first,
        next=part.next,
    )


def _command(name: str, changes: Facts) -> str:
    """Returns the command that judges the same. Whoever made the address chose the texts: they are quoted."""
    plan = ["--gate", *(f"--{what}={text}" for what, text in changes.items())] if changes else []
    return shlex.join(["cachesvc", "coverage", name, *plan])


def chosen_tag(
    viewer: Viewer, namespace: Namespace, name: ShortName, tag: Tag | None
) -> tuple[list[Tag], Tag]:
    """Returns the tags of a name, and ``tag`` or the usual one. Raises ``NotFound``."""
    tags = names.list_tags(viewer.registry, viewer.token, namespace, name)
    chosen = tag or usual_tag(tags)
    if chosen not in tags:
        raise NotFound(f"{namespace}/{name} has no tag {chosen}", f"it has: {', '.join(tags[:10])}")
    return tags, chosen


def usual_tag(tags: list[Tag]) -> Tag:
    """Returns the tag of a page whose address names none."""
    return LATEST if LATEST in tags else tags[0]
