"""Hold what a command of `cachesvc` printed, and how it ended."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass
class CommandResult:
    """Holds the output and the exit status of a command."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def rows(self) -> Any:
        return self.json["rows"]

    @property
    def error(self) -> Any:
        """Return the error of a command with ``--json``: the last line of stderr."""
        return json.loads(self.err.splitlines()[-1])["error"]


Admin = Callable[..., CommandResult]
