"""Shows the log of this package on stderr, for services that configure no logging."""

from __future__ import annotations

import functools
import logging
import os
import time

from ..wire.errors import printable

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "json": logging.INFO}
"""Values of CACHESVC_LOG -> levels of logging."""


class _OneLine(logging.Formatter):
    """Formats each record as one line, an exception as its type and text."""

    def format(self, record: logging.LogRecord) -> str:
        return "cachesvc: " + _text(record)


class _Json(logging.Formatter):
    """Formats each record as one JSON object on one line. docs/reference/variables.md lists the fields."""

    def format(self, record: logging.LogRecord) -> str:
        import json

        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{when}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "process": record.process,
            "message": _text(record),
            **getattr(record, "cachesvc", {}),
        }
        return json.dumps(line, default=str)


@functools.cache
def show_as_asked() -> None:
    """Shows the log as CACHESVC_LOG asks for it, once in a process: the value at the first call counts."""
    if level := os.environ.get("CACHESVC_LOG", "").strip():
        show(level)


def show(level: str) -> None:
    """Shows records of ``level`` (a value of CACHESVC_LOG) and above on stderr.

    No other handler gets the records, so that each appears once. A level that does not exist gives one
    warning and changes nothing.
    """
    logger = logging.getLogger("cachesvc")
    name = level.strip().lower()
    number = LEVELS.get(name)
    if number is None:
        logger.warning("CACHESVC_LOG: %r: allowed: %s", level[:40], ", ".join(LEVELS))
        return
    handler = logging.StreamHandler()
    handler.setFormatter(_Json() if name == "json" else _OneLine())
    logger.addHandler(handler)
    logger.setLevel(number)
    logger.propagate = False


def _text(record: logging.LogRecord) -> str:
    """Returns the message of a record and its exception as one printable line."""
    text = record.getMessage()
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        text = f"{text}: {type(error).__name__}: {error}"
    return printable(" ".join(text.split("\n")))
