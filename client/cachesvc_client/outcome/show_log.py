"""Shows the log of this package on stderr, for services that configure no logging."""

from __future__ import annotations

import logging

from ..wire.errors import printable

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}
"""Values of CACHESVC_LOG -> levels of logging."""


class _OneLine(logging.Formatter):
    """Formats each record as one line, an exception as its type and text."""

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            text = f"{text}: {type(error).__name__}: {error}"
        return "cachesvc: " + printable(" ".join(text.split("\n")))


def show(level: str) -> None:
    """Shows records of ``level`` (a value of CACHESVC_LOG) and above on stderr.

    No other handler gets the records, so that each appears once. A level that does not exist gives one
    warning and changes nothing.
    """
    logger = logging.getLogger("cachesvc")
    number = LEVELS.get(level.strip().lower())
    if number is None:
        logger.warning("CACHESVC_LOG: %r: allowed: %s", level[:40], ", ".join(LEVELS))
        return
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine())
    logger.addHandler(handler)
    logger.setLevel(number)
    logger.propagate = False
