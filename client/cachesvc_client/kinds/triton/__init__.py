"""The kind `triton`: Triton's cache folder.

``TRITON_CACHE_DIR``, by default ``~/.triton/cache``; Inductor points it at ``<inductor>/triton/<device>``.
Layout, read in Triton 3.6::

    <KEY>/<kernel>.{ttir,ttgir,llir,ptx,cubin,json,...}    immutable
    <KEY>/__grp__<kernel>.json                             {"child_paths": {name: absolute path}}
    <KEY>/cuda_utils.<abi>.so                              the driver's helper, built with gcc once per host
    <KEY>/__triton_launcher.<abi>.so                       one per signature that is launched without Inductor
    <KEY>/<kernel>.autotune.json                           timings of ``triton.autotune``, see below

KEY is a hash in base32. Of a kernel it holds Triton's sources, the kernel's, the target and the options;
of a helper only its C source and the platform's name (``triton/runtime/build.py``), not the C library, which
is a factor of its own. Nothing is built for the host's CPU (no ``-march``). Inductor launches most kernels
without a launcher of Triton's; those whose name is longer than the 150 letters of a file name need one.

The group files hold absolute paths, so a moved folder is a miss (docs/pytorch.md, 3): they
travel with a placeholder. The key is in the paths' last two parts, whatever the folder was called.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any, cast

from ...hooks import imports
from ...wire.errors import CacheSvcError
from ..rules import FileRule, KindRules

_log = logging.getLogger("cachesvc")

NAME = "triton"
VARIABLE = "TRITON_CACHE_DIR"
PLACEHOLDER = "{cachesvc:triton}"


def _portable(data: bytes, root: Path) -> bytes:
    """A group file with a placeholder for the folder; one that is none is left as it is."""
    del root
    try:
        group = json.loads(data)
        paths = {name: PurePosixPath(path) for name, path in group["child_paths"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return data
    mapped = {name: "/".join((PLACEHOLDER, *path.parts[-2:])) for name, path in paths.items()}
    return json.dumps({**group, "child_paths": mapped}).encode()


def _local(data: bytes, root: Path) -> bytes:
    """The inverse. Raises ``ValueError`` for anything but paths of this kind below the placeholder: Triton
    opens what a group file names."""
    try:
        group = json.loads(data)
        children = dict(group["child_paths"])
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"no group file of Triton's: {type(error).__name__}") from None
    for name, path in children.items():
        place, _, rest = str(path).partition("/")
        if place != PLACEHOLDER or RULES.rule(rest) is None:
            raise ValueError(f"names {str(path)[:120]!r}, which is no file of this kind")
        children[name] = str(root / rest)
    return json.dumps({**group, "child_paths": children}).encode()


_KEY = r"[A-Z2-7]{20,64}"
RULES = KindRules(
    NAME,
    (
        FileRule(
            re.compile(_KEY + r"/__grp__[A-Za-z0-9_.+-]{1,200}\.json"),
            portable=_portable,
            local=_local,
            last=True,
        ),
        FileRule(
            re.compile(
                _KEY + r"/[A-Za-z0-9_][A-Za-z0-9_.+-]{0,200}"
                r"\.(json|ttir|ttgir|llir|ptx|cubin|hsaco|amdgcn|source|so)"
            )
        ),
    ),
)


class UsedFiles:
    """The kernels that this process compiled or loaded outside of Inductor's workers, and the host
    libraries that go with them."""

    def __init__(self) -> None:
        self.folders: set[Path] = set()

    def paths(self, root: Path) -> set[str]:
        """Relative paths of every file of those kernels under ``root``."""
        found: set[str] = set()
        for folder in list(self.folders):
            if folder.parent == root and folder.is_dir():
                found.update(f"{folder.name}/{entry.name}" for entry in os.scandir(folder) if entry.is_file())
        return found


Launched = Callable[[Mapping[str, Any]], None]
"""Takes what Triton says of a kernel that is launched without Inductor."""


def install_hooks(
    recorded: UsedFiles, before_compile: Callable[[], None], launched: Launched = lambda _: None
) -> None:
    """Puts the hooks in place when the application imports Triton. Safe to call again.

    ``before_compile`` runs before the first look-up of a kernel that is launched without Inductor, and of
    the driver's helper: a kernel's first launch needs that one before it comes to its own. ``launched`` takes
    the event of each such look-up, and must not raise.
    """
    imports.when_imported("triton.knobs", functools.partial(_hook_knobs, recorded, before_compile, launched))
    build = functools.partial(_build, recorded, before_compile)
    for module in ("triton.runtime.build", "triton.backends.nvidia.driver"):
        # The second has the function by name; where the first was hooked in time this changes nothing.
        imports.when_imported(module, functools.partial(_hook_build, build))
    imports.when_imported("triton.runtime.autotuner", _hook_autotuner)
    imports.when_imported("torch._inductor.runtime.triton_heuristics", _settle_ptxas)
    imports.when_imported("triton.runtime.cache", _hook_key)
    imports.when_imported("triton", _begin_key)


class _Key:
    """Triton's key, computed once: who asks while it is being computed waits for it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.compute: Callable[[], Any] | None = None
        os.register_at_fork(after_in_child=self._after_fork)

    def triton_key(self, call: imports.Call) -> Any:
        """Runs in the place of Triton's, which keeps its answer."""
        with self.lock:
            return call()

    def _after_fork(self) -> None:
        self.lock = threading.Lock()


_key = _Key()


def _hook_key(module: ModuleType) -> None:
    if not hasattr(getattr(module, "triton_key", None), "cache_info"):
        _log.debug("this Triton has no triton_key that keeps its answer: it is computed when it is asked for")
    elif imports.hook(module, "triton_key", _key.triton_key):
        _key.compute = module.triton_key


def _begin_key(package: ModuleType) -> None:
    """Computes Triton's key on a thread of its own as soon as Triton is there.

    Every key of PyTorch's holds it. Nearly all of it is one digest over a library of up to 500 MB, for which
    the interpreter is free: 0.3 s of the first call otherwise. Not where its walk over Triton's packages
    would import one: a thread that imports beside the application can deadlock it.
    """
    compute = _key.compute
    if compute is None or not all(_imported(f"{package.__name__}.{part}") for part in _WALKED):
        return

    def ahead() -> None:
        try:
            compute()
        except Exception:  # noqa: BLE001 - who asks for it is told
            _log.debug("Triton's key could not be computed ahead", exc_info=True)

    threading.Thread(target=ahead, name="cachesvc-triton-key", daemon=True).start()


_WALKED = ("compiler", "backends", "language")
"""Where ``triton_key`` walks (3.6, 3.9)."""


def _imported(package: str) -> bool:
    """Whether it and all packages below it are, so that a walk over them imports nothing."""
    import pkgutil

    module = sys.modules.get(package)
    return module is not None and all(
        _imported(item.name) for item in pkgutil.iter_modules(module.__path__, f"{package}.") if item.ispkg
    )


def _settle_ptxas(heuristics: ModuleType) -> None:
    """Inductor's kernels are named after Inductor's own ptxas, whatever comes first in a process.

    Triton's key holds the version of ptxas, asked once per process; PyTorch names another ptxas than Triton's
    (``TRITON_PTXAS_PATH``), but only on its way to the first kernel that it compiles from source (2.11:
    ``compile_tasks._set_triton_ptxas_path``). A process that asked before, for a winner that is loaded or a
    kernel launched eagerly, looks for all kernels under other keys than the compile workers gave them, and
    compiles them again. What the user set stays.
    """
    del heuristics
    from torch._inductor.runtime import compile_tasks

    before = os.environ.get("TRITON_PTXAS_PATH")
    compile_tasks._set_triton_ptxas_path()
    nvidia = sys.modules.get("triton.backends.nvidia.compiler")
    if nvidia is not None and os.environ.get("TRITON_PTXAS_PATH") != before:
        nvidia.get_ptxas_version.cache_clear()


def _hook_knobs(
    recorded: UsedFiles, before_compile: Callable[[], None], launched: Launched, knobs: ModuleType
) -> None:
    compilation, runtime = getattr(knobs, "compilation", None), getattr(knobs, "runtime", None)
    if compilation is not None:
        imports.chain(compilation, "listener", functools.partial(_compiled, recorded))
    if runtime is not None and hasattr(runtime, "jit_cache_hook"):
        ours = functools.partial(_looked_up, before_compile, launched)
        imports.chain(runtime, "jit_cache_hook", ours, reaches=(CacheSvcError,))


def _compiled(recorded: UsedFiles, **event: Any) -> None:
    for path in (event.get("metadata_group") or {}).values():
        recorded.folders.add(Path(path).parent)


def _looked_up(before_compile: Callable[[], None], launched: Launched, **event: Any) -> None:
    before_compile()
    launched(event)


def _hook_build(build: imports.Body, module: ModuleType) -> None:
    if not imports.hook(module, "compile_module_from_src", build, reaches=(CacheSvcError,)):
        _log.debug("%s has no compile_module_from_src: host libraries may be built here", module.__name__)


def _build(recorded: UsedFiles, before_compile: Callable[[], None], call: imports.Call) -> Any:
    before_compile()
    module = _prebuilt(call.argument("src"), call.argument("name")) or call()
    if path := getattr(module, "__file__", None):
        recorded.folders.add(Path(path).parent)
    return module


_ARCHITECTURES = (("64bit", "ELF"), ("64bit", ""))
"""What ``platform.architecture()`` answers on Linux with and without the program ``file``."""


def _prebuilt(src: str, name: str) -> ModuleType | None:
    """The host library of this source, if it is in the cache folder under the name that Triton gives it here
    or on a host with more or fewer programs.

    Triton's name holds what ``platform.architecture()`` says, which asks the program ``file``: a slim image
    without it would look elsewhere than its builder, and run gcc.
    """
    import hashlib
    import platform
    import sysconfig

    try:
        from triton import knobs
        from triton.runtime import build, cache

        if knobs.cache.manager_class not in (None, cache.FileCacheManager):
            return None
        for architecture in _ARCHITECTURES:
            there = ",".join((platform.machine(), platform.system(), *architecture))
            folder = cache._base32(hashlib.sha256((src + there).encode()).hexdigest())
            path = Path(knobs.cache.dir, folder, name + str(sysconfig.get_config_var("EXT_SUFFIX")))
            if path.is_file():
                return cast(ModuleType, build._load_module_from_path(name, str(path)))
    except Exception:  # noqa: BLE001 - Triton looks and builds by itself
        _log.debug("%s: left to Triton", name, exc_info=True)
    return None


def _hook_autotuner(module: ModuleType) -> None:
    if not imports.hook(module, "Autotuner.__init__", _keep_timings):
        _log.debug("this Triton has no Autotuner: user kernels under triton.autotune may tune again")


def _keep_timings(call: imports.Call) -> None:
    """Has a user's ``triton.autotune`` keep its timings in the cache folder, as TRITON_CACHE_AUTOTUNING=1 has
    it, so that they travel; that variable decides if it is set. Its key holds sources, target,
    configurations and the tuning key."""
    call()
    autotuner = call.args[0]
    if "TRITON_CACHE_AUTOTUNING" not in os.environ and hasattr(autotuner, "cache_results"):
        autotuner.cache_results = os.environ.get("TRITON_INTERPRET", "0") != "1"
