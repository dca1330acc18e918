"""Owns `AttachOptions`: the arguments of one `attach`, and how they take precedence over the configuration.

`attach` imports this module on the application's own thread, so the module imports little at its top.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..environment.variables import parse_canary, parse_mode
from ..wire.errors import InvalidRequest

if TYPE_CHECKING:
    from ..config.settings import Config
    from ..wire.digest import Digest
    from ..wire.names import Name


class AttachOptions(NamedTuple):
    """The arguments of `attach`. The configuration decides each option that is ``None`` or empty."""

    name: str | None = None
    bundle: str | None = None
    url: str | None = None
    token: str | None = None
    deadline: float | None = None
    fallback: tuple[str, ...] = ()
    model: Digest | None = None
    canary: bool | str | None = None
    mode: str | None = None

    @property
    def label(self) -> str:
        """Return the text that names these options in log lines."""
        target = self.name or self.bundle
        return target or os.environ.get("CACHESVC_NAME") or os.environ.get("CACHESVC_BUNDLE") or "(no name)"

    def same_target(self, other: AttachOptions) -> bool:
        """Return whether both options attach to the same name or bundle of the same registry, in one mode."""
        return self._target == other._target

    @property
    def _target(self) -> tuple[str | None, ...]:
        mode = self.mode or os.environ.get("CACHESVC_MODE") or "read"
        return self.label.removesuffix(":latest"), self.url, mode

    def over(self, config: Config) -> Config:
        """Return ``config`` with these options in place of its own values. Raises ``InvalidRequest``."""
        from dataclasses import replace

        from ..wire.names import Name, Tag

        try:
            names = (Name.parse(self.name),) if self.name else config.names
            fallback = tuple(Tag(tag) for tag in self.fallback) or config.tag_fallback
            mode = parse_mode(self.mode) if self.mode else config.mode
            canary = config.canary if self.canary is None else parse_canary(str(self.canary))
        except ValueError as error:
            raise InvalidRequest(f"attach: {error}") from None
        return replace(
            config,
            names=names,
            tag_fallback=fallback,
            mode=mode,
            bundle=Path(self.bundle) if self.bundle else config.bundle,
            url=self.url or config.url,
            token=self.token or config.token,
            deadline=config.deadline if self.deadline is None else float(self.deadline),
            canary=canary,
        )


def demand_bound_keys(every: Iterable[AttachOptions]) -> None:
    """Raise ``InvalidRequest`` if a process attaches by these options to names of several namespaces, and
    trusts a key without saying for which."""
    from ..bundle.seal import require_bound_keys
    from ..config.settings import Config

    config = Config.read()
    names: set[Name] = set()
    for options in every:
        with suppress(InvalidRequest):  # that session fails by itself
            names.update(options.over(config).names)
    require_bound_keys(config.trusted_keys, (name.namespace for name in names))
