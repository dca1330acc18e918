"""Writes to this package's logger, also after a logging configuration has disabled it by default.

``logging.config.dictConfig`` and ``fileConfig`` disable every logger that exists and that they do not name,
unless ``disable_existing_loggers`` is false. Most services keep that default without a reason. Without this
module a service that attaches before it configures its logging would never see a warning of this package.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

_log = logging.getLogger("cachesvc")
_UNUSED = logging.getLogger("cachesvc.unused")
"""A logger without records. A configuration that disables all loggers disables this one too; code that
silences the package's logger does not."""


def write(level: int, text: str, *args: object, facts: Mapping[str, object] | None = None) -> None:
    """Logs a record for the user of the service.

    ``facts``: what the record says, for programs: the attribute ``cachesvc`` of the record, which
    CACHESVC_LOG=json writes. Its ``event`` says what happened.

    If a configuration has disabled all loggers, the function first enables this package's: for warnings, and
    for every record where CACHESVC_LOG asks for the log (only then the logger has a handler of its own). The
    service's levels, filters and handlers decide as always.
    """
    by_default = _log.disabled and _UNUSED.disabled
    if by_default and (level >= logging.WARNING or _log.handlers):
        _log.disabled = _UNUSED.disabled = False
    _log.log(level, text, *args, stacklevel=2, extra={"cachesvc": dict(facts)} if facts else None)


def _name_the_package(record: logging.LogRecord) -> bool:
    """Begins a message with the package's name where no logging is configured: Python prints the message
    alone then, among the lines of other packages."""
    text = str(record.msg)
    if not _log.hasHandlers() and not text.startswith("cachesvc"):
        record.msg = f"cachesvc: {text}"
    return True


_log.addFilter(_name_the_package)
