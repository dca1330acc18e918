"""Serve the yardstick of a registry's requests and transfers: FastAPI alone, run by the server program of the
registry."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse

# The server program and its options are the registry's.
from cachesvc.cli.serving.server import listening, run, url_of
from cachesvc.settings import Settings

FOLDER = Path(sys.argv[1])
app = FastAPI()


@app.get("/")
async def answer() -> dict[str, str]:
    """Answer with as little as an endpoint can."""
    return {"status": "ok"}


@app.get("/files/{name}")
async def get_file(name: str) -> FileResponse:
    """Send a plain download."""
    return FileResponse(FOLDER / name)


@app.put("/files/{name}")
async def put_file(name: str, request: Request) -> None:
    """Take a plain upload: write the bytes as they come, and answer when they are on disk."""
    with open(FOLDER / name, "wb") as file:
        async for chunk in request.stream():
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())


if __name__ == "__main__":
    with listening("127.0.0.1", 0) as listener:
        url = url_of(listener, "http")

        def write_url() -> None:
            """Tell the benchmark where the server is."""
            (FOLDER / "ready.json").write_text(json.dumps({"url": url}))

        run(
            app,
            listener,
            ready=write_url,
            ending=lambda: None,
            settings=Settings(data=FOLDER, shutdown_seconds=1),
            certificate=None,
        )
