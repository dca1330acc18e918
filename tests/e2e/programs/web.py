"""Compile at the first request: ``app`` is for ASGI servers, ``wsgi`` for WSGI servers.

A request for /N runs a batch of N rows. The program attaches to the NAME of the environment and configures no
logging."""

import os

import cachesvc_client

cachesvc_client.attach(os.environ["NAME"])

import torch  # noqa: E402
from model import inputs  # noqa: E402

compiled = torch.compile(lambda x: x.cos() * 2 + 1, dynamic=False)


def answer(path: str) -> bytes:
    with torch.no_grad():
        rows = compiled(inputs(int(path.strip("/"))))
    return f"{os.getpid()} {len(rows)}".encode()


async def app(scope, _receive, send):
    if scope["type"] != "http":
        raise RuntimeError("no lifespan here")
    body = answer(scope["path"])
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


def wsgi(environ, start_response):
    body = answer(environ["PATH_INFO"])
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
