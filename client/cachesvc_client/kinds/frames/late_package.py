"""Puts a package in its place whose own code runs when a name of it is asked for.

Its submodules can be imported before. Whoever imports the package, or reads a name of it, gets what the
ordinary import would have given.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from types import ModuleType
from typing import Any

_lock = threading.RLock()
"""Held while the code of a package runs: other threads wait for its names."""
_running: set[str] = set()
"""Names of packages whose code runs now."""


def put_late_package(name: str) -> None:
    """Put the package in its place, if there is one. Raises ``ImportError`` where its parent is missing."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        return
    package = importlib.util.module_from_spec(spec)
    package.__class__ = _LatePackage
    sys.modules[name] = package
    parent, _, attribute = name.rpartition(".")
    setattr(sys.modules[parent], attribute, package)


class _LatePackage(ModuleType):
    """Is a package whose own code has not run."""

    def __getattr__(self, name: str) -> Any:
        missing = AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if name.startswith("__") and name != "__all__":
            raise missing
        with _lock:
            if self.__name__ in _running:
                raise missing
            if type(self) is _LatePackage:
                _running.add(self.__name__)
                try:
                    self.__spec__.loader.exec_module(self)  # type: ignore[union-attr]
                    self.__class__ = ModuleType  # type: ignore[assignment]
                finally:
                    _running.discard(self.__name__)
        return getattr(self, name)
