"""Routes that need no token: they say nothing about what the registry holds."""

from __future__ import annotations

import json

from anyio import to_thread
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import PlainTextResponse, RedirectResponse

import cachesvc
from cachesvc.door.route import DoorRoute
from cachesvc_client.wire.requests.protocol import API_VERSION, InfoAnswer

from ..edge import Json
from ..metrics import CONTENT_TYPE
from ..openapi import Health, Home, Readiness, errors

WEB_PAGE = "/ui"
"""Path of the web page, where there is one."""

router = APIRouter(tags=["service"], route_class=DoorRoute, responses=errors())


@router.get("/", response_model=Home, responses={303: {"description": "A browser is sent to the web page."}})
async def get_home(request: Request) -> Response:
    """Says what answers here and where to go on; a browser is sent to the web page, if there is one."""
    web_page = WEB_PAGE if request.app.state.web_page else None
    if web_page and "text/html" in request.headers.get("accept", ""):
        return RedirectResponse(web_page, 303, {"Vary": "Accept"})
    answer = Json(Home("cachesvc", cachesvc.__version__, API_VERSION, "/openapi.json", "/healthz", web_page))
    answer.headers["Vary"] = "Accept"
    return answer


@router.get("/openapi.json", include_in_schema=False)
async def get_openapi(request: Request) -> Json:
    """Return the description of all routes. It is made once: anybody may ask for it, and it has 180 kB."""
    state = request.app.state
    async with state.describing:
        if not state.description:
            state.description = await to_thread.run_sync(_describe, request.app)
    return Json(state.description)


def _describe(app: FastAPI) -> bytes:
    return json.dumps(app.openapi(), ensure_ascii=False, separators=(",", ":")).encode()


@router.get("/healthz", response_model=Health)
async def healthz() -> Json:
    """Says that the process answers; `/readyz` is about its backends."""
    return Json(Health("ok"))


@router.get("/readyz", response_model=Readiness, responses={503: {"model": Readiness}})
async def readyz(request: Request) -> Json:
    """Says whether index, blob store and hot store can be used now. Ready needs the first two; with a full
    disk a registry is ready and not `writable`."""
    ready, writable, parts = await request.app.state.probes.ask(None)
    return Json(Readiness(ready, writable, parts), 200 if ready else 503)


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Returns the metrics in Prometheus's text format."""
    return Response(await request.app.state.scrapes.ask(None), media_type=CONTENT_TYPE)


@router.get("/v1/info", response_model=InfoAnswer)
async def info() -> Json:
    """Says that this is a cachesvc registry, and its versions."""
    return Json(InfoAnswer("cachesvc", cachesvc.__version__, API_VERSION))
