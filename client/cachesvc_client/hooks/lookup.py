"""Looks up hooked names in the source of installed packages, without importing them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, NamedTuple

from .source import defines, source_of
from .table import Hook

Presence = Literal["there", "missing", "no such module", "not in this release", "not installed"]
"""Whether an installed package has a name. *not in this release*: the table says so, and nothing is lost."""
LOST: tuple[Presence, ...] = ("missing", "no such module", "not installed")
"""The answers with which a hook cannot be put in place although it should."""


class HookState(NamedTuple):
    """A row of the table of hooks for what is installed."""

    hook: Hook
    presence: Presence


def look_up(
    hooks: Iterable[Hook],
    *,
    folder: Callable[[str], Path | None],
    release: Callable[[str], str | None],
) -> list[HookState]:
    """Return whether each hook's name is there.

    ``folder``: returns the folder of a package, or ``None`` if it is not installed. ``release``: returns its
    release, such as ``2.13``. A name that `source` cannot tell about counts as missing; a module without
    Python source counts as no such module.
    """
    packages = {hook: hook.module.partition(".")[0] for hook in hooks}
    return [
        HookState(hook, _presence(hook, folder(package), release(package)))
        for hook, package in packages.items()
    ]


def _presence(hook: Hook, place: Path | None, installed: str | None) -> Presence:
    """Return whether a name is there. ``place``: the folder of its package, ``installed``: the release."""
    if place is None or installed is None:
        return "not installed"
    if not hook.expected_in(installed):
        return "not in this release"
    if source_of(place, hook.module) is None:
        return "no such module"
    return "there" if not hook.path or defines(place, hook.module, hook.path) else "missing"
