"""Takes torch for torch as released where nothing but torch's own code ran until its import ended.

To judge what stands in torch takes a fifth of a second. It need not be judged where no other code had a
chance to change it: cachesvc was attached before torch was imported, Python's own finders and loaders
imported it, no other thread ran, and whatever was imported meanwhile is of torch, of the standard library or
of what torch is built on. Then torch, as it stands when its import ends, is torch as released, and only what
is replaced later is judged. Wherever one of these does not hold, all is judged as ever.
"""

from __future__ import annotations

import builtins
import sys
import threading
import types
from importlib.machinery import BuiltinImporter, ExtensionFileLoader, FrozenImporter, SourceFileLoader
from typing import Any

from ...hooks import imports

_TORCH = "torch"
_FINDERS = (
    ("_frozen_importlib", "BuiltinImporter"),
    ("_frozen_importlib", "FrozenImporter"),
    ("_frozen_importlib_external", "PathFinder"),
    (imports.__name__, "_Finder"),
    ("_distutils_hack", "DistutilsMetaFinder"),
    ("_virtualenv", "_Finder"),
    ("six", "_SixMetaPathImporter"),
    ("_numba_cuda_redirector", "NumbaCudaFinder"),
)
"""Finders that leave torch's modules to Python's own: modules and names of their classes."""
_EDITABLE = "__editable__"
"""What the modules of the finders begin with that setuptools writes for packages under development."""
_PATH_HOOKS = frozenset(("zipimport", "_frozen_importlib_external"))
"""Modules of the functions that make finders for folders."""
_LOADERS = (BuiltinImporter, FrozenImporter, SourceFileLoader, ExtensionFileLoader)
_MADE_OTHERWISE = ("torch._C.", "torch._VF", "torch.ops", "torch.classes", "torch.backends", "_openssl")
"""Beginnings of the names of modules that no loader made, but a library in C or torch's own code."""
_PARTS_OF_MODULES = frozenset(("typing.io", "typing.re"))
"""Classes that Python 3.10 to 3.12 keeps among the modules."""
_OURS = (__package__.partition(".")[0], "cryptography", "zstandard", "_cffi_backend")
"""This package, and the packages that it loads: its threads import them meanwhile."""
_OUR_THREADS = "cachesvc-"

_before: frozenset[str] | None = None
"""The names of the modules that were loaded when the body of torch began to run; ``None`` if there was a
reason not to trust it."""


def watch() -> None:
    """Wait for the import of torch. If it has begun, only note what stands in its tables. Safe to call
    again."""
    imports.around_body(_TORCH, before=_begin, after=_end)
    if _TORCH in sys.modules:
        _watch_tables()


def _watch_tables() -> None:
    from . import patterns, presence  # `attach` loads nothing that torch alone needs

    presence.watch()
    patterns.watch()


def _begin() -> None:
    global _before
    _before = None
    _watch_tables()
    loaded = frozenset(sys.modules)
    # A part of torch that is there already is left from an import that failed, or was put there.
    if not any(name.startswith(f"{_TORCH}.") for name in loaded) and _is_alone():
        _before = loaded


def _end(_: types.ModuleType) -> None:
    """Take torch for as released, if nothing but torch could write into it."""
    before = _before
    if before is None or not _is_alone():
        return
    from . import comparison, known

    loaded = list(sys.modules.items())
    there = {id(one) for name, one in loaded if name in before}
    folders = (*known.known_folders(), *known.folders_of(_OURS))
    if all(id(one) in there or _is_plain(name, one, folders) for name, one in loaded):
        comparison.take()


def _is_alone() -> bool:
    """Return whether Python's own machinery imports modules, and no thread but this one runs a program."""
    this = threading.current_thread()
    others = (one for one in threading.enumerate() if one is not this)
    return (
        all(map(_is_known_finder, sys.meta_path))
        and all(_is_known_hook(getattr(one, "__module__", "")) for one in sys.path_hooks)
        and type(builtins.__import__) is types.BuiltinFunctionType
        and all(one.name.startswith(_OUR_THREADS) for one in others)
    )


def _is_known_finder(finder: Any) -> bool:
    kind = finder if isinstance(finder, type) else type(finder)
    return (kind.__module__, kind.__qualname__) in _FINDERS or kind.__module__.startswith(_EDITABLE)


def _is_known_hook(module: str) -> bool:
    return module in _PATH_HOOKS or module.startswith(_EDITABLE)


def _is_plain(name: str, module: Any, folders: tuple[str, ...]) -> bool:
    """Return whether Python itself loaded a module, from one of these folders or from nothing but its
    interpreter, or torch made it by itself."""
    names = getattr(module, "__dict__", {})
    spec, file = names.get("__spec__"), names.get("__file__")
    loader = getattr(spec, "loader", None)
    if file is not None and not file.startswith(folders):
        return False
    if loader is None:
        return name in _PARTS_OF_MODULES or name.startswith(_MADE_OTHERWISE)
    return loader in _LOADERS or type(loader) in _LOADERS
