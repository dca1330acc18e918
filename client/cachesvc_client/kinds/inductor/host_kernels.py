"""Serves C++ kernels for the host's CPU above the build, so that no compiler is needed to find one.

PyTorch's own key of a CPU kernel holds the whole compiler command line (include paths of the virtual
environment, compiler version, results of ISA probes), and making it starts processes; a host without a
compiler cannot even make it. Here the key is what the caller of ``load_async`` passes (class, sources,
device, flags) with the C++ configuration. Everything that makes the machine code fit or not is in the
folder's name, a digest of the host factors. Only folders that were accepted are looked at: this host's own,
and those of installed entries, which passed ``compare``.
"""

from __future__ import annotations

import functools
import logging
import operator
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...hooks import imports
from ...wire.errors import printable
from ..kind import ProcessCallbacks
from ..rules import HOST_FOLDER, host_id, is_newer
from .rules import RULES
from .settings import switched_off
from .used_files import UsedFiles
from .versions import HOST_KERNEL_PARAMETERS

if TYPE_CHECKING:
    from ...wire.factors import Fingerprint

_log = logging.getLogger("cachesvc")


class HostKernels:
    """Loads host kernels from the accepted folders, and records those that PyTorch built or loaded."""

    def __init__(self, used: UsedFiles) -> None:
        self.host = ""
        """The name of this host's folder, for what is built here; empty before the environment is known."""
        self.loads = 0
        """How many kernels were loaded instead of built."""
        self.seconds = 0.0
        """Seconds spent in `kernel_key` and in look-ups: cachesvc's, not PyTorch's."""
        self.beyond = ""
        """Why a kernel that was compiled here may use instructions that the process's level lacks; empty if
        none does. It is not kept in a process without a level."""
        self._isa: str | None = None
        """The instruction set of this host's folder."""
        self._level: frozenset[str] | None = None
        """The flags of what is built for the process's level; ``None`` without one."""
        self._used = used
        self._folders: list[Path] = []
        self._loaded: dict[str, Callable[[], Any]] = {}
        self._lock = threading.Lock()

    def set_environment(self, fingerprint: Fingerprint) -> None:
        """Name this host, so that the kernels that it builds can be captured."""
        from ...environment import march  # `attach` loads nothing that the detection alone needs

        self.host = host_id(fingerprint)
        self._isa = None if (isa := fingerprint.get("cpu_isa")) is None else str(isa)
        self._level = march.host_flags(march.for_level(fingerprint)) if march.level_of(fingerprint) else None

    def accept(self, folder: Path) -> None:
        """Allow kernels to be loaded from ``folder``."""
        with self._lock:
            if folder not in self._folders:
                self._folders.append(folder)

    def refuse_all(self) -> None:
        """Allow no kernel to be loaded from the folders that were accepted so far."""
        with self._lock:
            self._folders.clear()

    def forget_loaded(self) -> None:
        """Forget the kernels that were loaded, as PyTorch does in ``fresh_cache``."""
        with self._lock:
            self._loaded.clear()

    def load_async(self, callbacks: ProcessCallbacks, call: imports.Call) -> Any:
        """Run in the place of ``CppCodeCache.load_async``; any doubt falls through to the original."""
        from ...environment.cpu import other_isa

        begin = time.perf_counter()
        if switched_off() == "force_disable_caches" or self._used.left():
            return call()
        key = kernel_key(call.args[0], call.args[1:], call.kwargs, other_isa(self._isa))
        path = self._find(key)
        self.seconds += time.perf_counter() - begin
        if path is None:
            answer = self._record_load(key, time.time_ns(), call())
            self._note_options(call)
            return answer
        build = functools.partial(call.original, *call.args, **call.kwargs)
        return self._load(callbacks, call.args[0], key, path, build)

    def _note_options(self, call: imports.Call) -> None:
        """Note what PyTorch compiles with in a process that compiles for a level."""
        if self._level is not None and not self.beyond:
            from .build_options import unknown_options

            try:
                self.beyond = unknown_options(call.arguments.get("extra_flags", ()), self._level)
            except Exception as error:  # noqa: BLE001 - what is not known is beyond the level
                self.beyond = f"the options of a compile are not known: {type(error).__name__}"

    def _find(self, key: str) -> Path | None:
        from ..whole_library import is_whole

        paths = (folder / f"{key}.so" for folder in self._folders)
        return next((path for path in paths if is_whole(path)), None)

    def _load(
        self, callbacks: ProcessCallbacks, cls: Any, key: str, path: Path, build: Callable[[], Any]
    ) -> Callable[[], Any]:
        """Return a function that loads the kernel once, as PyTorch keeps it by key and calls it often."""

        place = f"{HOST_FOLDER}/{path.parent.name}/{path.name}"

        def load() -> Any:
            try:
                with callbacks.files.loading(RULES.name, place):
                    library = cls._load_library(str(path), key)
            except Exception as error:  # noqa: BLE001 - what cannot be loaded is built
                what = printable(str(error))  # the loader's words, with names of symbols of the file
                _log.warning("host kernel %s does not load (%s): building it here", path.name, what)
                return build()()
            self.loads += 1
            self._used.kernels[place] = path
            self._used.loaded.add(place)
            return library

        with self._lock:
            return self._loaded.setdefault(f"{cls.__name__}:{key}", functools.cache(load))

    def _record_load(self, key: str, began: int, produce: Any) -> Any:
        """Return PyTorch's own function that loads a kernel, with a record of the file that it loads.

        ``began``: when PyTorch was asked for it. A file that is older was found, and not built.
        """
        if not callable(produce):
            return produce
        record = imports.callback(functools.partial(self._record, key, began))

        def load() -> Any:
            library = produce()
            record(library)
            return library

        return load

    def _record(self, key: str, began: int, library: Any) -> None:
        path = getattr(library, "_name", None) or getattr(library, "__file__", None)
        if path and self.host:
            place = f"{HOST_FOLDER}/{self.host}/{key}.so"
            self._used.kernels[place] = Path(path)
            if is_newer(Path(path), began):
                from ...wire.digest import Digest

                self._used.built[place] = Digest.of(Path(path).read_bytes())


def accepted_folders(root: Path, paths: Collection[str]) -> set[Path]:
    """Return the folders of host kernels among installed paths."""
    kernels = [path for path in paths if path.startswith(HOST_FOLDER + "/") and RULES.rule(path) is not None]
    return {root / Path(path).parent for path in kernels}


def _hexdigest(value: Any) -> str:
    from ...wire.codec import canonical
    from ...wire.digest import Digest

    return Digest.of(canonical(value)).hex


def kernel_key(cls: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], isa: str = "") -> str:
    """Return 64 hex digits over what decides a host kernel's machine code, apart from the host itself.

    Takes the arguments of ``cls.load_async``. Raises for anything that has no stable text, and for a
    parameter that `versions` does not know: it may decide the code too. ``isa``: the instruction set that
    PyTorch picks now, if it is not that of the folder.
    """
    import inspect

    import torch
    from torch._inductor import config

    arguments = dict(inspect.signature(cls.load_async).bind(*args, **kwargs).arguments)
    if unknown := arguments.keys() - HOST_KERNEL_PARAMETERS.keys():
        raise ValueError(f"load_async has parameters that are not known: {', '.join(sorted(unknown))}")
    arguments.pop("submit_fn", None)
    arguments["extra_flags"] = list(arguments.get("extra_flags", ()))
    settings = {name: repr(operator.attrgetter(name)(config)) for name in _setting_names()}
    facts = {
        "class": cls.__qualname__,
        "given": arguments,
        "flags": {name: repr(value) for name, value in cls.cpp_compile_command_flags.items()},
        "settings": settings,
        "torch": torch.__version__,
        "capability": isa,
    }
    return _hexdigest(facts)


@functools.cache
def _setting_names() -> tuple[str, ...]:
    """Return the names of Inductor's settings that decide how a host kernel is compiled.

    PyTorch copies all settings to list them, in more than a millisecond, and a model has dozens of kernels.
    """
    from torch._inductor import config

    return tuple(name for name in config.get_config_copy() if name.startswith(("cpp.", "aot_inductor.debug")))
