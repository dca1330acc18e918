"""Compares the first output of a restored function with eager's beside the service: a sample's canary.

The first call keeps its inputs and outputs (`kept`), answers at once, and takes the canary out of the
function (`function_hook`). A thread compares later (`comparisons`, `side_run`). A wrong function runs eagerly
from then on, until Dynamo has compiled it again.

The module imports torch, so only the thread that compiles may import it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, Generic, TypeVar

from .comparisons import Comparisons
from .function_hook import FunctionHook
from .kept import KeptCall
from .operators import NotComparable, describe_difference
from .side_run import compare_kept
from .trial import copy_of

_log = logging.getLogger("cachesvc")

T = TypeVar("T")


class SideTrial(Generic[T]):
    """Judges the first output of one graph beside the service. The arguments are those of `Trial`.

    ``wrong`` and ``skipped`` are called on another thread, later; an error of ``wrong`` reaches no one.
    """

    def __init__(
        self,
        graph: Any,
        *,
        suspects: Callable[[], Sequence[T]],
        wrong: Callable[[Sequence[T], str], object],
        skipped: Callable[[str], None],
        called: Callable[[], None],
        comparisons: Comparisons,
    ) -> None:
        """Copy the graph with `copy_of`. To be called before the compile."""
        self._graph: Any = copy_of(graph)
        self._suspects, self._wrong, self._skipped, self._called = suspects, wrong, skipped, called
        self._comparisons = comparisons
        self._first = threading.Lock()
        self._hook: FunctionHook
        self.watches = False
        """Whether the compiled function was one that can be watched."""

    def watch(self, compiled: Any) -> Any:
        """Return ``compiled`` with its first call kept: the same object, with a hook in it."""
        if not isinstance(compiled, FunctionType):
            self._skipped(f"what was compiled is no function but {type(compiled).__name__}")
            return compiled
        try:
            self._hook = FunctionHook(compiled, self._call)
        except TypeError as error:
            self._skipped(str(error))
            return compiled
        # Until torch 2.10 Dynamo follows this mark of ``compiled`` to the function that it wraps, and calls
        # that one.
        vars(compiled).pop("_torchdynamo_orig_callable", None)
        self._hook.install()
        self.watches = True
        return compiled

    def _call(self, *args: Any, **options: Any) -> Any:
        """Run in the place of the function, until a first call has ended."""
        original = self._hook.original
        if not self._first.acquire(blocking=False):  # another thread makes the first call
            return original(*args, **options)
        call, suspects = self._keep(args)
        try:
            output = original(*args, **options)
        except BaseException:  # a call that raises has no first output
            if call is not None:
                call.release()
            self._first.release()
            raise
        self._hook.remove()
        graph, self._graph = self._graph, None
        if call is not None:
            self._note(call, graph, suspects, args, output)
        return output

    def _keep(self, args: tuple[Any, ...]) -> tuple[KeptCall | None, Sequence[T]]:
        """Keep the inputs of the first call; note why, where that is not possible. Never raises."""
        self._called()
        try:
            suspects = self._suspects()
            return (KeptCall(args, self._comparisons.room), suspects) if suspects else (None, ())
        except Exception as error:  # noqa: BLE001 - a canary that fails is no error of the service
            self._skipped(_reason(error))
            return None, ()

    def _note(
        self, call: KeptCall, graph: Any, suspects: Sequence[T], args: tuple[Any, ...], output: Any
    ) -> None:
        """Keep the output of the first call, and have it compared. Never raises."""
        try:
            call.note_output(args, output)
        except Exception as error:  # noqa: BLE001 - as above
            call.release()
            self._skipped(_reason(error))
            return
        judge = functools.partial(self._judge, graph, suspects)
        self._comparisons.add(_Waiting(call, graph, wrong=judge, skipped=self._skipped))

    def _judge(self, graph: Any, suspects: Sequence[T], why: str) -> None:
        """Let a wrong function run eagerly, and withdraw the suspects."""
        self._hook = FunctionHook(self._hook.function, graph)
        self._hook.install()
        self._wrong(suspects, why)


class _Waiting:
    """Is one call that waits for its comparison."""

    def __init__(
        self, call: KeptCall, graph: Any, *, wrong: Callable[[str], None], skipped: Callable[[str], None]
    ) -> None:
        self._call, self._graph, self._wrong, self._skipped = call, graph, wrong, skipped

    def run(self, check: Callable[[], None], gate: contextlib.AbstractContextManager[Any]) -> None:
        """Compare the call with eager."""
        try:
            comparison = compare_kept(self._graph, self._call, check=check, gate=gate)
        except NotComparable as reason:
            self.skip(str(reason))
            return
        finally:
            self._call.release()
        if comparison.note:
            self._skipped(comparison.note)
        elif not comparison.passed:
            self._wrong(describe_difference(comparison))
        else:
            _log.debug("canary: a first output agrees with eager")

    def skip(self, why: str) -> None:
        """Drop what was kept."""
        self._call.release()
        self._skipped(why)


def _reason(error: Exception) -> str:
    """Return why something was not compared, as one line."""
    if isinstance(error, NotComparable):
        return str(error)
    _log.debug("canary", exc_info=error)
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
