"""Reads from the sources of a package what a private name is: its parameters and their defaults, or the value
that it has. Nothing is imported, so it takes neither a GPU nor the packages that torch needs.

A package is an installed folder (``site-packages``) or a wheel.
"""

from __future__ import annotations

import ast
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

_VERSION = r"^__version__\s*=\s*(?:version\s*=\s*)?['\"]([0-9.]+)"
MISSING = "missing"
"""What is said of a name that the package does not have."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_LONGEST_DEFAULT = 60
"""Characters of a default or value, at most."""
_MOST_STEPS = 8
"""Steps from one module or base class to the next, at most."""


class Sources:
    """The Python sources of installed packages or of one wheel."""

    def __init__(self, place: Path) -> None:
        """``place``: a folder such as ``site-packages``, or a wheel. Raises ``OSError`` if it is neither."""
        self.place = place
        self._modules: dict[str, ast.Module | None] = {}
        self._read: Callable[[str], str | None]
        self._top: set[str]
        """The names of files and folders that lie on top: some packages say their version there alone."""
        if place.suffix == ".whl":
            archive = zipfile.ZipFile(place)
            names = frozenset(archive.namelist())
            self._read = lambda path: archive.read(path).decode() if path in names else None
            self._top = {name.partition("/")[0] for name in names}
        elif place.is_dir():
            self._read = lambda path: (place / path).read_text() if (place / path).is_file() else None
            self._top = {entry.name for entry in place.iterdir()}
        else:
            raise FileNotFoundError(f"{place} is neither a wheel nor a folder of packages")

    def version(self, package: str) -> str | None:
        """Return the version of a package, such as ``2.13.0``; ``None`` if it is not there."""
        for name in ("version", "_version", "__init__", "_build_meta"):
            match = re.search(_VERSION, self._read(f"{package}/{name}.py") or "", re.MULTILINE)
            if match is not None:
                return match[1].rstrip(".")
        found = (re.fullmatch(rf"{package}-([\d.]+).*\.dist-info", name) for name in sorted(self._top))
        return next((match[1].rstrip(".") for match in found if match is not None), None)

    def describe(self, module: str, path: str) -> str:
        """Return what ``module.path`` is, in one line: `MISSING`, or such as ``(self, key, remote=None)``.

        A method that only a base class has is described as ``inherited from ...``: a hook on the class does
        not find it.
        """
        tree = self._module(module)
        if tree is None:
            return MISSING
        return _Name(self, module, tree).describe(path.split(".")) if path else "module"

    def describe_call(self, module: str, function: str, called: str) -> str:
        """Return how ``function`` calls its variable ``called``, such as ``(_, key=)``; each form once."""
        tree = self._module(module)
        node = tree and _definition(tree, function.split("."))
        if node is None:
            return MISSING
        forms = {
            _form(call)
            for call in ast.walk(node)
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == called
        }
        return " or ".join(sorted(forms)) or MISSING

    def _module(self, module: str) -> ast.Module | None:
        if module not in self._modules:
            base = module.replace(".", "/")
            text = self._read(f"{base}.py") or self._read(f"{base}/__init__.py")
            self._modules[module] = None if text is None else ast.parse(text)
        return self._modules[module]


class _Name:
    """Follows a path of names from a module on."""

    def __init__(self, sources: Sources, module: str, tree: ast.Module, steps: int = 0) -> None:
        self._sources, self._module, self._tree, self._steps = sources, module, tree, steps

    def describe(self, path: list[str]) -> str:
        node: ast.AST = self._tree
        for number, part in enumerate(path):
            inner = _member(node, part)
            if inner is None and isinstance(node, ast.ClassDef):
                return self._inherited(node, path[number:])
            if inner is None:
                return MISSING
            if isinstance(inner, ast.ImportFrom) and number == 0:
                return self._imported(inner, path)
            last = number == len(path) - 1
            node = inner if last else self._instance(inner)
        return _described(node)

    def _instance(self, node: ast.AST) -> ast.AST:
        """Return the class of a variable that is made by a call of a class of this module; else the node."""
        value = getattr(node, "value", None)
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            return _member(self._tree, value.func.id) or node
        return node

    def _imported(self, node: ast.ImportFrom, path: list[str]) -> str:
        """Describe a name that the module imports from another module of the package."""
        [alias] = (alias for alias in node.names if (alias.asname or alias.name) == path[0])
        return self._elsewhere(self._origin(node), [alias.name, *path[1:]], "imported from")

    def _inherited(self, node: ast.ClassDef, path: list[str]) -> str:
        """Describe a name that the class does not have: a base class may have it."""
        for base in node.bases:
            name = ast.unparse(base).partition("[")[0].split(".")
            imported = _member(self._tree, name[0])
            module = self._origin(imported) if isinstance(imported, ast.ImportFrom) else self._module
            said = self._elsewhere(module, [*name, *path], "inherited from")
            if said != MISSING:
                return said
        return MISSING

    def _elsewhere(self, module: str, path: list[str], how: str) -> str:
        tree = self._sources._module(module)
        if tree is None or self._steps >= _MOST_STEPS:
            return MISSING
        said = _Name(self._sources, module, tree, self._steps + 1).describe(path)
        if said == MISSING or said.startswith(("imported from", "inherited from")):
            return said
        return f"{how} {'.'.join((module, *path[:-1]))}: {said}"

    def _origin(self, node: ast.ImportFrom) -> str:
        """Return the module that an import names; relative imports are those of this module."""
        if not node.level:
            return node.module or ""
        parts = self._module.split(".")[: -node.level] or [self._module]
        return ".".join((*parts, node.module) if node.module else parts)


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements of a block, and of the blocks under ``if``, ``try`` and ``with`` in it."""
    for child in getattr(node, "body", ()):
        yield child
        if isinstance(child, (ast.If, ast.Try, ast.With)):
            yield from _statements(child)
            for handler in getattr(child, "handlers", ()):
                yield from _statements(handler)
            for block in ("orelse", "finalbody"):
                yield from _statements(ast.Module(body=getattr(child, block, []), type_ignores=[]))


def _member(node: ast.AST, name: str) -> ast.stmt | None:
    """Return the last statement of a block that defines the name, as at run time."""
    last = None
    for child in _statements(node):
        if isinstance(child, (*_FUNCTIONS, ast.ClassDef)):
            names = {child.name}
        elif isinstance(child, (ast.Assign, ast.AnnAssign)):
            targets = child.targets if isinstance(child, ast.Assign) else [child.target]
            names = {target.id for target in targets if isinstance(target, ast.Name)}
        elif isinstance(child, (ast.Import, ast.ImportFrom)):
            names = {alias.asname or alias.name for alias in child.names}
        else:
            continue
        if name in names:
            last = child
    return last


def _definition(node: ast.AST, path: list[str]) -> ast.AST | None:
    """Return the function or class at the end of a path of names, in one module."""
    found: ast.AST | None = node
    for part in path:
        found = found and _member(found, part)
    return found


def _described(node: ast.AST) -> str:
    if isinstance(node, _FUNCTIONS):
        marks = {ast.unparse(mark) for mark in node.decorator_list} & {
            "classmethod",
            "staticmethod",
            "property",
        }
        return " ".join((*sorted(marks), f"({_parameters(node.args)})"))
    if isinstance(node, ast.ClassDef):
        return f"class ({', '.join(ast.unparse(base) for base in node.bases)})"
    value = getattr(node, "value", None)
    return f"value {ast.unparse(value)[:_LONGEST_DEFAULT]}" if isinstance(value, ast.expr) else "name"


def _parameters(arguments: ast.arguments) -> str:
    """Return the parameters with their defaults and without their types."""
    for argument in ast.walk(arguments):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    return ast.unparse(arguments)


def _form(call: ast.Call) -> str:
    """Return the form of a call: ``_`` for each positional argument, the names of the others."""
    positional = ["*_" if isinstance(argument, ast.Starred) else "_" for argument in call.args]
    named = [f"{keyword.arg}=" if keyword.arg else "**_" for keyword in call.keywords]
    return f"({', '.join((*positional, *named))})"
