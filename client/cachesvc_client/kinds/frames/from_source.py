"""Makes single functions of a module of PyTorch's from its source, and does not import the module.

A start without traces needs a function of ten lines out of a module that imports all of a compiler. The
functions are compiled from the lines of the released file, and the names that they use come from where that
file imports them. What is written in another way raises ``LookupError``: then the module is imported.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import dis
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

_IMPORT = re.compile(r"^(?:from \S+ import (?:\([^)]*\)|[^\n(]+)|import [^\n]+)$", re.MULTILINE)
"""Matches an import statement of a module's top level."""


class Source(SimpleNamespace):
    """Has the names of a module that is not imported; each is made when it is read."""

    def __init__(self, module: str) -> None:
        """Raises ``LookupError`` where the module has no file."""
        super().__init__()
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            raise LookupError(f"{module} has no file")
        self._text, self._file = Path(spec.origin).read_text("utf-8"), spec.origin
        self._scope: dict[str, Any] = {"__name__": module, "__package__": spec.parent}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        value = self._function(name) if f"\ndef {name}(" in self._text else self._imported(name)
        setattr(self, name, value)
        return value

    def _function(self, name: str) -> FunctionType:
        """Return a function with its globals."""
        begin = self._text.index(f"\ndef {name}(") + 1
        if self._text[:begin].rstrip().rpartition("\n")[2].startswith("@"):
            raise LookupError(f"{name} has a decorator")
        end = re.compile(r"^[^\s)#]", re.MULTILINE).search(self._text, begin + 1)
        lines = "\n" * self._text.count("\n", 0, begin)
        text = lines + self._text[begin : end.start() if end else None]
        code = compile(text, self._file, "exec", __future__.annotations.compiler_flag, dont_inherit=True)
        exec(code, self._scope)  # which adds the builtins
        function: FunctionType = self._scope[name]
        for used in _globals_of(function.__code__) - vars(builtins).keys() - self._scope.keys():
            is_function = f"\ndef {used}(" in self._text
            self._scope[used] = self._late(used) if is_function else self._imported(used)
        return function

    def _late(self, name: str) -> Any:
        """Return a function that imports the module when it is called."""
        module = str(self._scope["__name__"])

        def call(*args: Any, **kwargs: Any) -> Any:
            return getattr(importlib.import_module(module), name)(*args, **kwargs)

        return call

    def _imported(self, name: str) -> Any:
        """Return what an import statement of the file binds to a name."""
        for statement in _IMPORT.findall(self._text):
            if name in statement:
                [node] = ast.parse(statement).body
                assert isinstance(node, (ast.Import, ast.ImportFrom))
                node.names = [one for one in node.names if _bound(one) == name]
                if node.names:
                    exec(compile(ast.unparse(node), self._file, "exec"), self._scope)
                    return self._scope[name]
        raise LookupError(f"no statement of {self._file} imports {name}")


def import_with(module: str, stand_ins: Mapping[str, Any]) -> None:
    """Import a module whose own statements import names from stand-ins, as `importing_from` has them.

    Does nothing where it is imported already."""
    spec = importlib.util.find_spec(module)
    if module in sys.modules or spec is None or spec.loader is None:
        return
    execute = spec.loader.exec_module

    def with_stand_ins(created: ModuleType) -> None:
        vars(created)["__builtins__"] = {**vars(builtins), "__import__": importing_from(stand_ins)}
        execute(created)

    spec.loader.exec_module = with_stand_ins  # type: ignore[assignment, method-assign]
    loaded = importlib._bootstrap._load(spec)  # type: ignore[attr-defined]  # under the lock of the module
    setattr(sys.modules[module.rpartition(".")[0]], module.rpartition(".")[2], loaded)


def importing_from(stand_ins: Mapping[str, Any]) -> Callable[..., Any]:
    """Return a function ``__import__`` with which ``from MODULE import name`` gets the name from a stand-in,
    if there is one for the module and the module is not imported."""

    def import_from(
        name: str, module: Any = None, values: Any = None, names: Any = (), level: int = 0
    ) -> Any:
        full = importlib.util.resolve_name("." * level + name, module["__package__"]) if level else name
        if names and full in stand_ins and full not in sys.modules:
            return stand_ins[full]
        return builtins.__import__(name, module, values, names, level)

    return import_from


def _globals_of(code: CodeType) -> set[str]:
    """Return the global names that a function and the functions in it use."""
    names = {one.argval for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL"}
    return names.union(*(_globals_of(one) for one in code.co_consts if isinstance(one, CodeType)))


def _bound(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]
