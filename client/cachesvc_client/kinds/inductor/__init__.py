"""The kind `inductor`: TorchInductor's and AOTAutograd's cache folder.

All private PyTorch knowledge of this kind is here and in `hooks.counters`. Read in torch 2.13 and 2.11, run
with 2.13 (CPU) and 2.11 (H200). The folder (``TORCHINDUCTOR_CACHE_DIR``)::

    fxgraph/<k1k2>/<key>/<sha of content>     pickle, immutable: named by its content
    aotautograd/<key>/<sha of content>        pickle, immutable: named by its content
    <xx>/<hash>.best_config                   JSON, a tuning result; local wins
    cache/<system hash>                       JSON, max-autotune choices; union, local wins
    <xx>/<hash>.picked_kernel                 a number, the choice of a multi-kernel; local wins
    cachesvc/<host>/<key>.so                  ours: host kernels, see `HostKernels`

What else lies there (``.py``, ``.cpp``, locks, PyTorch's own ``.so``) is made again from these or is
not needed (docs/pytorch.md, 3).
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ...hooks import imports
from ..rules import FileRule, KindRules
from . import tuning

if TYPE_CHECKING:
    from ...wire.factors import Fingerprint

_log = logging.getLogger("cachesvc")

NAME = "inductor"
VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
HOST_FOLDER = "cachesvc"
GRAPH_FOLDERS = ("fxgraph", "aotautograd")
"""Compiled graphs: what `warm` drops to have them made again with tuned configurations."""


def _join_json(local: bytes, incoming: bytes) -> bytes:
    """The union of two JSON objects, deeply; on a conflict the local value stays. A local file that
    is no JSON object is kept as it is."""
    try:
        mine, theirs = json.loads(local), json.loads(incoming)
    except ValueError:
        return local
    return json.dumps(_union(mine, theirs)).encode() if isinstance(mine, dict) else local


def _union(mine: Any, theirs: Any) -> Any:
    if not isinstance(mine, dict) or not isinstance(theirs, dict):
        return mine
    return {**theirs, **{key: _union(value, theirs.get(key, value)) for key, value in mine.items()}}


_OWN = re.compile(r"0x[0-9a-f]+|^os\.environ\[.*$", re.MULTILINE)
"""What a process puts of itself into a graph entry: addresses, and its variables, in a program kept for
debugging (``torch/_dynamo/debug_utils.py``, ``generate_env_vars_string``)."""


def _texts(entry: bytes) -> bytes:
    """The texts of a graph entry without those of its process: sources and guards. Nothing is unpickled.

    Entries of one key differ by their guards, and else by the seconds that the compile took and by what is
    kept for debugging (seen with 2.13).
    """
    import pickletools

    try:
        found = [_OWN.sub("", arg) for _, arg, _ in pickletools.genops(entry) if isinstance(arg, str)]
    except Exception as error:  # noqa: BLE001 - whatever its bytes make of the reader
        raise ValueError(f"no pickle: {type(error).__name__}") from None
    return json.dumps(found).encode()


RULES = KindRules(
    NAME,
    (
        # Last: a graph that is hit without its kernels compiles them one by one, which is slower than a miss.
        FileRule(
            re.compile(r"fxgraph/[a-z0-9]{2}/f[a-z0-9]{20,80}/[a-z0-9]{20,80}"), last=True, alike=_texts
        ),
        FileRule(re.compile(r"aotautograd/a[a-z0-9]{20,80}/[a-z0-9]{20,80}"), last=True, alike=_texts),
        FileRule(re.compile(HOST_FOLDER + r"/[0-9a-f]{16}/[0-9a-f]{64}\.so"), write="ours"),
        FileRule(re.compile(r"[a-z0-9]{2}/[a-z0-9_]{20,120}\.best_config"), write="merge", merge=_join_json),
        FileRule(re.compile(r"cache/[0-9a-f]{40,64}"), write="merge", merge=_join_json),
        FileRule(re.compile(r"[a-z0-9]{2}/c[a-z0-9]{20,80}\.picked_kernel")),
    ),
)


_LIMITS = {
    "graphsafe_run_with_rng_state": "gradient checkpointing on a GPU with its random state kept, which "
    "torch 2.13 caches (pytorch#185562)",
    "freezing": "graphs with frozen weights hold them: compile without freezing",
}
"""What PyTorch's reason for not caching a graph holds -> what it means to who reads it."""


def uncached(why: str) -> str:
    """Says why PyTorch caches a graph nowhere, in its words (`hooks.counters.Observation.bypassed`), and what
    that means where it is known."""
    known = next((meaning for mark, meaning in _LIMITS.items() if mark in why), "")
    return f"PyTorch does not cache a graph of this model: {why}" + (f": {known}" if known else "")


class UsedFiles:
    """What this process produced or used of the kind. ``kernels``: relative path -> where it lies.

    Filled by the hooks on the compile thread, so it only appends; the paths are worked out when asked.
    """

    def __init__(self) -> None:
        self._artifacts: list[tuple[str, str, bytes]] = []
        self.kernels: dict[str, Path] = {}

    def __len__(self) -> int:
        """Records so far."""
        return len(self._artifacts)

    def artifact(self, kind: str, key: str, content: Any) -> None:
        """A record of PyTorch's own, as `CacheArtifactManager.record_artifact` reports it on a save
        and on a hit."""
        if kind in ("inductor", "aot_autograd") and isinstance(content, bytes):
            self._artifacts.append((kind, key, content))
        elif kind == "autotune":
            self._artifacts.append((kind, key, b""))

    def keys(self, since: int = 0) -> set[str]:
        """The FX and AOT keys that were saved or hit, but for the first ``since`` records."""
        return {key for _, key, _ in self._artifacts[since:]}

    def forget(self, paths: set[str], keys: set[str]) -> None:
        """As if host kernels of these paths and records of these keys had not been used: they are wrong, and
        not to be captured."""
        self._artifacts = [record for record in self._artifacts if record[1] not in keys]
        self.kernels = {path: source for path, source in self.kernels.items() if path not in paths}

    def paths(self, root: Path, copied: bool = True) -> set[str]:
        """Their paths relative to the folder ``root``. Host kernels that were built here lie under PyTorch's
        own names: they are ``copied`` to ours (whole, by rename) first, but not into a folder that this
        process has left, since others may use it."""
        from torch._inductor.codecache import sha256_hash

        found = set()
        for kind, key, content in list(self._artifacts):
            if kind == "autotune":
                found.add(key)
            elif kind == "inductor":
                found.add(f"fxgraph/{key[1:3]}/{key}/{sha256_hash(content)}")
            else:
                found.add(f"aotautograd/{key}/{sha256_hash(content)}")
        for path, source in list(self.kernels.items()) if copied else ():
            _copy_whole(source, root / path)
            found.add(path)
        return found


def _copy_whole(source: Path, target: Path) -> None:
    if target.exists():
        return
    import shutil

    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{os.urandom(8).hex()}.tmp")
    try:
        shutil.copyfile(source, partial)
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


class HostKernels:
    """Serves C++ kernels above the build.

    PyTorch's own key of a CPU kernel holds the whole compiler command line (include paths of the
    virtual environment, compiler version, results of ISA probes), and making it starts processes; a
    host without a compiler cannot even ask. Here the key is what the caller of ``load_async`` gives
    (class, sources, device, flags) with the C++ configuration. Everything that makes the machine code
    fit or not is in the folder's name, a digest of the host factors, and only folders that were
    accepted (this host's own, and those of installed entries, which passed ``compare``) are looked at.
    """

    def __init__(self) -> None:
        self._folders: list[Path] = []
        self.host = ""
        """Names this host: the folder of what is built here. Empty before `own`."""
        self._loaded: dict[str, Callable[[], Any]] = {}
        self._lock = threading.Lock()
        self.hits = 0
        self.seconds = 0.0
        """Spent in `kernel_key` and the look-ups: ours, not PyTorch's."""
        self.recorded = UsedFiles()

    def accept(self, folder: Path) -> None:
        """Kernels may be loaded from ``folder`` from now on."""
        with self._lock:
            if folder not in self._folders:
                self._folders.append(folder)

    def refuse(self) -> None:
        """No kernel may be loaded from the folders that were accepted so far."""
        with self._lock:
            self._folders.clear()

    def own(self, fingerprint: Fingerprint) -> None:
        """Names this host, so that what it builds can be captured."""
        self.host = host_id(fingerprint)

    def load_async(self, call: imports.Call) -> Any:
        """Runs in the place of ``CppCodeCache.load_async``; any doubt falls through to the original."""
        begin = time.perf_counter()
        if switched_off() == "force_disable_caches":
            return call()
        key = kernel_key(call.args[0], call.args[1:], call.kwargs)
        path = self._find(key)
        self.seconds += time.perf_counter() - begin
        if path is None:
            return self._recording(key, call())
        build = functools.partial(call.original, *call.args, **call.kwargs)
        return self._loading(call.args[0], key, path, build)

    def _find(self, key: str) -> Path | None:
        return next((path for folder in self._folders if (path := folder / f"{key}.so").is_file()), None)

    def _loading(self, cls: Any, key: str, path: Path, build: Callable[[], Any]) -> Callable[[], Any]:
        """PyTorch memoises per key and calls the result often: so does this."""

        def load() -> Any:
            try:
                library = cls._load_library(str(path), key)
            except Exception as error:  # noqa: BLE001 - what cannot be loaded is built
                _log.warning("host kernel %s does not load (%s): building it here", path.name, error)
                return build()()
            self.hits += 1
            self.recorded.kernels[f"{HOST_FOLDER}/{path.parent.name}/{path.name}"] = path
            return library

        with self._lock:
            return self._loaded.setdefault(f"{cls.__name__}:{key}", functools.cache(load))

    def _recording(self, key: str, produce: Any) -> Any:
        if not callable(produce):
            return produce
        record = imports.callback(functools.partial(self._record, key))

        def load() -> Any:
            library = produce()
            record(library)
            return library

        return load

    def _record(self, key: str, library: Any) -> None:
        path = getattr(library, "_name", None) or getattr(library, "__file__", None)
        if path and self.host:
            self.recorded.kernels[f"{HOST_FOLDER}/{self.host}/{key}.so"] = Path(path)

    def clear(self) -> None:
        """Forgets loaded kernels, as PyTorch does in `fresh_cache`."""
        with self._lock:
            self._loaded.clear()


def forget_compiled(why: str) -> None:
    """Makes every compiled function of this process compile again at its next call, and lets Inductor
    forget the code that it has in memory. For the process that restored wrong code.

    May be called inside of a compiled function, where ``torch._dynamo.reset()`` would free what runs:
    entries are invalidated one by one as Dynamo does when a guarded object dies, at any time
    (``CheckFunctionManager.invalidate``, torch/_dynamo/guards.py); functions keep their other state.
    Raises whatever a torch that moved these names raises.
    """
    from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list
    from torch._dynamo import convert_frame, guards
    from torch._inductor.utils import clear_caches

    with convert_frame.compile_lock:
        for seen in (convert_frame.input_codes.seen, convert_frame.output_codes.seen):
            for code in [reference() for reference in seen]:
                for entry in _debug_get_cache_entry_list(code) if code is not None else ():
                    state = getattr(entry.guard_manager, "extra_state", None)
                    if state is not None:
                        state.invalidate(entry, guards.DeletedGuardManagerWrapper(why))
        clear_caches()


def switched_off() -> str:
    """Which setting keeps PyTorch from its own caches in this process, or nothing. Imports nothing."""
    settings = sys.modules.get("torch._inductor.config")
    if settings is None:
        return ""
    if settings.force_disable_caches:
        return "force_disable_caches"
    return "" if settings.fx_graph_cache else "fx_graph_cache=False"


def host_id(fingerprint: Fingerprint) -> str:
    """16 hex digits that stand for the host factors of a fingerprint: the folder of its kernels."""
    host = {
        name: fingerprint.get(name) for name in ("platform", "cpu_isa", "cpu_flags", "cxx", "libc", "torch")
    }
    return _hexdigest(host)[:16]


def _hexdigest(value: Any) -> str:
    from ...wire.codec import canonical
    from ...wire.digest import Digest

    return Digest.of(canonical(value)).hex


_KEY_PARAMETERS = frozenset(
    {"main_code", "device_type", "submit_fn", "extra_flags", "optimized_code"}
    | {"needs_vec_isa", "kernel_needs_vec_isa"}
)
"""What ``load_async`` takes in torch 2.8 to 2.15; 2.13 added the last two."""


def kernel_key(cls: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Answers 64 hex digits over what decides a host kernel's machine code, apart from the host itself.

    Takes the arguments of ``cls.load_async``. Raises for anything that has no stable text, and for a
    parameter that is not known here: it may decide the code too.
    """
    import inspect

    import torch
    from torch._inductor import config

    given = dict(inspect.signature(cls.load_async).bind(*args, **kwargs).arguments)
    if unknown := given.keys() - _KEY_PARAMETERS:
        raise ValueError(f"load_async has parameters that are not known: {', '.join(sorted(unknown))}")
    given.pop("submit_fn", None)
    given["extra_flags"] = list(given.get("extra_flags", ()))
    settings = {
        name: repr(value)
        for name, value in config.get_config_copy().items()
        if name.startswith(("cpp.", "aot_inductor.debug"))
    }
    facts = {
        "class": cls.__qualname__,
        "given": given,
        "flags": {name: repr(value) for name, value in cls.cpp_compile_command_flags.items()},
        "settings": settings,
        "torch": torch.__version__,
        "capability": _capability(os.environ.get("ATEN_CPU_CAPABILITY", "")),
    }
    return _hexdigest(facts)


@functools.cache
def _capability(wanted: str) -> str:
    """What ``ATEN_CPU_CAPABILITY`` changes; nothing if it names what PyTorch chooses without it.

    The folder of a kernel stands for the ISA that was detected; this is for a variable set since then.
    """
    from ...environment.detect import detect

    if not wanted:
        return ""
    named, unnamed = detect({"ATEN_CPU_CAPABILITY": wanted}), detect({})
    return "" if named.get("cpu_isa") == unnamed.get("cpu_isa") else wanted


def install_hooks(kernels: HostKernels) -> None:
    """Puts the hooks in place when the application imports the modules. Safe to call again."""
    imports.when_imported("torch._inductor.codecache", functools.partial(_hook_codecache, kernels))
    imports.when_imported("torch.compiler._cache", functools.partial(_hook_records, kernels.recorded))
    tuning.install_hooks()


def _hook_codecache(kernels: HostKernels, module: ModuleType) -> None:
    if not imports.hook(module, "CppCodeCache.load_async", kernels.load_async):
        _log.warning("this torch has no CppCodeCache.load_async: host kernels will be built here")


def _hook_records(recorded: UsedFiles, module: ModuleType) -> None:
    def record_artifact(call: imports.Call) -> Any:
        answer = call()
        recorded.artifact(*map(call.argument, ("artifact_type", "key", "content")))
        return answer

    imports.hook(module, "CacheArtifactManager.record_artifact", record_artifact)


def accepted_folders(root: Path, paths: Iterable[str]) -> set[Path]:
    """The host kernel folders among installed paths."""
    return {root / Path(path).parent for path in paths if path.startswith(HOST_FOLDER + "/")}
