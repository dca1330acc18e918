"""Loads the generated module of a recorded graph without compiling its text.

Inductor writes a module for each graph, whose text Python compiles at every start: 0.03 s for a model of 24
layers [measured, 2.11, CPU]. The builder's Python has compiled the same text. The bytecode of frames is the
builder's too, and an entry fits one release of Python alone; a text or a Python that differs is compiled.
"""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import importlib.util
import marshal
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .guards.pickles import temporary_attribute


def compiled_modules(texts: Iterable[str]) -> dict[str, bytes]:
    """Return what this Python makes of the texts of modules, by the digest of each."""
    return {_digest(text): marshal.dumps(compile(text, "", "exec", dont_inherit=True)) for text in texts}


@contextlib.contextmanager
def loaded_from(compiled: Mapping[str, bytes]) -> Iterator[None]:
    """Have Inductor load a module from the code that the builder's Python made of the same text. Does nothing
    where Inductor loads its modules in another way.

    ``compiled``: out of a verified file."""
    try:
        from torch._inductor.runtime import compile_tasks
    except ImportError:
        yield
        return

    def compile_or_load(text: Any, path: str, *rest: Any, **named: Any) -> Any:
        known = compiled.get(_digest(text)) if isinstance(text, str) else None
        if known is None:
            return builtins.compile(text, path, *rest, **named)
        return _in_file(marshal.loads(known), path)

    with temporary_attribute(compile_tasks, "compile", compile_or_load):
        yield


def _digest(text: str) -> str:
    return hashlib.sha256(importlib.util.MAGIC_NUMBER + text.encode()).hexdigest()


def _in_file(code: types.CodeType, path: str) -> types.CodeType:
    """Return the code as that of a file, by which Python shows its lines."""
    constants = tuple(
        _in_file(constant, path) if isinstance(constant, types.CodeType) else constant
        for constant in code.co_consts
    )
    return code.replace(co_filename=path, co_consts=constants)
