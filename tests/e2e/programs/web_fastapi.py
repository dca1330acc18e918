"""Serve with FastAPI and the lifespan of cachesvc: 4 rows are compiled at the start, N at a request for /N.

The program attaches to the NAME of the environment. It prints how far the restore is when its own lifespan
starts. A request answers with the process's id and with the state that the lifespan yields."""

import os
from contextlib import asynccontextmanager

import cachesvc_client
from cachesvc_client.integrations.fastapi import lifespan

cachesvc_client.attach(os.environ["NAME"])

import torch  # noqa: E402
from fastapi import FastAPI, Request  # noqa: E402
from model import inputs  # noqa: E402

compiled = torch.compile(lambda x: x.cos() * 2 + 1, dynamic=False)


def rows(batch: int) -> int:
    with torch.no_grad():
        return len(compiled(inputs(batch)))


@asynccontextmanager
async def start(_app):
    print(f"restore: {cachesvc_client.status()}", flush=True)
    yield {"first": rows(4)}
    print("own lifespan ended", flush=True)


app = FastAPI(lifespan=lifespan(start))


@app.get("/{batch}")
def answer(batch: int, request: Request):
    return {"process": os.getpid(), "first": request.state.first, "rows": rows(batch)}
