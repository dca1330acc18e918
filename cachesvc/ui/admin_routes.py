"""Pages for administrators: usage, tokens, signers, quarantine, and the audit log."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Response

from cachesvc.domain.access import Action, demand
from cachesvc.registry import audit, claims, inventory
from cachesvc.registry.access import tokens
from cachesvc.registry.trust import signers

from . import paging, session
from .page import SessionRoute, TheViewer
from .read_routes import Cursor, Text

router = APIRouter(prefix=session.HOME, route_class=SessionRoute, include_in_schema=False)

RANKED = 20
"""Entries of each ranking."""
CLAIMS = 200
"""Claims of the page, at most."""
REFRESH_SECONDS = 5
"""Seconds after which the page of claims asks for itself again."""
Order = Literal["heaviest", "dearest", "coldest"]
RANKINGS: dict[Order, str] = {
    "heaviest": "Largest, with all revisions",
    "dearest": "Saved most seconds",
    "coldest": "Unused for the longest time",
}
"""The rankings of the page, in its order."""
Begin = Annotated[paging.Number, paging.FROM]


@router.get("/usage")
def get_usage(viewer: TheViewer, by: Order = "heaviest") -> Response:
    """Shows which entries hold most, saved most, or were not used for the longest time. One order at a time:
    each sums up all revisions, or all reports."""
    rows = inventory.ranking(viewer.registry, viewer.token, by, RANKED)
    return viewer.page("usage.html", rankings=RANKINGS, by=by, rows=rows)


@router.get("/claims")
def get_claims(viewer: TheViewer, paused: bool = False) -> Response:
    """Shows who compiles now. The page asks for itself again every few seconds, unless it is paused."""
    rows = claims.list_live(viewer.registry, viewer.token, CLAIMS + 1)
    answer = viewer.page(
        "claims.html", rows=rows[:CLAIMS], more=len(rows) > CLAIMS, paused=paused, every=REFRESH_SECONDS
    )
    if not paused:
        # In the header and not in the page, so that no script is needed and the policy stays as it is.
        answer.headers["Refresh"] = str(REFRESH_SECONDS)
    return answer


@router.get("/tokens")
def get_tokens(viewer: TheViewer, revoked: bool = False, begin: Begin = 0) -> Response:
    """Lists the tokens of the administrator's namespace."""
    rows = tokens.list_tokens(viewer.registry, viewer.token, revoked=revoked)[::-1]
    part = paging.part(viewer.request, rows, begin)
    return viewer.page("tokens.html", total=len(rows), revoked=revoked, **part._asdict())


@router.get("/signers")
def get_signers(viewer: TheViewer, begin: Begin = 0, gone: paging.Number = 0) -> Response:
    """Lists the keys whose signatures count, and those that were revoked."""
    demand(viewer.token, Action.admin, viewer.token.namespace)
    rows = signers.list_signers(viewer.registry, viewer.token)
    revoked = signers.list_revoked(viewer.registry, viewer.token)
    revoked.sort(key=lambda row: (-row.revoked, row.key))
    part = paging.part(viewer.request, rows, begin)
    revoked_part = paging.part(viewer.request, revoked, gone, "gone")
    return viewer.page(
        "signers.html",
        **part._asdict(),
        revoked=revoked_part.rows,
        revoked_first=revoked_part.first,
        revoked_next=revoked_part.next,
    )


@router.get("/quarantine")
def get_quarantine(viewer: TheViewer, begin: Begin = 0) -> Response:
    """Lists what is not offered, to anybody or to some environments."""
    rows = inventory.list_withheld(viewer.registry, viewer.token)
    return viewer.page("quarantine.html", **paging.part(viewer.request, rows, begin)._asdict())


@router.get("/audit")
def get_audit(viewer: TheViewer, action: Text = "", subject: Text = "", cursor: Cursor = None) -> Response:
    """Lists what operators did, newest first."""
    page = audit.audit_page(
        viewer.registry, viewer.token, cursor, paging.ROWS, action.strip() or None, subject.strip() or None
    )
    links = paging.cursor_addresses(viewer.request, cursor, page.next)
    return viewer.page("audit.html", page=page, action=action.strip(), subject=subject.strip(), **links)
