"""Loads kinds of other distributions, and keeps their errors from the service.

Such a kind is an entry point of the group ``cachesvc.kinds`` whose object is a `Kind`. It runs in the process
of a service, so nothing of its distribution is imported unless ``CACHESVC_KINDS`` names it there.
"""

from __future__ import annotations

import functools
import logging
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..wire.errors import printable
from .kind import KeyUses, Kind, KindState, Recording

if TYPE_CHECKING:
    from ..hooks.counters import Observation
    from ..wire.requests.reports import KindWork

GROUP = "cachesvc.kinds"
"""The group of entry points in which a distribution offers kinds."""
_log = logging.getLogger("cachesvc")
_Answer = TypeVar("_Answer")


def load_outside(asked: Iterable[str], ours: Sequence[Kind]) -> tuple[tuple[Kind, ...], tuple[str, ...]]:
    """Return the kinds of other distributions that are asked for, and a line for each name that gives none.

    ``ours``: the kinds that are there, none of which is replaced.
    """
    points = list(entry_points(group=GROUP))
    own = {kind.name for kind in ours}
    kinds: list[Kind] = []
    lines: list[str] = []
    for name in asked:
        found = [point for point in points if point.name == name]
        if name in own and not found:
            continue
        try:
            kinds.append(_guarded(_loaded(name, found, [*ours, *kinds])))
        except _Refused as why:
            lines.append(f"CACHESVC_KINDS names {printable(name)[:60]!r}, and {why}")
    return tuple(kinds), tuple(lines)


class _Refused(Exception):
    """Says why a kind does not load."""


def _loaded(name: str, found: Sequence[EntryPoint], others: Sequence[Kind]) -> Kind:
    """Return the kind of the one entry point. Raises `_Refused`."""
    if any(kind.name == name for kind in others):
        raise _Refused(f"{_owner(found[0])} may not replace the kind of that name: it is left out")
    if not found:
        raise _Refused("no installed distribution has a kind of that name")
    if len(found) > 1:
        raise _Refused(f"{' and '.join(map(_owner, found))} have a kind of that name: none is used")
    try:
        kind = found[0].load()
    except Exception as error:  # noqa: BLE001 - whatever the code of others raises
        raise _Refused(f"{_owner(found[0])} cannot be imported: {_in_words(error)}") from None
    if fault := _fault(kind, name, others):
        raise _Refused(f"the one of {_owner(found[0])} is left out: {fault}")
    return cast(Kind, kind)


def _fault(kind: object, name: str, others: Sequence[Kind]) -> str:
    """Return what is wrong with the object of an entry point; an empty text for a kind that may be used."""
    if not isinstance(kind, Kind):
        return "its object is no Kind"
    if not re.fullmatch(r"[a-z][a-z0-9_-]{0,31}", kind.name) or kind.name != name:
        return f"the name of its rules must be {name!r}, in lower case"
    folder = kind.folder
    if folder.home == "private" or (folder.home == "inside" and not re.fullmatch("[a-z0-9_]+", folder.place)):
        return "its home must be 'process', or 'inside' with a place of one part"
    try:
        any(re.compile(rule.pattern) is None for rule in kind.rules.rules)
    except (re.error, TypeError) as error:
        return f"a pattern of its rules cannot be read: {error}"
    if not re.fullmatch(r"[A-Z][A-Z0-9_]*", folder.variable):
        return "its variable must be the name of an environment variable"
    for other in others:
        same_top = folder.home == "inside" and _top(kind) == _top(other)
        if same_top or folder.variable == other.folder.variable:
            return f"the kind {other.name} has its folder there"
    return ""


def _top(kind: Kind) -> str:
    """Return the first part of a kind's place in the folder of the first kind; empty for another home."""
    return kind.folder.place.partition("/")[0] if kind.folder.home == "inside" else ""


def _owner(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "a distribution"


def _in_words(error: Exception) -> str:
    return printable(f"{type(error).__name__}: {error}")[:200]


def _guarded(kind: Kind) -> Kind:
    """Return a kind none of whose functions raises into the service."""

    def user_folder(named: Path, earlier: Mapping[str, Path]) -> Path | None:
        return _or(cast("Path | None", named), kind.folder.named, named, earlier)

    def work(observed: Observation, seconds: float) -> KindWork:
        from ..wire.requests.reports import KindWork

        return _or(KindWork(), cast(Any, kind.work), observed, seconds)

    def records_on(torch: str) -> bool:
        return _or(False, cast(Any, kind.records_on), torch)

    return replace(
        kind,
        start=lambda: cast(KindState, GuardedState(kind)),
        folder=replace(kind.folder, named=user_folder),
        work=work if kind.work is not None else None,
        records_on=records_on if kind.records_on is not None else None,
    )


def _or(fallback: _Answer, function: Callable[..., _Answer], *args: object) -> _Answer:
    try:
        return function(*args)
    except Exception:  # noqa: BLE001 - the code of others
        _log.debug("a function of an outside kind failed", exc_info=True)
        return fallback


class GuardedPart:
    """A part of the state of an outside kind, whose methods the state guards."""

    def __init__(self, state: GuardedState, name: str) -> None:
        self._state, self._name = state, name

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return functools.partial(self._state.ask, f"{self._name}.{method}")


class GuardedState:
    """The state of an outside kind. Once a method of it raises, this process has used nothing of the kind."""

    def __init__(self, kind: Kind) -> None:
        self._name = kind.name
        self._state = KindState()
        try:
            self._state = kind.start()
        except Exception as error:  # noqa: BLE001 - the code of others
            self._leave(error)

    def __getattr__(self, name: str) -> Any:
        declared = getattr(KindState, name)  # a state has no other names
        if isinstance(declared, KeyUses | Recording):
            return GuardedPart(self, name)
        return functools.partial(self.ask, name)

    def ask(self, name: str, *args: object, **options: object) -> Any:
        """Return what a method of the state answers, by its name such as ``keys.used``."""
        for _ in range(2):
            try:
                answer = operator.attrgetter(name)(self._state)(*args, **options)
                return tuple(answer) if isinstance(answer, Iterator) else answer
            except Exception as error:  # noqa: BLE001 - the code of others
                self._leave(error)
        return None

    def _leave(self, error: Exception) -> None:
        self._state = KindState()
        _log.warning(
            "the kind %s failed (%s): this process goes on without it, and publishes nothing of it",
            self._name,
            _in_words(error),
        )
        _log.debug("the kind %s failed", self._name, exc_info=True)
