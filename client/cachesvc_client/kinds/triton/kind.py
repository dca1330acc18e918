"""Owns the kind `triton` and its state in one process."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...hooks import imports
from ...hooks.table import Hook
from ...wire.errors import CacheSvcError, printable
from ..kind import Activity, KeyUses, Kind, KindFolder, KindState, ProcessCallbacks, RestoredFacts
from ..own_place import default_folder
from ..rules import is_newer
from . import key
from .prebuilt import helper_request
from .rules import RULES
from .versions import HELPER_BUILDERS

if TYPE_CHECKING:
    from ...hooks.counters import Observation
    from ...wire.digest import Digest
    from ...wire.requests.reports import KindWork

_COMPILED = Hook(
    "triton.knobs",
    "compilation.listener",
    "records the kernels that this process compiled or found in the folder",
    "no kernel that the application launches itself is captured",
    role="gpu",
)
_LOOKED_UP = Hook(
    "triton.knobs",
    "runtime.jit_cache_hook",
    "waits for the restore before the first kernel that the application launches itself",
    "such a kernel may be compiled before its entry is restored",
    role="gpu",
)
_HELPERS = tuple(
    Hook(
        module,
        function,
        "loads the driver's helper library of an entry, and records one that is built",
        "the driver's helper library is built with gcc in every fresh folder",
        since,
        until,
        role="gpu",
    )
    for module, function, since, until in HELPER_BUILDERS
)
_AUTOTUNER, _TUNES, _NAMES_FOLDER = (
    Hook(
        "triton.runtime.autotuner",
        path,
        f"{purpose} the timings of triton.autotune",
        "kernels of the application under triton.autotune may be tuned again",
        since,
        role="gpu",
    )
    for path, purpose, since in (
        ("Autotuner.__init__", "keeps", ""),
        ("Autotuner.check_disk_cache", "waits for and records", ""),
        ("get_cache_manager", "finds the folder of", "3.5"),
    )
)


_NEVER_KEPT = "Triton keeps no timings of a kernel with a hook in a configuration, or without a tuning key"
_OTHER_TIMINGS = "no restored timings are for its code, its configurations and these arguments"


class _Keys(KeyUses):
    """Triton's keys of the kernels and libraries of a process."""

    def __init__(self, state: TritonState) -> None:
        self._state = state

    def used(self) -> set[str]:
        """Return the names of their folders."""
        return {folder.name for folder in list(self._state.folders)}


class TritonState(KindState):
    """The kernels that this process compiled or loaded outside of Inductor's workers, and the host libraries
    and timings that belong to them."""

    def __init__(self) -> None:
        self.folders: set[Path] = set()
        """The absolute folders of those kernels and libraries, one for each key."""
        self._made: dict[Path, int] = {}
        """Those among them whose files this process compiled, and when they were there (`time.time_ns`)."""
        self.keys = _Keys(self)
        self._key = key.TritonKey()
        self._root: Path | None = None
        self._timings: dict[int, Path] = {}
        """The folder of timings that a thread asked for last."""
        self._tuned: dict[tuple[str, str], None] = {}
        """The kernels that ``triton.autotune`` tuned here, with the reason."""
        self._opened: Callable[[], None] = lambda: None

    def use_folder(self, root: Path) -> None:
        """Note the folder that has restored libraries, and to which built ones are copied."""
        self._root = root

    def install_hooks(self, callbacks: ProcessCallbacks) -> None:
        """Put the hooks in place; they wait for the import of Triton.

        The process waits for the restore before the first look-up of a kernel that is launched without
        Inductor, and of the driver's helper: a kernel's first launch needs the helper before the kernel.
        """
        self._opened = callbacks.opened
        _COMPILED.chain(self._record_compiled)

        def look_up(**event: Any) -> None:
            callbacks.before_compile()
            callbacks.launched(event)

        _LOOKED_UP.chain(look_up, reaches=(CacheSvcError,))

        def build(call: imports.Call) -> Any:
            callbacks.before_compile()
            return self._load_helper(call)

        for helper in _HELPERS:
            # One function under two names: where the first was wrapped in time, the second changes nothing.
            # Triton 3.8 has the first name too and calls the third from it, which finds the library loaded.
            helper.install(build, reaches=(CacheSvcError,))
        _AUTOTUNER.install(_keep_timings)

        def tune(call: imports.Call) -> Any:
            callbacks.before_compile()
            return self._record_timings(call)

        _TUNES.install(callbacks.noting(tune), reaches=(CacheSvcError,))
        _NAMES_FOLDER.install(self._name_folder)
        self._key.install_hooks()

    def forget(self, paths: Collection[str], keys: Collection[str]) -> None:
        """Treat kernels and libraries of these paths or keys as never used."""
        names = {path.partition("/")[0] for path in paths}.union(keys)
        self.folders = {folder for folder in self.folders if folder.name not in names}
        self._made = {folder: at for folder, at in self._made.items() if folder in self.folders}

    def used_files(self, root: Path, *, left: bool = False) -> set[str]:
        """Return the paths of every file of those kernels and libraries."""
        return _files_of(self.folders, root)

    def made_files(self, root: Path) -> Mapping[str, Digest | None]:
        """Return the files of the kernels and libraries that were compiled here and not found, if nobody
        changed them since."""
        return {
            path: None
            for folder, at in list(self._made.items())
            for path in _files_of([folder], root)
            if not is_newer(root / path, at)
        }

    def activity(self) -> Activity:
        """Return how many kernels and libraries were compiled or loaded."""
        return Activity(len(self.folders), opened=bool(self.folders))

    def _record_compiled(self, **event: Any) -> None:
        folders = {Path(path).parent for path in (event.get("metadata_group") or {}).values()}
        self.folders |= folders
        if event.get("cache_hit") is False:
            self._made.update(dict.fromkeys(folders, time.time_ns()))
        self._opened()

    def explain(self, restored: RestoredFacts) -> Iterable[str]:
        """Yield why ``triton.autotune`` tuned a kernel here."""
        if restored.revisions:
            for name, reason in list(self._tuned):
                yield f"triton.autotune tuned {printable(name)[:100]} here: {reason}"

    def _name_folder(self, call: imports.Call) -> Any:
        manager = call()
        if folder := getattr(manager, "cache_dir", None):
            self._timings[threading.get_ident()] = Path(folder)
        return manager

    def _record_timings(self, call: imports.Call) -> Any:
        """Run Triton's look-up of timings, which measures where it finds none, and note the file's folder."""
        self._timings.pop(threading.get_ident(), None)
        found = call()
        folder = self._timings.pop(threading.get_ident(), None)
        if folder is not None:
            self.folders.add(folder)
        if found is False:
            if folder is not None:
                self._made[folder] = time.time_ns()
            reason = _NEVER_KEPT if folder is None else _OTHER_TIMINGS
            self._tuned[_kernel_name(call.args[0]), reason] = None
        return found

    def _load_helper(self, call: imports.Call) -> Any:
        """Run in the place of Triton's function that builds a host library.

        Triton's answer is the loaded module, or the library's path where the caller asks for that.
        """
        request = helper_request(call)
        library = request.answer(self._root) if request else None
        began = None
        if library is None:
            began = time.time_ns()
            library = call()
        path = library if isinstance(library, str) else getattr(library, "__file__", None)
        if path:
            kept, is_made = Path(path), began is not None and is_newer(Path(path), began)
            if is_made and request:
                kept = request.keep(kept, self._root)
            self.folders.add(kept.parent)
            if is_made:
                self._made[kept.parent] = time.time_ns()
        return library


def _files_of(folders: Collection[Path], root: Path) -> set[str]:
    """Return the paths of all files in those of the folders that lie in ``root``."""
    return {
        f"{folder.name}/{file.name}"
        for folder in list(folders)
        if folder.parent == root and folder.is_dir()
        for file in os.scandir(folder)
        if file.is_file()
    }


def _keep_timings(call: imports.Call) -> None:
    """Have a user's ``triton.autotune`` keep its timings in the cache folder, as TRITON_CACHE_AUTOTUNING=1
    does, so that they travel; that variable decides if it is set. Triton's key of the timings holds sources,
    target, configurations and the tuning key."""
    call()
    autotuner = call.args[0]
    if "TRITON_CACHE_AUTOTUNING" not in os.environ and hasattr(autotuner, "cache_results"):
        autotuner.cache_results = os.environ.get("TRITON_INTERPRET", "0") != "1"


def _kernel_name(autotuner: Any) -> str:
    """Return the name of the function that an ``Autotuner`` tunes."""
    return str(getattr(getattr(autotuner, "base_fn", None), "__name__", "a kernel"))


def _user_folder(named: Path, earlier: Mapping[str, Path]) -> Path | None:
    """Inductor sets the variable to a folder in its own, when it first compiles a kernel."""
    by_inductor = not earlier and named.parent == default_folder() / "triton"
    return None if by_inductor else named


def _work(observed: Observation, compile_seconds: float) -> KindWork:
    from ...wire.requests.reports import KindWork

    kernels = observed.torch.triton_compilations + observed.torch.worker_jobs
    return KindWork(kernels, 0, round(observed.seconds.get("triton_compilations", 0.0), 3))


KIND = Kind(
    rules=RULES,
    start=TritonState,
    # One folder serves all devices, since the device is not in Triton's keys.
    folder=KindFolder("TRITON_CACHE_DIR", home="inside", place="triton/0", named=_user_folder),
    hooks=(_COMPILED, _LOOKED_UP, *_HELPERS, _AUTOTUNER, _TUNES, _NAMES_FOLDER, *key.HOOKS),
    work=_work,
    distributions=("triton", "pytorch-triton", "pytorch-triton-rocm"),
)
