"""What a registry's requests and transfers are measured against: FastAPI and nothing else, run by the very
code that runs the registry."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse

from cachesvc.cli.server import listening, run, url_of  # the same server program, with the same options
from cachesvc.settings import Settings

FOLDER = Path(sys.argv[1])
app = FastAPI()


@app.get("/")
async def answer() -> dict[str, str]:
    """As small as an endpoint can be."""
    return {"status": "ok"}


@app.get("/files/{name}")
async def get_file(name: str) -> FileResponse:
    """A plain download."""
    return FileResponse(FOLDER / name)


@app.put("/files/{name}")
async def put_file(name: str, request: Request) -> None:
    """A plain upload: written as it comes, on disk when it is answered."""
    with open(FOLDER / name, "wb") as file:
        async for chunk in request.stream():
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())


if __name__ == "__main__":
    with listening("127.0.0.1", 0) as listener:
        url = url_of(listener, "http")
        run(
            app,
            listener,
            lambda: (FOLDER / "ready.json").write_text(json.dumps({"url": url})),
            ending=lambda: None,
            settings=Settings(data=FOLDER, shutdown_seconds=1),
            certificate=None,
        )
