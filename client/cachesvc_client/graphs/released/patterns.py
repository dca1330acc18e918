"""Finds the patterns in Inductor's own passes that a program added, and those of torch's that it removed.

A pass is noted under its place when it is first seen there, and so is each pattern that it has then or gets
later. Torch removes none. Of a pass that was there before `watch`, its module's text says which functions
handle a pattern, and the pass itself how many replacements it got.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ...hooks import imports
from ..code.values import short
from . import presence

_PASSES = "torch._inductor.fx_passes"
_Entry = tuple[Any, Any]
"""What a pass searches for, such as calls of one operator, and a pattern that it compares with it."""
_noted: weakref.WeakKeyDictionary[Any, list[_Entry]] = weakref.WeakKeyDictionary()
"""Pass -> the patterns that it got."""
_places: dict[str, Any] = {}
"""Place -> the pass that stood there first."""
_own: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""Patterns that were judged to be torch's own."""
_late: dict[str, Any] = {}
"""Modules with passes that were there before `watch`, by name."""


def watch() -> None:
    """Note the passes of each module when that was imported. Safe to call again."""
    _late.update((name, one) for name, one in list(sys.modules.items()) if name.startswith(f"{_PASSES}."))
    for name in ("pre_grad", "joint_graph", "post_grad", "split_cat"):
        imports.when_imported(f"{_PASSES}.{name}", note_module)


def note(call: imports.Call) -> Any:
    """Run ``PatternEntry.register`` and note the pattern."""
    answer = call()
    entry, *given = call.args
    named = {**dict(zip(("pass_dicts", "target"), given, strict=False)), **call.kwargs}
    passes, target = named.get("pass_dicts"), named.get("target")
    if target is not None and type(passes).__name__ == "PatternMatcherPass":
        _noted.setdefault(passes, []).append(((entry.pattern.op, target), entry))
    return answer


def note_module(module: Any) -> None:
    """Note the passes of a module, and their patterns."""
    for place, one in _passes(module):
        _places.setdefault(place, one)
        _note(one)


def _note(one: Any) -> list[_Entry]:
    """Note the patterns of a pass; return them."""
    noted, entries = _noted.setdefault(one, []), _entries(one)
    known = _identities(noted)
    noted += [(key, entry) for key, entry in entries if (key, id(entry)) not in known]
    return entries


def _identities(entries: Iterable[_Entry]) -> set[tuple[Any, int]]:
    return {(key, id(entry)) for key, entry in entries}


def changed(is_own: Callable[[Any], bool]) -> Iterator[tuple[str, Any]]:
    """Yield place and value for each pattern of a program, and for each of torch's that is not there.

    ``is_own``: whether an object has no code of a program.
    """
    modules = (one for name, one in list(sys.modules.items()) if name.startswith(_PASSES))
    now = {place: one for module in modules for place, one in _passes(module)}
    for place, one in now.items():
        yield from _foreign(place, one, is_own)
        _places.setdefault(place, one)
    for place, first in _places.items():
        if now.get(place) is not first:
            yield place, presence.REMOVED
        yield from _missing(place, first, is_own)
        yield from _moved(place, first)
    yield from _removed_before(now) if _late else ()


def _removed_before(now: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the functions of torch's that handle no pattern, though their module's text registers them, and
    the passes with fewer replacements than they got."""
    from . import registrations  # an early attach does not need it

    entries = {place: _entries(one) for place, one in now.items()}
    handlers = {id(getattr(entry, "handler", None)) for several in entries.values() for _, entry in several}
    for name, module in _late.items():
        for function in registrations.handlers(module):
            if function in vars(module) and id(vars(module)[function]) not in handlers:
                yield f"{name}.{function}, the handler of a pattern", presence.REMOVED
    for place, one in now.items():
        seen = sum(map(len, getattr(one, "seen_patterns", {}).values()))
        there = {id(entry) for _, entry in entries[place] if hasattr(entry, "normalize_args")}
        if seen > len(there):
            yield f"{place}, {seen - len(there)} replacements", presence.REMOVED


def _foreign(place: str, one: Any, is_own: Callable[[Any], bool]) -> Iterator[tuple[str, Any]]:
    """Yield the patterns of a program, and note all."""
    for number, (_, entry) in enumerate(_note(one)):
        if not _is_of_torch(entry, is_own):
            yield f"{place}[{number}]", entry


def _missing(place: str, one: Any, is_own: Callable[[Any], bool]) -> Iterator[tuple[str, Any]]:
    there = _identities(_entries(one))
    for number, (key, entry) in enumerate(_noted.get(one, ())):
        if (key, id(entry)) not in there and _is_of_torch(entry, is_own):
            yield f"{place}, pattern {number} {_text(entry)}", presence.REMOVED


def _moved(place: str, one: Any) -> Iterator[tuple[str, Any]]:
    """Yield the places of the patterns of each kind where a program put them in another order: the first one
    that fits replaces its calls."""
    numbers: dict[tuple[Any, int], int] = {}
    for key, entry in _noted.get(one, ()):
        numbers.setdefault((key, id(entry)), len(numbers))
    by_key: dict[Any, list[int]] = {}
    for key, entry in _entries(one):
        by_key.setdefault(key, []).append(numbers[key, id(entry)])
    moved = tuple(tuple(several) for several in by_key.values() if several != sorted(several))
    if moved:
        yield f"{place}, in another order", moved


def _text(entry: Any) -> str:
    """Return letters that tell one pattern of a pass from another; an empty text where it has no words."""
    text = repr(getattr(entry, "pattern", None))
    return "" if " at 0x" in text else short(text)


def _is_of_torch(entry: Any, is_own: Callable[[Any], bool]) -> bool:
    if id(entry) not in _own:
        if not all(map(is_own, vars(entry).values())):
            return False
        _own[id(entry)] = entry
    return True


def _entries(one: Any) -> list[_Entry]:
    patterns: Mapping[Any, list[Any]] = getattr(one, "patterns", {})
    return [(key, entry) for key, several in list(patterns.items()) for entry in several]


def _passes(module: Any) -> Iterator[tuple[str, Any]]:
    kind = getattr(sys.modules.get("torch._inductor.pattern_matcher"), "PatternMatcherPass", None)
    if kind is None:
        return
    for name, value in list(vars(module).items()):
        place = f"{module.__name__}.{name}"
        if isinstance(value, kind):
            yield place, value
        elif isinstance(value, (list, tuple)):
            yield from ((f"{place}[{n}]", one) for n, one in enumerate(value) if isinstance(one, kind))
        elif isinstance(value, dict):
            yield from ((f"{place}[{key}]", one) for key, one in value.items() if isinstance(one, kind))


def forget() -> None:
    """Let go of what was noted."""
    _places.clear()
    _noted.clear()
    _own.clear()
    _late.clear()
