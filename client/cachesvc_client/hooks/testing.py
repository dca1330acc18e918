"""Put hooks in place in a torch that the hooks were not made for. Only tests import this module."""

from __future__ import annotations

import functools
import inspect
import logging
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import imports


class ChangedHooks:
    """Changes the hooks that are put in place from now on, and records the outcome.

    ``how``: *absent*: the hooked names are not there when the hooks are put in. *raises-before*,
    *raises-after*: each hook raises, before or after it has run the original. *parameters*: each hooked
    function has one more parameter, and its callers pass it. *none*: no change."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.names: set[str] = set()
        """The names that the client tried to hook."""
        self.calls: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.warnings: list[str] = []
        self._wrap, self._guarded, self._callback = imports.wrap, imports._Guarded, imports.callback
        changes: dict[str, Any] = {
            "absent": self._absent,
            "parameters": self._with_parameter,
            "none": self._wrap,
        }
        self._changed = changes.get(how, self._raising)
        imports.wrap = self._wrap_changed
        if how.startswith("raises"):
            imports.callback = self._failing  # type: ignore[assignment]
        logging.getLogger("cachesvc").setLevel(logging.DEBUG)
        logging.getLogger("cachesvc").addHandler(_Log(self))

    def end(self) -> None:
        """Stop changing: later hooks are put in place as they are."""
        imports.wrap, imports.callback = self._wrap, self._callback

    def _wrap_changed(self, module: ModuleType | type, path: str, around: Any) -> bool:
        try:
            functools.reduce(getattr, path.split("."), module)
        except AttributeError:
            return False  # The name is absent in this torch.
        self.names.add(f"{module.__name__}.{path}")
        return bool(self._changed(module, path, around))

    def _absent(self, module: ModuleType, path: str, around: Any) -> bool:
        """Hide the name while the client looks for it; torch itself goes on with it."""
        *parents, attribute = path.split(".")
        owner: Any = functools.reduce(getattr, parents, module)
        value = vars(owner)[attribute]
        delattr(owner, attribute)
        try:
            return self._wrap(module, path, around)
        finally:
            setattr(owner, attribute, value)

    def _raising(self, module: ModuleType, path: str, around: Any) -> bool:
        """Put in a hook that raises, in place of the hook that the client passes."""

        def body(call: imports.Call) -> None:
            self.calls[f"{module.__name__}.{path}"] += 1
            if self.how == "raises-after":
                call()
            raise RuntimeError("ours")

        return self._wrap(module, path, self._guarded(body, around.reaches))

    def _failing(self, _ours: object, *, reaches: imports.Errors = ()) -> Callable[..., None]:
        """Make a callback that raises."""

        def fails(*_: object, **__: object) -> None:
            self.calls["callback"] += 1
            raise RuntimeError("ours")

        return self._callback(fails, reaches=reaches)

    def _with_parameter(self, module: ModuleType, path: str, around: Any) -> bool:
        """Put the hook between a function with one more parameter and callers that pass the parameter."""
        longer = functools.partial(self._longer, f"{module.__name__}.{path}")
        if not self._wrap(module, path, longer):
            return False
        return self._wrap(module, path, around) and self._wrap(module, path, _giving)

    def _longer(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """Add a parameter without a default."""

        @functools.wraps(original)
        def function(*args: Any, another: int, **kwargs: Any) -> Any:
            self.calls[name] += another
            return original(*args, **kwargs)

        signature = inspect.signature(original)
        parameters = [one for one in signature.parameters.values() if one.name != "another"]
        place = len(parameters) - bool(parameters and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD)
        parameters.insert(place, inspect.Parameter("another", inspect.Parameter.KEYWORD_ONLY))
        vars(function)["__signature__"] = signature.replace(parameters=parameters)
        return function


def _giving(original: Callable[..., Any]) -> Callable[..., Any]:
    """Pass the parameter, as torch's own callers would."""

    @functools.wraps(original)
    def caller(*args: Any, **kwargs: Any) -> Any:
        return original(*args, another=1, **kwargs)

    return caller


class _Log(logging.Handler):
    def __init__(self, changed: ChangedHooks) -> None:
        super().__init__()
        self._changed = changed

    def emit(self, record: logging.LogRecord) -> None:
        if "cachesvc stays out of it" in record.getMessage():
            self._changed.failures[str(record.args[0] if isinstance(record.args, tuple) else "")] += 1
        elif record.levelno >= logging.WARNING:
            self._changed.warnings.append(record.getMessage())
