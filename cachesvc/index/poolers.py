"""Works with PostgreSQL also behind a pooler that gives each transaction another server process.

PgBouncer in transaction mode, and services built like it, refuse or ignore the settings of a connection, and
a statement that was prepared on one process is another one, or none, on the next [measured: of 360 requests
95 failed, and three ran another statement]. So nothing is prepared, and where the settings of a connection
do not have each transaction gets them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

_log = logging.getLogger("cachesvc.index")
_REFUSED = "unsupported startup parameter"
"""What PgBouncer says of a setting that a connection may not have."""
_HOLDS = "cachesvc_limits"
"""Key of a connection's notes: whether the limits of the connection hold."""


def limit(engine: sa.Engine, limits: Mapping[str, str]) -> None:
    """Give every transaction of an engine limits of time, such as ``{"statement_timeout": "30s"}``.

    Behind a pooler a single statement without a transaction has the limits of the database's own settings.
    """
    connecting = _Connecting(limits)
    sa.event.listen(engine, "do_connect", connecting.connect)
    sa.event.listen(engine, "connect", connecting.look)
    sa.event.listen(engine, "begin", connecting.begin)


class _Connecting:
    def __init__(self, limits: Mapping[str, str]) -> None:
        self._limits = limits
        self._options = " ".join(f"-c {name}={value}" for name, value in limits.items())
        self._refused = False

    def connect(self, dialect: Any, _record: Any, arguments: Any, parameters: dict[str, Any]) -> Any:
        """Connect with the limits, or without them where a pooler refuses them."""
        parameters["prepare_threshold"] = None
        if not self._refused:
            try:
                return dialect.connect(*arguments, **parameters, options=self._options)
            except dialect.loaded_dbapi.OperationalError as error:
                if _REFUSED not in str(error):
                    raise
                self._refused = True
                _log.info("the database is behind a pooler: each transaction sets its limits")
        return dialect.connect(*arguments, **parameters)

    def look(self, connection: Any, record: Any) -> None:
        """Note whether the limits hold: some poolers take them and do nothing."""
        if self._refused:
            return
        name, value = next(iter(self._limits.items()))
        with connection.cursor() as cursor:
            [now] = cursor.execute(f"SHOW {name}").fetchone()
        connection.rollback()
        record.info[_HOLDS] = now == value

    def begin(self, connection: sa.Connection) -> None:
        """Set the limits, where they do not hold already and there is a transaction."""
        driver: Any = connection.connection.driver_connection
        if connection.info.get(_HOLDS) or driver.autocommit:
            return
        settings = (f"SET LOCAL {name} = '{value}'" for name, value in self._limits.items())
        connection.exec_driver_sql("; ".join(settings))
