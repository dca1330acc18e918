"""Repeats in PyTorch's own folder what failed in a folder of cachesvc's.

A folder that could be used at the start may fail later: it is full, read-only, gone, or its server does not
answer. PyTorch would not have failed in its own place, so a service must not see that error. What fails here
is done once more there, and the process stays there if that helps. If it does not help, the error is the
program's own, and everything is as before.

`attach` imports this module on the application's own thread. The module imports nothing of the compilers.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..hooks import imports
from ..hooks.table import Hook
from ..wire.errors import CacheSvcError

if TYPE_CHECKING:
    from .folders import Folders

_log = logging.getLogger("cachesvc")
_FAILS = "what fails in a folder of cachesvc's fails the service, though it would not in PyTorch's own folder"


def _hook(module: str, path: str, purpose: str, since: str = "") -> Hook:
    return Hook(module, path, purpose, _FAILS, since, role="speed")


_BACKWARD = _hook(
    "torch._inductor.compile_fx", "_compile_fx_inner", "repeats the compile of a backward graph that failed"
)
_CALLS = (
    _hook(
        "torch._inductor.runtime.cache_dir_utils", "cache_dir", "leaves a folder that cannot be made again"
    ),
    _hook("torch._dynamo.pgo", "get_local_code_state", "repeats a read of profiles that failed", "2.9"),
    _hook("torch._dynamo.pgo", "put_local_code_state", "repeats a write of profiles that failed"),
)
_DRY_COMPILE = _hook(
    "torch._inductor.cpu_vec_isa", "VecISA.check_build", "repeats a trial of instructions that failed"
)
HOOKS = (_BACKWARD, *_CALLS, _DRY_COMPILE)

_COMPILER = frozenset({"CppCompileError", "SubprocessError", "UnpicklingError"})
"""Names of errors of a compiler process, and of files that are not whole, whose modules are not imported
here."""
_FILES = (OSError, ImportError, EOFError, NotImplementedError)
"""Errors of the file system, the loader and locks. ``NotImplementedError``: a lock where there is none."""


class OwnPlace:
    """Repeats calls of PyTorch's in PyTorch's own folder, and leaves the folders of this process for it."""

    def __init__(self, folders: Callable[[], Folders], *, is_unfit: Callable[[Path], bool]) -> None:
        """Take what returns the folders, and what tells whether nothing can be made in one now."""
        self._folders, self._is_unfit = folders, is_unfit
        self._lock = threading.Lock()
        self._trials = 0
        """How many calls are repeated now."""
        self._come_back: Callable[[], None] = lambda: None
        self._stays = False
        """Whether a repeated call did not fail, so that this process stays in PyTorch's own folder."""

    def install_hooks(self, compiling: Callable[[], bool]) -> None:
        """Put the hooks in place. ``compiling``: whether this thread is inside of ``compile_fx``, which is
        repeated as a whole."""

        def backward(call: imports.Call) -> Any:
            return call() if compiling() else self.run(call, changes_graph=True)

        _BACKWARD.install(backward)
        for hook in _CALLS:
            hook.install(self.run)
        _DRY_COMPILE.install(self._dry_compile)

    def run(self, call: imports.Call, changes_graph: bool = False) -> Any:
        """Run a call, and once more in PyTorch's own folder if it fails for the sake of ours.

        ``changes_graph``: its first argument is a graph that it changes, so a copy is kept for the repeat."""
        folder = self._folders().own()
        before = _copied(call.args) if changes_graph and folder is not None else None
        try:
            return call()
        except Exception as error:
            if folder is None or not self._may_be_of(error, folder):
                raise
            return self._repeat(call, folder, error, before)

    def _dry_compile(self, call: imports.Call) -> Any:
        """Run a trial, whose errors PyTorch takes for instructions that the CPU lacks."""
        folder = self._folders().own()
        passed = self.run(call)
        if passed or folder is None or self._folders().own() is None or not self._is_unfit(folder):
            return passed
        return self._repeat(call, folder, OSError("a trial compile failed"))

    def _may_be_of(self, error: BaseException, folder: Path) -> bool:
        """Return whether an error may come from the folder: it is one of files, compilers or the loader, or
        the folder does not pass its probe now."""
        chain = list(_chain(error))
        if any(isinstance(each, CacheSvcError) for each in chain):
            return False  # CACHESVC_STRICT asks for it
        for each in chain:
            names = {parent.__name__ for parent in type(each).__mro__}
            if isinstance(each, _FILES) or names & _COMPILER:
                return True
        return self._is_unfit(folder)

    def _repeat(
        self, call: imports.Call, folder: Path, error: Exception, args: tuple[Any, ...] | None = None
    ) -> Any:
        what = _in_words(error)
        with self._lock:
            if not self._stays and self._trials == 0:
                self._come_back = self._folders().step_aside(f"{folder} failed: {what}")
            self._trials += 1
        done = False
        try:
            _forget_paths()
            answer = call.again(args)
            done = True
        finally:
            with self._lock:
                self._trials -= 1
                says = done and not self._stays
                self._stays |= done
                if not self._stays and self._trials == 0:
                    self._come_back()
        if says:
            _log.warning(
                "%s cannot be used any more (%s): PyTorch goes on in its own folder, and what failed was "
                "done again there",
                folder,
                what,
            )
        return answer


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, and those that it was raised for: PyTorch wraps what a compiler raises."""
    waiting, seen = [error], set()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        inner = (getattr(each, "inner_exception", None), each.__cause__, each.__context__)
        waiting += [one for one in inner if isinstance(one, BaseException)]


def _in_words(error: Exception) -> str:
    """Return the first line of the innermost error."""
    from ..wire.errors import printable

    inner: BaseException = error
    while isinstance(one := getattr(inner, "inner_exception", None), BaseException):
        inner = one
    lines = str(inner).strip().splitlines()
    return printable(f"{type(inner).__name__}: {lines[0] if lines else ''}"[:200])


def _forget_paths() -> None:
    """Have Inductor forget the code in its memory, which remembers paths of the folder that failed."""
    with suppress(Exception):  # another release: then a path that is remembered fails again
        from torch._inductor.utils import clear_caches

        clear_caches()


def _copied(args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return the arguments with a copy of the first one, a graph; ``None`` if it cannot be copied."""
    try:
        import copy

        from torch.fx import GraphModule

        graph = args[0]
        return (GraphModule(graph, copy.deepcopy(graph.graph)), *args[1:])
    except Exception:  # noqa: BLE001 - the graph itself is compiled again then
        _log.debug("a graph is not copied", exc_info=True)
        return None


def default_folder() -> Path:
    """Return ``torch._inductor.runtime.cache_dir_utils.default_cache_dir``: by PyTorch where it is loaded,
    else by the rule of the releases from 2.13 on. Earlier ones fail for a user without a name."""
    import getpass
    import tempfile

    if (rule := sys.modules.get("torch._inductor.runtime.cache_dir_utils")) is not None:
        with suppress(Exception):
            return Path(rule.default_cache_dir())
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        user = f"uid_{os.getuid()}"
    return Path(tempfile.gettempdir()) / ("torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user))
