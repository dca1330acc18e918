"""Describes a hook as a row: the name that is wrapped, what for, and what it means if the name is missing.

Each room declares its rows as constants beside the functions that run in the place of those names, and lists
them in ``HOOKS``. ``process.every_hook`` joins all lists; ``cachesvc-client doctor`` prints them for the
installed torch.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from types import ModuleType
from typing import Any, Literal

from . import imports

_log = logging.getLogger("cachesvc")

Role = Literal["safety", "restore", "count", "gpu", "speed", "explain"]
"""What depends on a hook. *safety*: without it code of other settings could be restored. *restore*: without
it nothing can be restored or captured. *count*: without it work of a compiler is not counted, so no hit is
proven. *gpu*: one of these three, where code for a GPU is compiled. *speed*: without it a start needs longer.
*explain*: without it a miss is explained less."""


@dataclass(frozen=True, slots=True)
class Hook:
    """One name of torch or Triton that cachesvc wraps, or one module whose import it waits for.

    Attributes:
        module: The module that has the name. cachesvc never imports it.
        path: ``function`` or ``Class.attribute`` in the module; empty if only the import is awaited.
        purpose: What cachesvc does there.
        if_missing: What a user loses if the name is not there.
        since: The first release of the module's package that has the name, such as ``2.13``; empty for all.
        until: The first release that no longer has the name; empty for all.
        role: What depends on the hook.
        warns: Whether a missing name is worth a warning in the log of every process.
    """

    module: str
    path: str
    purpose: str
    if_missing: str
    since: str = ""
    until: str = ""
    _: KW_ONLY
    role: Role
    warns: bool = False

    @property
    def name(self) -> str:
        """Return the full name, such as ``torch._inductor.compile_fx.compile_fx``."""
        return f"{self.module}.{self.path}".rstrip(".")

    def install(
        self,
        body: imports.Body,
        *,
        reaches: imports.Errors = (),
        on_missing: Callable[[Hook], None] | None = None,
    ) -> None:
        """Run ``body`` in the place of the name once the application has imported the module.

        ``reaches``: errors of ``body`` that are meant for the caller. ``on_missing``: gets this hook where
        the name is not there. Installing the same body twice does nothing more. Never raises; logs
        ``if_missing`` where the name is not there.
        """
        imports.when_imported(self.module, functools.partial(self._put, body, reaches, on_missing))

    def install_now(self, module: ModuleType, body: imports.Body, *, reaches: imports.Errors = ()) -> bool:
        """Run ``body`` in the place of the name in a module that is imported. Return whether it is there."""
        there = imports.hook(module, self.path, body, reaches=reaches)
        if not there:
            self.log_missing()
        return there

    def chain(
        self,
        ours: Callable[..., Any],
        *,
        reaches: imports.Errors = (),
        on_missing: Callable[[Hook], None] | None = None,
    ) -> None:
        """Have a callback that the module keeps under the name call ``ours`` first, once it is imported.

        ``reaches`` and ``on_missing``: as for `install`.
        """
        imports.when_imported(
            self.module, functools.partial(self._chain, ours=ours, reaches=reaches, on_missing=on_missing)
        )

    def watch(self, callback: Callable[[ModuleType], None]) -> None:
        """Call ``callback(module)`` once the application has imported the module."""
        imports.when_imported(self.module, callback)

    def expected_in(self, release: str) -> bool:
        """Return whether a release of the module's package, such as ``2.13``, should have the name."""
        number = _numbers(release)
        after = not self.since or number >= _numbers(self.since)
        return after and (not self.until or number < _numbers(self.until))

    def owner(self, module: ModuleType) -> Any:
        """Return the object that has the last part of the path; ``None`` if the name is not there."""
        *parents, attribute = self.path.split(".")
        place: Any = module
        for parent in parents:
            place = getattr(place, parent, None)
        return place if hasattr(place, attribute) else None

    def log_missing(self) -> None:
        """Log that the name is not there, and what that means."""
        level = logging.WARNING if self.warns else logging.DEBUG
        _log.log(level, "%s has no %s: %s", self.module, self.path, self.if_missing)

    def _put(
        self,
        body: imports.Body,
        reaches: imports.Errors,
        on_missing: Callable[[Hook], None] | None,
        module: ModuleType,
    ) -> None:
        if not self.install_now(module, body, reaches=reaches) and on_missing is not None:
            on_missing(self)

    def _chain(
        self,
        module: ModuleType,
        *,
        ours: Callable[..., Any],
        reaches: imports.Errors,
        on_missing: Callable[[Hook], None] | None,
    ) -> None:
        owner = self.owner(module)
        if owner is not None:
            imports.chain(owner, self.path.rpartition(".")[2], ours, reaches=reaches)
            return
        self.log_missing()
        if on_missing is not None:
            on_missing(self)


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split(".")[:2] if part.isdigit())
