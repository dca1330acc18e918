"""Looks up hooked names in the source of an installed package, without importing the package."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, NamedTuple

from .table import Hook

Presence = Literal["there", "missing", "no such module", "not in this release", "not installed"]
"""Whether an installed package has a name. *not in this release*: the table says so, and nothing is lost."""


class HookState(NamedTuple):
    """A row of the table of hooks for what is installed."""

    hook: Hook
    presence: Presence


def look_up(
    hooks: Iterable[Hook],
    folder: Callable[[str], Path | None],
    release: Callable[[str], str | None],
) -> list[HookState]:
    """Return whether each hook's name is there.

    ``folder``: returns the folder of a package, or ``None`` if it is not installed. ``release``: returns its
    release, such as ``2.13``. A name that a module makes by code that is no plain definition counts as
    missing; a module without Python source counts as no such module.
    """
    return [HookState(hook, _presence(hook, folder, release)) for hook in hooks]


def _presence(
    hook: Hook, folder: Callable[[str], Path | None], release: Callable[[str], str | None]
) -> Presence:
    package, *parts = hook.module.split(".")
    place, installed = folder(package), release(package)
    if place is None or installed is None:
        return "not installed"
    if not hook.expected_in(installed):
        return "not in this release"
    source = _source(place.joinpath(*parts))
    if source is None:
        return "no such module"
    return "there" if not hook.path or _defines(source, hook.path.split(".")) else "missing"


def _source(place: Path) -> Path | None:
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)


@functools.lru_cache(maxsize=32)
def _module(source: Path) -> ast.Module | None:
    try:
        return ast.parse(source.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None


def _defines(source: Path, path: list[str]) -> bool:
    module = _module(source)
    body: list[ast.stmt] | None = module.body if module is not None else None
    for part in path:
        body = _inside(body, part, module) if body is not None else None
    return body is not None


def _inside(body: list[ast.stmt], name: str, module: ast.Module | None) -> list[ast.stmt] | None:
    """Return the body of what ``name`` is bound to in ``body``; empty for a function or another value, and
    ``None`` if nothing binds it."""
    for statement in _flat(body):
        if isinstance(statement, ast.ClassDef) and statement.name == name:
            bases = (base.id for base in statement.bases if isinstance(base, ast.Name))
            inherited = [_inside(module.body, base, None) or [] for base in bases] if module else []
            return sum(inherited, list(statement.body))
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)) and statement.name == name:
            return []
        if isinstance(statement, (ast.Import, ast.ImportFrom)) and name in _imported(statement):
            return []
        value = _assigned(statement, name)
        if value is not None:
            instance = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and module is not None
            return (_inside(module.body, value.func.id, None) or []) if instance else []  # type: ignore[union-attr, attr-defined]
    return None


def _flat(body: list[ast.stmt]) -> Iterable[ast.stmt]:
    """Yield the statements of a body and of its ``if`` and ``try`` blocks."""
    for statement in body:
        yield statement
        for block in ("body", "orelse", "finalbody", "handlers"):
            if isinstance(statement, (ast.If, ast.Try, ast.With)):
                inner = getattr(statement, block, [])
                for part in inner:
                    yield from _flat(part.body if isinstance(part, ast.ExceptHandler) else [part])


def _imported(statement: ast.Import | ast.ImportFrom) -> set[str]:
    return {alias.asname or alias.name for alias in statement.names}


def _assigned(statement: ast.stmt, name: str) -> ast.expr | None:
    """Return the value that a statement assigns to a name; the name itself where it is only declared."""
    if isinstance(statement, ast.Assign):
        targets = [target for target in statement.targets if isinstance(target, ast.Name)]
        return statement.value if name in {target.id for target in targets} else None
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return (statement.value or statement.target) if statement.target.id == name else None
    return None
