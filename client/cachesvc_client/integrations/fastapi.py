"""Connects a FastAPI or Starlette application with cachesvc: a lifespan that restores first and reports last.

>>> app = FastAPI(lifespan=lifespan())                # doctest: +SKIP
>>> app = FastAPI(lifespan=lifespan(own_lifespan))    # doctest: +SKIP

uvicorn ends its processes by a signal, so Python's exit handlers do not run there. The end of the lifespan
does run. The module imports neither FastAPI nor torch.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from .. import send_report

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]
"""What FastAPI and Starlette take as ``lifespan``."""


def lifespan(own: Lifespan | None = None) -> Lifespan:
    """Return a lifespan for ``FastAPI(lifespan=…)``.

    At the start it waits until what is attached is restored, at most CACHESVC_DEADLINE seconds; then ``own``
    starts, if there is one, and may compile. After the end of ``own`` it tells the registry the outcome, and
    that needs a second at most. Both waits leave the event loop free. It attaches nothing, and does nothing
    where nothing is attached. It raises what ``own`` raises and, under CACHESVC_STRICT=1, the
    ``CacheSvcError`` of a restore that failed.

    Args:
        own: The application's own lifespan. Its state reaches the requests as without this function.
    """

    @asynccontextmanager
    async def around(app: Any) -> AsyncIterator[Any]:
        from anyio.to_thread import run_sync  # Starlette depends on anyio

        from ..session.sessions import attached

        await run_sync(attached().wait_for_restore)
        try:
            if own is None:
                yield None
            else:
                async with own(app) as state:
                    yield state
        finally:
            await run_sync(send_report)

    return around
