"""Puts hooks into modules after their import, without importing them, and takes the hooks out again.

The application imports the compilers on its own threads, at any moment. A background thread that imports
torch at the same time deadlocks, and an import of torch in ``attach`` would cost seconds. So hooks wait here
for the application's import. The module keeps its own loader: only the loader's ``exec_module`` is replaced
on the instance, for one call. A callback that fails is logged, and raises nothing into the import.

A hook never breaks the function that it hooks, in whatever version: `hook` and `chain` pass all arguments
through, and an error of a hook is logged while the original runs, once. `disarm` takes all hooks out.
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
"""Callbacks that wait for the end of an import, by module."""
_beginning: dict[str, Callable[[], None]] = {}
"""Callbacks that wait for the beginning of an import, by module."""
_executing: dict[str, list[Callable[[], None]]] = {}
"""Callbacks that run whenever the body of a module is about to run, by module."""
_late: set[str] = set()
"""Modules that were registered while their import was under way, which may have begun unseen."""
_undo: list[Callable[[], None]] = []
"""Functions that `disarm` calls, the last one first."""
_generation = 0
"""Number of calls of `disarm`. A hook of an earlier generation passes everything through."""
_running = threading.local()
"""``generation`` of the callback that runs on this thread now."""

Errors = tuple[type[Exception], ...]


class Call:
    """Holds one call of a hooked function.

    Calling this object runs the original, at most once: a second call returns or raises the same again. Only
    `again` runs it a second time.
    ``error``: the error that the original raised.
    """

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

    def again(self, args: tuple[Any, ...] | None = None) -> Any:
        """Runs the original once more, after it raised: what it does now takes the place of its error.
        ``args``: arguments by position, if not those of the first run."""
        self.args = self.args if args is None else args
        self._over, self.error = False, None
        return self()

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments by the names of the original's parameters. Raises an error if the call does not fit
        the original."""
        import inspect

        return inspect.signature(self.original).bind(*self.args, **self.kwargs).arguments

    def argument(self, name: str) -> Any:
        """Returns the argument for the original's parameter ``name``. Raises an error if there is none."""
        return self.arguments[name]

    def set_argument(self, name: str, value: Any) -> None:
        """Has the original get another value for its parameter ``name``. Raises an error if the call does not
        fit the original."""
        import inspect

        bound = inspect.signature(self.original).bind(*self.args, **self.kwargs)
        bound.arguments[name] = value
        self.args, self.kwargs = bound.args, bound.kwargs


Body = Callable[[Call], Any]
"""Runs in the place of a hooked function. It calls its argument for the original's result, and returns that
or another result. An error of its own is logged, and the original's result is returned."""


def when_imported(name: str, callback: Callable[[ModuleType], None]) -> None:
    """Calls ``callback(module)`` once: now if ``name`` is imported and complete, else right after.

    If the import of ``name`` began before the first registration, the callback is called when the next import
    of any module begins. Never imports anything and never raises. Callbacks are called in the order of their
    registration.
    """
    with _lock:
        callback = functools.partial(_in_generation, _current_generation(), callback)
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


def around_body(name: str, *, before: Callable[[], None], after: Callable[[ModuleType], None]) -> None:
    """Calls ``before()`` each time that the body of ``name`` is about to run, and ``after(module)`` at its
    end, before any other callback; ``after`` is not called if the body raises an error. Calls neither for a
    module that is imported already."""
    if name not in sys.modules:
        _executing.setdefault(name, []).append(before)
        when_imported(name, after)


def hook(module: ModuleType | type, path: str, body: Body, *, reaches: Errors = ()) -> bool:
    """Runs ``body`` in the place of ``module.<path>``, as `wrap` finds it.

    ``reaches``: errors of the body that are meant for the caller. Returns whether the name exists.
    """
    return wrap(module, path, _Guarded(body, reaches))


def chain(owner: Any, attribute: str, function: Callable[..., Any], *, reaches: Errors = ()) -> None:
    """Has ``function`` called before the callback that is in an attribute of ``owner``."""
    previous = getattr(owner, attribute, None)
    guarded = callback(function, reaches=reaches)

    def chained(*args: Any, **kwargs: Any) -> Any:
        guarded(*args, **kwargs)
        return previous(*args, **kwargs) if previous is not None else None

    _replace(owner, attribute, previous, chained)


def callback(function: Callable[..., Any], *, reaches: Errors = ()) -> Callable[..., None]:
    """Returns a function that passes its arguments to ``function`` and raises nothing but ``reaches``.

    After `disarm` the function does nothing.
    """

    def no_more(*_: Any, **__: Any) -> None:
        return None

    def body(call: Call) -> None:
        function(*call.args, **call.kwargs)

    return _Guarded(body, reaches)(no_more)


def wrap(module: ModuleType | type, path: str, around: Callable[[Any], Any]) -> bool:
    """Replaces ``module.<path>`` (``function`` or ``Class.attribute``) by ``around(original)``.

    Static and class methods stay static and class methods. A second wrap with the same ``around`` changes
    nothing. Returns whether the name exists: private names move between versions, and the caller judges a
    missing one. `hook` calls this function, and catches the errors of the wrapper too.
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
    marks: tuple[Any, ...] = getattr(original, "_cachesvc_wrapped_by", ())
    mark = (_current_generation(), around)
    if mark in marks:
        return True
    replacement = around(original)
    replacement._cachesvc_wrapped_by = (*marks, mark)
    _replace(owner, attribute, plain, kind(replacement) if kind else replacement)
    return True


def on_disarm(undo: Callable[[], None]) -> None:
    """Has the next `disarm` call ``undo()``; calls it now in a callback of an earlier generation."""
    with _lock:
        if _current_generation() == _generation:
            _undo.append(undo)
            return
    undo()


def disarm() -> None:
    """Takes out every hook, and every callback that waits for an import. Never raises.

    An attribute gets its original back, unless other code has wrapped the hook: then the hook stays and
    passes everything through. The finder stays in ``sys.meta_path`` and does nothing: another thread's import
    may walk through that list, so the list must not become shorter.
    """
    global _generation
    with _lock:
        _generation += 1
        _waiting.clear()
        _beginning.clear()
        _executing.clear()
        _late.clear()
        undo, _undo[:] = _undo[::-1], []
        for step in undo:
            _run_one(step, "disarm")


@dataclass(frozen=True)
class _Guarded:
    """Replaces a function by one that runs ``body``, and that cannot fail for a reason of cachesvc's."""

    body: Body
    reaches: Errors

    def __call__(self, original: Callable[..., Any]) -> Callable[..., Any]:
        body, reaches, generation = self.body, self.reaches, _current_generation()

        @functools.wraps(original)
        def hooked(*args: Any, **kwargs: Any) -> Any:
            if generation != _generation:
                return original(*args, **kwargs)
            call = Call(original, args, kwargs)
            try:
                return _answer(call, body, reaches)
            finally:
                call.error = None  # its traceback refers to this frame: the cycle would keep a graph alive

        return hooked


def _answer(call: Call, body: Body, reaches: Errors) -> Any:
    try:
        answer = body(call)
        if call.error is None:
            return answer
    except reaches:
        raise
    except Exception:  # noqa: BLE001 - the original's error is raised below, an error of a hook never
        if call.error is None:
            name = getattr(call.original, "__qualname__", call.original)
            _log.debug("a hook on %s failed; cachesvc stays out of it", name, exc_info=True)
    return call()


def _replace(owner: Any, attribute: str, before: Any, after: Any) -> None:
    """Sets the attribute until `disarm`; does nothing if the running callback is of an earlier generation."""
    with _lock:
        if _current_generation() != _generation:
            return
        setattr(owner, attribute, after)
        _undo.append(functools.partial(_restore, owner, attribute, before, after))


def _restore(owner: Any, attribute: str, before: Any, after: Any) -> None:
    if vars(owner).get(attribute) is after:
        setattr(owner, attribute, before)


def _current_generation() -> int:
    """Returns the generation of a new hook: while a callback runs, the generation of its registration."""
    return int(getattr(_running, "generation", _generation))


def _in_generation(generation: int, callback: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Calls the callback, unless `disarm` was called since its registration."""
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
    """Asks the other finders for a module, and shadows the loader that they return; finds nothing by itself.

    It is no subclass of ``importlib.abc.MetaPathFinder``, whose import costs as much as this module.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns another finder's spec for a module that callbacks wait for; else ``None``."""
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
    """Calls the callbacks of modules whose import had begun before their registration, and is over."""
    for name in list(_late):
        module = sys.modules.get(name)
        if module is None or not _initialising(module):
            _late.discard(name)
        if module is not None and not _initialising(module):
            with _lock:
                callbacks = _waiting.pop(name, [])
            _run(callbacks, module)


def _shadow(name: str, loader: Any) -> None:
    """Has the loader call the callbacks after it has executed the module ``name``."""
    original = getattr(loader, "exec_module", None)
    if original is None or getattr(original, "cachesvc_name", None) == name:
        return
    if isinstance(loader, type):
        _log.debug("cannot watch the import of %s: one class loads all built-in modules", name)
        return

    def exec_module(module: ModuleType) -> None:
        if module.__name__ != name:  # one loader may serve many modules, such as a zip archive's
            original(module)
            return
        vars(loader).pop("exec_module", None)
        for before in _executing.get(name, ()):
            _run_one(before, name)
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
