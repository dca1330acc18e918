"""The page that explains what an environment gets under a name, and that environment's facts as a file."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from cachesvc.registry import environments
from cachesvc_client.queries.explain import EntryVerdict, is_use_here
from cachesvc_client.wire import codec
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Lane, Name, Namespace, ShortName
from cachesvc_client.wire.requests.reports import STATES

from . import paging, session
from .explanation import EnvironmentExplained, explain, facts_of_environment
from .page import HEADERS, SessionRoute, TheViewer
from .read_routes import OneTag, chosen_tag

router = APIRouter(prefix=session.HOME, route_class=SessionRoute, include_in_schema=False)

OneDigest = Annotated[Digest | None, Query()]
OneLane = Annotated[Lane | None, Query()]


@router.get("/explain/{namespace}/{name:path}")
def get_explain(
    viewer: TheViewer,
    namespace: Namespace,
    name: ShortName,
    tag: OneTag = None,
    lane: OneLane = None,
    environment: OneDigest = None,
    entry: OneDigest = None,
    begin: Annotated[paging.Number, paging.FROM] = 0,
) -> Response:
    """Explains what an environment gets under a name; without one, lists those that reported starts."""
    tags, chosen = chosen_tag(viewer, namespace, name, tag)
    place = Name(namespace, name, chosen)
    lane = lane or viewer.token.lane
    shared = {"namespace": namespace, "name": name, "tags": tags, "tag": chosen, "lane": lane, "place": place}
    if environment is None:
        rows = environments.list_environments(viewer.registry, viewer.token, place, lane)
        listed = paging.part(viewer.request, rows, begin)
        return viewer.page("environments.html", states=STATES, **listed._asdict(), **shared)
    explained = explain(viewer, place, lane, environment, entry)
    part = paging.part(viewer.request, explained.explanation.entries, begin)
    return viewer.page(
        "explain.html",
        environment=environment,
        here=explained.explanation.here,
        fitting=explained.explanation.fitting,
        total=len(explained.explanation.entries),
        uses=_uses_here(explained),
        shown=explained.shown,
        fixes=_fixes(explained.shown),
        states=STATES,
        **part._asdict(),
        **shared,
    )


@router.get("/environments/{namespace}/{name:path}")
def get_environment(
    viewer: TheViewer,
    namespace: Namespace,
    name: ShortName,
    environment: Annotated[Digest, Query()],
    tag: OneTag = None,
    lane: OneLane = None,
) -> Response:
    """Returns the facts of an environment as a file, for ``cachesvc explain --here``."""
    _, chosen = chosen_tag(viewer, namespace, name, tag)
    place = Name(namespace, name, chosen)
    facts = facts_of_environment(viewer, place, lane or viewer.token.lane, environment)
    kept = {"Cache-Control": "no-store", "Content-Disposition": 'attachment; filename="here.json"'}
    return Response(codec.canonical(facts), media_type="application/json", headers={**HEADERS, **kept})


def _uses_here(explained: EnvironmentExplained) -> list[tuple[EntryVerdict, object]]:
    """Returns each entry with the starts of this environment that services reported."""
    here = explained.explanation.here
    return [
        (judged, use)
        for judged in explained.explanation.entries
        for use in judged.entry.usefulness
        if is_use_here(here, judged.entry, use)
    ]


def _fixes(shown: EntryVerdict | None) -> list[tuple[str, str]]:
    if shown is None:
        return []
    return [(one.factor, one.fix) for one in (*shown.differences, *shown.recorded) if one.fix]
