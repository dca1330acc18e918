"""Configure logs: lines for people, or one JSON object in each line with the id of its request."""

from __future__ import annotations

import json
import logging
from contextvars import ContextVar
from datetime import datetime, timezone
from typing import Any

from cachesvc_client.wire.errors import printable

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Id of the request that is served, also in the threads that work for it. Empty outside of requests."""

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class TextLines(logging.Formatter):
    """Formats a record as one printable line, and below it the exception where there is one, indented: parts
    of both come from requests, and the lines go to a terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return "\n".join(f"  {printable(line)}" for line in super().formatException(ei).split("\n"))


class JsonLines(logging.Formatter):
    """Formats a record as JSON: ``time`` (UTC), ``level``, ``logger``, ``message``; ``request`` and
    ``exception`` where there is one; and the fields of ``extra={"fields": {…}}``. The line is ASCII:
    terminals obey some control characters that JSON does not escape."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if current_id := request_id.get():
            line["request"] = current_id
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps({**line, **getattr(record, "fields", {})}, default=str)


def configure(form: str) -> None:
    """Sends the logs of this process to stderr, as ``text`` or ``json``. Only ``json`` has a line for each
    request: people look at the proxy's log, or at the metrics."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form == "json" else TextLines(TEXT))
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    for verbose in ("alembic", "botocore"):
        logging.getLogger(verbose).setLevel(logging.WARNING)
    logging.getLogger("cachesvc.requests").setLevel(logging.INFO if form == "json" else logging.WARNING)
