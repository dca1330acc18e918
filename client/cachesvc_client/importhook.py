"""Run something when a module has been imported, without importing it.

The compilers are imported by the application, on its own threads, when it likes. A background
thread that imports torch beside it deadlocks, and importing it in ``attach`` would cost seconds. So
hooks wait here: the module's own loader is kept (only its ``exec_module`` is shadowed on the
instance, for the one call), and a callback that fails is logged, never raised into the import.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

_log = logging.getLogger("cachesvc")
_lock = threading.RLock()
_waiting: dict[str, list[Callable[[ModuleType], None]]] = {}
_beginning: dict[str, Callable[[], None]] = {}
_late: set[str] = set()
"""Registered while their import was under way: it may have begun unseen."""


def when_imported(name: str, callback: Callable[[ModuleType], None]) -> None:
    """Calls ``callback(module)`` once: now if ``name`` is imported and complete, else right after.

    If its import began before anybody registered, it is called when the next import of anything begins.
    Never imports anything and never raises. The order of callbacks is the order of registration.
    """
    with _lock:
        module = sys.modules.get(name)
        if module is None or _initialising(module):
            _waiting.setdefault(name, []).append(callback)
            if module is not None:
                _late.add(name)
            if _FINDER not in sys.meta_path:
                sys.meta_path.insert(0, _FINDER)
            if module is None or _initialising(module):
                return
            callbacks = _waiting.pop(name, [])
        else:
            callbacks = [callback]
    _run(callbacks, module)


def when_importing(name: str, callback: Callable[[], None]) -> None:
    """Calls ``callback()`` once, when the import of ``name`` begins; now if it is under way or over."""
    with _lock:
        if name not in sys.modules:
            _beginning[name] = callback
            if _FINDER not in sys.meta_path:
                sys.meta_path.insert(0, _FINDER)
            return
    callback()


def wrap(module: ModuleType, path: str, around: Callable[[Any], Any]) -> bool:
    """Replaces ``module.<path>`` (``function`` or ``Class.attribute``) by ``around(original)``.

    Static and class methods keep their kind. Wrapping twice with the same ``around`` is done once.
    Answers whether the name was there: private names move between versions, and a missing one is for
    the caller to judge.
    """
    owner: Any = module
    *parents, attribute = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent, None)
    plain = vars(owner).get(attribute) if owner is not None else None
    if plain is None:
        return False
    kind = type(plain) if isinstance(plain, (staticmethod, classmethod)) else None
    original = plain.__func__ if kind else plain
    if around in getattr(original, "_cachesvc_wrapped_by", ()):
        return True
    replacement = around(original)
    replacement._cachesvc_wrapped_by = (*getattr(original, "_cachesvc_wrapped_by", ()), around)
    setattr(owner, attribute, kind(replacement) if kind else replacement)
    return True


class _Finder:
    """Finds nothing by itself: asks the other finders, and shadows the loader that they answer.

    No subclass of ``importlib.abc.MetaPathFinder``: that import alone costs as much as all of ours.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if _late:
            _run_late()
        begin = _beginning.pop(fullname, None)
        if begin is not None:
            _run_one(begin, fullname)
        if fullname not in _waiting:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(fullname, path, target)
            if spec is not None:
                _shadow(fullname, spec.loader)
                return spec
        return None


_FINDER = _Finder()


def _run_late() -> None:
    for name in list(_late):
        module = sys.modules.get(name)
        if module is None or not _initialising(module):
            _late.discard(name)
        if module is not None and not _initialising(module):
            with _lock:
                callbacks = _waiting.pop(name, [])
            _run(callbacks, module)


def _shadow(name: str, loader: Any) -> None:
    original = getattr(loader, "exec_module", None)
    if original is None or getattr(original, "cachesvc_name", None) == name:
        return
    if isinstance(loader, type):
        _log.debug("cannot watch the import of %s: one class loads all built-in modules", name)
        return

    def exec_module(module: ModuleType) -> None:
        if module.__name__ != name:  # one loader for many modules, such as a zip archive's
            original(module)
            return
        vars(loader).pop("exec_module", None)
        original(module)
        with _lock:
            callbacks = _waiting.pop(name, [])
        _run(callbacks, module)

    exec_module.cachesvc_name = name  # type: ignore[attr-defined]
    try:
        loader.exec_module = exec_module
    except (AttributeError, TypeError):
        _log.debug("cannot watch the import of %s: its loader takes no attributes", name)


def _initialising(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _run(callbacks: Sequence[Callable[[ModuleType], None]], module: ModuleType) -> None:
    for callback in callbacks:
        _run_one(functools.partial(callback, module), module.__name__)


def _run_one(callback: Callable[[], None], name: str) -> None:
    try:
        callback()
    except Exception:  # noqa: BLE001 - the import must go on, whatever a hook does
        _log.warning("a hook on %s failed; cachesvc stays out of it", name, exc_info=True)
