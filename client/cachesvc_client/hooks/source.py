"""Says whether the sources of an installed package define a name, without importing the package.

A hook replaces a name where its owner has it, so a name counts as defined if a hook could replace it there:
a function or class of the module, a method or value in the body of a class. A name that a module imports
counts if the module that it comes from defines it in the same package. A method that a class inherits does
not count, since replacing it would change other classes too; an object that the module makes of a class has
what its class inherits. Whatever is made in another way is a doubt, and counts as missing.

A name is looked for in the text first, which takes a millisecond for each file. Only a name that is not found
in its usual place has the file parsed.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

_MOST_IMPORTS = 4
"""How many imports of one name are followed, at most."""
_AT_THE_MARGIN = re.compile(r"^[^\s#)\]}]", re.MULTILINE)
"""Matches the begin of a line that ends the body of a class before it."""


class _Module(NamedTuple):
    """Names a module by the folder of its package and its path below it, without the package's name."""

    package: Path
    parts: tuple[str, ...]

    @property
    def source(self) -> Path | None:
        """Return the file of the module; ``None`` if there is none."""
        place = self.package.joinpath(*self.parts)
        files = (place.with_suffix(".py"), place / "__init__.py") if self.parts else (place / "__init__.py",)
        return next((path for path in files if path.is_file()), None)


def source_of(package: Path, module: str) -> Path | None:
    """Return the file of ``module`` (its full name) in the package's folder; ``None`` if there is none."""
    return _module(package, module).source


def defines(package: Path, module: str, path: str) -> bool:
    """Return whether ``module`` (its full name), in the package's folder, defines ``path``.

    ``path``: ``function``, ``Class.attribute`` or ``object.attribute``. Reads files and raises nothing.
    """
    return _defines(_module(package, module), path.split("."), _MOST_IMPORTS)


def _module(package: Path, module: str) -> _Module:
    return _Module(package, tuple(module.split(".")[1:]))


def _defines(module: _Module, path: list[str], imports: int) -> bool:
    source = module.source
    if source is None:
        return False
    text = _text(source)
    if _in_usual_place(text, path):
        return True
    tree = _tree(source)
    if tree is None:
        return False
    statement = _binding(tree.body, path[0])
    if isinstance(statement, ast.ImportFrom):
        origin = _origin(module, source, statement)
        name = next(alias.name for alias in statement.names if (alias.asname or alias.name) == path[0])
        return imports > 0 and origin is not None and _defines(origin, [name, *path[1:]], imports - 1)
    return statement is not None and _has(tree.body, statement, path)


@functools.lru_cache(maxsize=64)
def _text(source: Path) -> str:
    try:
        return source.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _in_usual_place(text: str, path: list[str]) -> bool:
    """Return whether a module's text has a function at its left margin, or a method at the first indentation
    of a class there."""
    if len(path) == 1:
        return re.search(rf"^(?:async +)?(?:def|class) +{path[0]}\b", text, re.MULTILINE) is not None
    if len(path) > 2:
        return False
    begin = re.search(rf"^class +{path[0]}\b", text, re.MULTILINE)
    if begin is None:
        return False
    end = _AT_THE_MARGIN.search(text, begin.end())
    body = text[begin.end() : end.start() if end else len(text)]
    return re.search(rf"^    (?:async +)?def +{path[1]}\b", body, re.MULTILINE) is not None


@functools.lru_cache(maxsize=32)
def _tree(source: Path) -> ast.Module | None:
    try:
        return ast.parse(source.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


def _has(module: list[ast.stmt], statement: ast.stmt, path: list[str]) -> bool:
    """Return whether the rest of ``path`` is in what the statement binds to its first name."""
    body: list[ast.stmt]
    if len(path) == 1:
        return not isinstance(statement, ast.Import)
    if isinstance(statement, ast.ClassDef):
        body = statement.body
    else:
        body = list(_body_of_object(module, statement, path[0]))
    inner = _binding(body, path[1])
    return inner is not None and _has(module, inner, path[1:])


def _body_of_object(module: list[ast.stmt], statement: ast.stmt, name: str) -> Iterator[ast.stmt]:
    """Yield the body of the class of this module that a statement makes an object of, and of its bases."""
    value = _assigned(statement, name)
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Name):
        return
    yield from _inherited(module, value.func.id, set())


def _inherited(module: list[ast.stmt], name: str, seen: set[str]) -> Iterator[ast.stmt]:
    made_of = _binding(module, name)
    if not isinstance(made_of, ast.ClassDef) or name in seen:
        return
    yield from made_of.body
    for base in made_of.bases:
        if isinstance(base, ast.Name):
            yield from _inherited(module, base.id, {*seen, name})


def _binding(body: Iterable[ast.stmt], name: str) -> ast.stmt | None:
    """Return the first statement that binds a name in a body; ``None`` if there is none."""
    for statement in _flat(body):
        if isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            if statement.name == name:
                return statement
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            if any((alias.asname or alias.name) == name for alias in statement.names):
                return statement
        elif _assigned(statement, name) is not None:
            return statement
    return None


def _flat(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a body and of its ``if``, ``try`` and ``with`` blocks."""
    for statement in body:
        yield statement
        if isinstance(statement, (ast.If, ast.Try, ast.With)):
            for block in ("body", "orelse", "finalbody", "handlers"):
                for part in getattr(statement, block, []):
                    yield from _flat(part.body if isinstance(part, ast.ExceptHandler) else [part])


def _assigned(statement: ast.stmt, name: str) -> ast.expr | None:
    """Return the value that a statement assigns to a name; the name itself where it is only declared."""
    if isinstance(statement, ast.Assign):
        targets = {target.id for target in statement.targets if isinstance(target, ast.Name)}
        return statement.value if name in targets else None
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return (statement.value or statement.target) if statement.target.id == name else None
    return None


def _origin(module: _Module, source: Path, statement: ast.ImportFrom) -> _Module | None:
    """Return the module of the same package that a statement imports from; ``None`` for another package."""
    named = tuple((statement.module or "").split(".")) if statement.module else ()
    if statement.level:
        is_package = source.name == "__init__.py"
        above = statement.level - (1 if is_package else 0)
        if above > len(module.parts):
            return None
        return _Module(module.package, module.parts[: len(module.parts) - above] + named)
    return _Module(module.package, named[1:]) if named and named[0] == module.package.name else None
