"""Takes the first calls of one function object, and takes itself out of it again.

Callers keep the object that they have: Python lets the code of a function object be replaced. While the hook
is in it, the object runs a few bytes of code that call the hook. Afterwards it runs its own code, and a call
costs what it cost before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any


class FunctionHook:
    """Has ``body(*args, **options)`` called in the place of a function, from ``install`` to ``remove``.

    ``function`` is the function object; ``original`` is the function as it was, which the body may call.
    """

    def __init__(self, function: FunctionType, body: Callable[..., Any]) -> None:
        """Raise ``TypeError`` for a function that cannot be hooked: it has default values, or it is no
        closure, so that it may serve several graphs."""
        if not function.__closure__ or function.__defaults__ or function.__kwdefaults__:
            raise TypeError("what was compiled is no closure without default values")
        self.function, self._body = function, body
        self.original = FunctionType(
            function.__code__, function.__globals__, function.__name__, None, function.__closure__
        )

    def install(self) -> None:
        """Put the hook in place. Threads that are in the function go on there."""
        # In this order: the code of the hook needs the value.
        self.function.__kwdefaults__ = {"_cachesvc_body": self._body}
        self.function.__code__ = _code(len(self.function.__code__.co_freevars))

    def remove(self) -> None:
        """Take the hook out, and drop what it holds. A thread that is about to call the hook still does."""
        self.function.__code__ = self.original.__code__
        self.function.__kwdefaults__ = None


@functools.cache
def _code(cells: int) -> CodeType:
    """Return the code that calls a hook, for a function object with a number of cells: Python demands that
    both have equally many."""
    names = ", ".join(f"cell{number}" for number in range(cells))
    scope: dict[str, Any] = {}
    exec(
        f"def outer({names}):\n"
        " def hooked(*args, _cachesvc_body, **options):\n"
        "  return _cachesvc_body(*args, **options)\n"
        f"  ({names},)\n"
        " return hooked\n",
        scope,
    )
    code: CodeType = scope["outer"](*range(cells)).__code__
    return code
