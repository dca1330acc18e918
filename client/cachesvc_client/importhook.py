"""Puts hooks into modules when they have been imported, without importing them, and takes them out again.

The compilers are imported by the application, on its own threads, when it likes. A background
thread that imports torch beside it deadlocks, and importing it in ``attach`` would cost seconds. So
hooks wait here: the module's own loader is kept (only its ``exec_module`` is shadowed on the
instance, for the one call), and a callback that fails is logged, never raised into the import.

A hook never breaks what it hooks, whatever that is in another version: `hook` and `chain` pass all arguments
through, and an error of ours is logged while the original runs, once. `disarm` takes all hooks out.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
_undo: list[Callable[[], None]] = []
"""What `disarm` calls, last first."""
_generation = 0
"""How often `disarm` was called. A hook of an earlier generation passes everything through."""
_running = threading.local()
"""``generation``: that of the callback which runs on this thread now."""

Errors = tuple[type[Exception], ...]


class Call:
    """One call of a function that is hooked. Calling this object runs the original, at most once: a second
    time answers, or raises, what the first one did. ``error``: what the original raised."""

    __slots__ = ("_answer", "_over", "args", "error", "kwargs", "original")

    def __init__(
        self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self.original, self.args, self.kwargs = original, args, kwargs
        self.error: BaseException | None = None
        self._answer: Any = None
        self._over = False

    def __call__(self) -> Any:
        if not self._over:
            self._over = True
            try:
                self._answer = self.original(*self.args, **self.kwargs)
            except BaseException as error:
                self.error = error
                raise
        if self.error is not None:
            raise self.error
        return self._answer

    def argument(self, name: str) -> Any:
        """Answers the argument of the original's parameter ``name``. Raises what says that there is none."""
        import inspect

        return inspect.signature(self.original).bind(*self.args, **self.kwargs).arguments[name]


Body = Callable[[Call], Any]
"""What runs in the place of a hooked function. It calls its argument for the original's answer, and answers
that or another one. An error of its own is logged, and the original answers instead."""


def when_imported(name: str, callback: Callable[[ModuleType], None]) -> None:
    """Calls ``callback(module)`` once: now if ``name`` is imported and complete, else right after.

    If its import began before anybody registered, it is called when the next import of anything begins.
    Never imports anything and never raises. The order of callbacks is the order of registration.
    """
    with _lock:
        callback = functools.partial(_in_generation, _now(), callback)
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


def hook(module: ModuleType, path: str, body: Body, *, reaches: Errors = ()) -> bool:
    """Runs ``body`` in the place of ``module.<path>``, as `wrap` finds it.

    ``reaches``: errors of the body that are meant for the caller. Answers whether the name was there.
    """
    return wrap(module, path, _Guarded(body, reaches))


def chain(owner: Any, attribute: str, ours: Callable[..., Any], *, reaches: Errors = ()) -> None:
    """Makes a callback that ``owner`` keeps as an attribute call ``ours`` first, and then what was there."""
    previous = getattr(owner, attribute, None)
    guarded = callback(ours, reaches=reaches)

    def chained(*args: Any, **kwargs: Any) -> Any:
        guarded(*args, **kwargs)
        return previous(*args, **kwargs) if previous is not None else None

    _replace(owner, attribute, previous, chained)


def callback(ours: Callable[..., Any], *, reaches: Errors = ()) -> Callable[..., None]:
    """Answers a function for others to call, with whatever arguments: it passes them to ``ours`` and raises
    nothing but ``reaches``. After `disarm` it does nothing."""

    def no_more(*_: Any, **__: Any) -> None:
        return None

    def body(call: Call) -> None:
        ours(*call.args, **call.kwargs)

    return _Guarded(body, reaches)(no_more)


def wrap(module: ModuleType, path: str, around: Callable[[Any], Any]) -> bool:
    """Replaces ``module.<path>`` (``function`` or ``Class.attribute``) by ``around(original)``.

    Static and class methods keep their kind. Wrapping twice with the same ``around`` is done once.
    Answers whether the name was there: private names move between versions, and a missing one is for
    the caller to judge. For `hook`, which also catches what ours raises.
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
    done: tuple[Any, ...] = getattr(original, "_cachesvc_wrapped_by", ())
    mark = (_now(), around)
    if mark in done:
        return True
    replacement = around(original)
    replacement._cachesvc_wrapped_by = (*done, mark)
    _replace(owner, attribute, plain, kind(replacement) if kind else replacement)
    return True


def on_disarm(undo: Callable[[], None]) -> None:
    """Has ``undo()`` called by the next `disarm`; now if what runs was registered before the last one."""
    with _lock:
        if _now() == _generation:
            _undo.append(undo)
            return
    undo()


def disarm() -> None:
    """Takes out every hook, and what still waits for an import. Never raises.

    An attribute gets its original back unless somebody has wrapped our hook since: then the hook stays and
    passes everything through. The finder stays where it is, and finds nothing to do: a list that another
    thread's import walks through must not become shorter.
    """
    global _generation
    with _lock:
        _generation += 1
        _waiting.clear()
        _beginning.clear()
        _late.clear()
        undo, _undo[:] = _undo[::-1], []
        for step in undo:
            _run_one(step, "disarm")


@dataclass(frozen=True)
class _Guarded:
    """Makes of a function one that runs ``body`` in its place, and cannot fail for a reason of ours."""

    body: Body
    reaches: Errors

    def __call__(self, original: Callable[..., Any]) -> Callable[..., Any]:
        body, reaches, generation = self.body, self.reaches, _now()

        @functools.wraps(original)
        def hooked(*args: Any, **kwargs: Any) -> Any:
            if generation != _generation:
                return original(*args, **kwargs)
            call = Call(original, args, kwargs)
            try:
                return _answer(call, body, reaches)
            finally:
                call.error = None  # its traceback holds this frame: no cycle that keeps a graph alive

        return hooked


def _answer(call: Call, body: Body, reaches: Errors) -> Any:
    try:
        answer = body(call)
        if call.error is None:
            return answer
    except reaches:
        raise
    except Exception:  # noqa: BLE001 - the original's own error is raised below, ours never
        if call.error is None:
            name = getattr(call.original, "__qualname__", call.original)
            _log.debug("a hook on %s failed; cachesvc stays out of it", name, exc_info=True)
    return call()


def _replace(owner: Any, attribute: str, before: Any, after: Any) -> None:
    """Sets the attribute, until `disarm`; not at all if that was called since what runs was registered."""
    with _lock:
        if _now() != _generation:
            return
        setattr(owner, attribute, after)
        _undo.append(functools.partial(_restore, owner, attribute, before, after))


def _restore(owner: Any, attribute: str, before: Any, after: Any) -> None:
    if vars(owner).get(attribute) is after:
        setattr(owner, attribute, before)


def _now() -> int:
    """The generation of what is put in now: while a callback runs, that of its registration."""
    return int(getattr(_running, "generation", _generation))


def _in_generation(generation: int, callback: Callable[[ModuleType], None], module: ModuleType) -> None:
    if generation != _generation:
        return
    before = vars(_running).get("generation")
    _running.generation = generation
    try:
        callback(module)
    finally:
        if before is None:
            del _running.generation
        else:
            _running.generation = before


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
    except Exception as error:  # noqa: BLE001 - the import must go on, whatever a hook does
        what = f"{type(error).__name__}: {error}"
        _log.warning("a hook on %s failed; cachesvc stays out of it: %s", name, what)
        _log.debug("a hook on %s failed", name, exc_info=True)
