"""Logs: lines for people, or one JSON object a line. Each has the id of the request that it belongs to."""

from __future__ import annotations

import json
import logging
from contextvars import ContextVar
from datetime import datetime, timezone
from typing import Any

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Of the request that is served; work that it does in threads has it too. Empty outside of requests."""

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JsonLines(logging.Formatter):
    """``time`` (UTC), ``level``, ``logger``, ``message``; where there is one ``request`` and ``exception``;
    and what was logged as ``extra={"fields": {…}}``."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if served := request_id.get():
            line["request"] = served
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps({**line, **getattr(record, "fields", {})}, ensure_ascii=False, default=str)


def configure(form: str) -> None:
    """Logs of this process go to stderr, as ``text`` or ``json``. Only the latter has a line for each
    request: people ask the proxy in front, or the metrics."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form == "json" else logging.Formatter(TEXT))
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    for talkative in ("alembic", "botocore"):
        logging.getLogger(talkative).setLevel(logging.WARNING)
    logging.getLogger("cachesvc.requests").setLevel(logging.INFO if form == "json" else logging.WARNING)
