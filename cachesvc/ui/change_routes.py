"""Pages that change something: each shows what it will do, and does it once its form is sent back."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse

from cachesvc.registry.upkeep import gc
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import InvalidRequest

from . import changes, paging, session
from .changes import Change, RevisionAction, TokenAction
from .page import HEADERS, SessionRoute, TheViewer, Viewer

router = APIRouter(prefix=session.HOME, route_class=SessionRoute, include_in_schema=False)


async def _confirmed(request: Request) -> dict[str, str]:
    """Returns the fields of a form that a page of this session has sent. Raises ``Forbidden``."""
    fields = await session.read_form(request)
    session.demand_form_token(session.session_secret(request), fields)
    return fields


TheForm = Annotated[dict[str, str], Depends(_confirmed)]


@router.get("/change/revisions/{revision}/{action}")
def get_revision_change(viewer: TheViewer, revision: Digest, action: RevisionAction) -> Response:
    """Asks whether an action on a revision is meant."""
    return _ask(viewer, changes.revision_change(viewer.registry, viewer.token, revision, action))


@router.post("/change/revisions/{revision}/{action}")
def post_revision_change(
    viewer: TheViewer, fields: TheForm, revision: Digest, action: RevisionAction
) -> Response:
    """Does an action on a revision."""
    return _leave(changes.change_revision(viewer.registry, viewer.token, revision, action, fields))


@router.get("/change/tokens/{token}/{action}")
def get_token_change(viewer: TheViewer, token: str, action: TokenAction) -> Response:
    """Asks whether an action on a token is meant."""
    return _ask(viewer, changes.token_change(viewer.registry, viewer.token, token, action))


@router.post("/change/tokens/{token}/{action}")
def post_token_change(viewer: TheViewer, fields: TheForm, token: str, action: TokenAction) -> Response:
    """Does an action on a token."""
    return _leave(changes.change_token(viewer.registry, viewer.token, token, action, fields))


@router.get("/collection")
def get_collection(viewer: TheViewer, begin: Annotated[paging.Number, paging.FROM] = 0) -> Response:
    """Shows what a collection would remove now, and why; its form runs one."""
    # One more than the page shows, so that the page knows whether there is a next one.
    plan = gc.plan(viewer.registry, viewer.token, begin + paging.ROWS + 1)
    part = paging.part(viewer.request, plan.removals, begin)
    return viewer.page("collection.html", plan=plan, most=gc.SHOWN, **part._asdict())


@router.post("/collection")
def post_collection(viewer: TheViewer, fields: TheForm) -> Response:
    """Runs retention and collection now."""
    going_cold = gc.plan(viewer.registry, viewer.token, 0).going_cold
    if going_cold and fields.get("cold") != "accepted":
        raise InvalidRequest(
            f"a collection now would make the starts of {going_cold} environments cold",
            "the page names them; its form asks whether that is meant",
        )
    gc.collect(viewer.registry, viewer.token)
    return _leave(changes.done(f"{session.HOME}/collection", "collect"))


def _ask(viewer: Viewer, change: Change) -> Response:
    return viewer.page("change.html", change=change, most=changes.MAX_WHY)


def _leave(address: str) -> RedirectResponse:
    return RedirectResponse(address, 303, {**HEADERS, "Cache-Control": "no-store"})
