"""A stand-in for GitHub's comments API on loopback: GitHub itself is an outside service.

It has the three requests of "REST API endpoints for issue comments" that the report uses, in pages, with what
GitHub answers to a token that may only read, and to one that it does not know.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN = "ghs_" + "a1" * 18
READ_TOKEN = "ghs_" + "b2" * 18
BOT = {"user": {"login": "github-actions[bot]", "type": "Bot"}, "author_association": "NONE"}
STRANGER = {"user": {"login": "mallory", "type": "User"}, "author_association": "CONTRIBUTOR"}


@dataclass
class Comments:
    """Comments of pull request 7 of org/app. ``failures``: statuses that the next answers have."""

    url: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    failures: list[int] = field(default_factory=list)

    def add(self, body: str, author: dict[str, Any] = BOT) -> None:
        number = len(self.rows) + 1
        url = f"https://git.example/c/{number}"
        self.rows.append({"id": number, "body": body, "html_url": url, **author})

    def answer(self, method: str, target: str, token: str | None, body: Any) -> tuple[int, Any]:
        url = urlsplit(target)
        self.requests.append(f"{method} {url.path}")
        if self.failures:
            return self.failures.pop(0), {"message": "broken"}
        if token not in (f"Bearer {TOKEN}", f"Bearer {READ_TOKEN}"):
            return 401, {"message": "Bad credentials"}
        if method != "GET" and token != f"Bearer {TOKEN}":
            return 403, {"message": "Resource not accessible by integration"}
        if method != "GET" and len(body["body"]) > 65_536:
            return 422, {"message": "Validation Failed"}
        if url.path == "/api/v3/repos/org/app/issues/7/comments":
            if method == "POST":
                self.add(body["body"])
                return 201, self.rows[-1]
            query = parse_qs(url.query)
            page, size = int(query["page"][0]), int(query["per_page"][0])
            return 200, self.rows[(page - 1) * size : page * size]
        match = re.fullmatch(r"/api/v3/repos/org/app/issues/comments/(\d+)", url.path)
        if method == "PATCH" and match:
            row = self.rows[int(match[1]) - 1]
            row["body"] = body["body"]
            return 200, row
        return 404, {"message": "Not Found"}


@contextmanager
def comments_api() -> Iterator[Comments]:
    """Serve until the end of the block."""
    comments = Comments()

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            size = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            status, answer = comments.answer(self.command, self.path, self.headers["authorization"], body)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = handle_any

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    comments.url = f"http://127.0.0.1:{server.server_address[1]}/api/v3"
    try:
        yield comments
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
