"""Gives TileLang the kernels of an entry where it looks into its own folder, and records what it compiles.

TileLang asks itself for the folder of a key, checks the files there against its manifest, and loads the
library. For the length of such a look-up it gets the folder that a verified revision installed.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...hooks import counters, imports
from ...wire.errors import printable
from ..kind import ProcessCallbacks
from ..look_ups import LookUps
from ..rules import AcceptedFolders
from .rules import MADE, MANIFEST, RULES, files_of
from .versions import BACKENDS, CPU, CUDA, Backend

if TYPE_CHECKING:
    from .provenance import NvccRun, Provenance


_log = logging.getLogger("cachesvc")


class CompiledKernel(NamedTuple):
    """A kernel that this process compiled.

    ``folder``: TileLang's own, which it may remove. ``digests``: of the files there. ``manifest`` and
    ``made``: the contents of two files of the copy.
    """

    folder: Path
    digests: Mapping[str, str]
    manifest: bytes
    made: bytes


class Kernels(LookUps):
    """The kernels of this process: which may be loaded, which were loaded and which were compiled."""

    def __init__(self) -> None:
        super().__init__("TileLang", "kernel")
        self.host = ""
        """The id of this host, for what is compiled here; empty before the environment is known."""
        self.loaded: dict[str, Backend] = {}
        """Folders, below the kind's folder, of the accepted kernels that TileLang loaded."""
        self.compiled: dict[str, CompiledKernel] = {}
        """Kernels that were compiled here, by ``<key>/<made>``."""
        self._accepted = AcceptedFolders(RULES, MADE)
        """The folders that may hold the kernel of a key."""
        self._callbacks: dict[str, Any] = {}
        """TileLang's own functions that compile for CUDA."""
        # ``self._call`` has, beside ``reason``, ``place``: the key that TileLang looks up, and the folder
        # that it gets; ``manifest``: what TileLang wrote last; ``run``: that of nvcc for the kernel, ``None``
        # if TileLang took machine code from its own folder. None is there before a call.

    def accept(self, root: Path, paths: Collection[str]) -> None:
        """Allow the kernels among these files to be loaded."""
        self._accepted.accept(root, paths)

    @property
    def allowed(self) -> list[Path]:
        """Return the folders whose kernels TileLang may load."""
        return self._accepted.all()

    def refuse_all(self) -> None:
        """Allow no kernel of the folders that were accepted so far."""
        self._accepted.clear()

    def forget(self, paths: Collection[str]) -> None:
        """Treat the kernels of these paths as never used, and load them no more."""
        wrong = self._accepted.forget(paths)
        self.loaded = {folder: backend for folder, backend in self.loaded.items() if folder not in wrong}
        for folder in wrong:
            self.compiled.pop("/".join(folder.split("/")[2:]), None)

    # Hooks ------------------------------------------------------------------------------------

    def look_up(self, callbacks: ProcessCallbacks, call: imports.Call) -> Any:
        """Run in the place of ``_load_kernel_from_disk``; any doubt falls through to the original."""
        self._call.reason = ""
        given = call.arguments
        backend = _backend_of(given["backend_context"])
        if backend is None:
            return call()
        callbacks.before_compile()
        key = str(given["key"])
        folder = self._timed(lambda: self._find(backend, key, given))
        if folder is None:
            return call()
        place = self._accepted.relative(folder)
        with self._in_place(key, folder), callbacks.files.loading(RULES.name, f"{place}/{backend.library}"):
            kernel = call()
        if kernel is not None:
            self.loaded[place] = backend
            return kernel
        self._call.reason = "TileLang did not load the files of the entry"
        self._accepted.remove(key, folder)
        return call.original(*call.args, **call.kwargs)

    def folder_of(self, call: imports.Call) -> Any:
        """Run in the place of ``_get_cache_path``."""
        place = getattr(self._call, "place", None)
        return str(place[1]) if place is not None and call.argument("key") == place[0] else call()

    def compiler(self, call: imports.Call) -> Any:
        """Run in the place of ``get_cplus_compiler``. TileLang asks for a compiler even where it loads a
        kernel and compiles nothing."""
        answer = call()
        return "c++" if answer is None and getattr(self._call, "place", None) is not None else answer

    def compile_kernel(self, call: imports.Call) -> Any:
        """Run in the place of ``_compile_and_create_adapter``."""
        if _backend_of(call.args[0]) is None:
            return call()
        self._call.run = None
        reason = getattr(self._call, "reason", "") or "it did not look into its cache"
        self._call.reason = ""
        self._note(f"TileLang compiled {_name(call)}: {reason}")
        return counters.counter_of("tilelang.compilations")(call)

    def build_library(self, call: imports.Call) -> Any:
        """Run in the place of ``compile_lib``, which starts a compiler."""
        if call.args[0].target.kind.name != CPU.target:
            return call()
        return counters.counter_of("cpp_commands")(call)

    def compile_for_gpu(self, call: imports.Call) -> Any:
        """Run in the place of ``compile_cuda``, which starts nvcc."""
        code = counters.counter_of("cpp_commands")(call)
        self._call.run = self._timed(lambda: _run(call.arguments, code))
        return code

    def find_target(self, before_compile: Callable[[], None], call: imports.Call) -> Any:
        """Run in the place of ``auto_detect_target``, which raises where there is no CUDA toolkit: kernels of
        an entry need none, so there a GPU is enough. A process waits for its restore then."""
        try:
            return call()
        except ValueError:
            before_compile()
            if not any((folder / CUDA.library).is_file() for folder in self._accepted.all()):
                raise
            target = sys.modules["tilelang.cuda.target"].normalize_cuda_target(CUDA.target)
            if target is None:
                raise
            call.error = None
            return target

    def note_callbacks(self, _module: Any) -> None:
        """Remember TileLang's own functions, once its module for CUDA has registered them."""
        from .provenance import cuda_callbacks

        self._callbacks = cuda_callbacks()

    def write_manifest(self, call: imports.Call) -> Any:
        """Run in the place of ``_write_manifest``, the last step before a kernel gets its place."""
        answer = call()
        self._call.manifest = (Path(call.argument("cache_path")) / MANIFEST).read_bytes()
        return answer

    def save(self, call: imports.Call) -> Any:
        """Run in the place of ``_save_kernel_to_disk``."""
        self._call.manifest = None
        # For a GPU TileLang compiles the host's part here.
        of_gpu = _backend_of(call.arguments["kernel"]) == CUDA
        answer = counters.counter_of("cpp_commands")(call) if of_gpu else call()
        if self._call.manifest is not None:
            self._call.reason = ""
            self._timed(lambda: self._record(call.args[0], call.arguments))
            if self._call.reason:
                _log.info("a kernel that TileLang compiled is not kept: %s", self._call.reason)
                self._call.reason = ""
        return answer

    # Look-ups and records ---------------------------------------------------------------------

    def _find(self, backend: Backend, key: str, given: Mapping[str, Any]) -> Path | None:
        """Return an accepted folder whose kernel fits, and keep the reason if there is none."""
        from .provenance import Provenance, check_flags, compilers_here, facts_here

        check_flags(_flags(given))
        self._call.reason = "no restored entry has it with this body, target, passes and flags"
        folders = self._accepted.of(key)
        if not folders:
            return None
        facts, compilers = facts_here(backend, self._callbacks), compilers_here(backend)
        for folder in folders:
            made = Provenance.decode((folder / MADE).read_bytes())
            self._call.reason = made.difference(facts, compilers)
            if not self._call.reason:
                # TileLang asks whether the sources are there, and reads none. `warm` leaves out of an entry
                # what no replay reads.
                for name in files_of(backend):
                    (folder / name).read_bytes()
                return folder
        return None

    def _record(self, cache: Any, given: Mapping[str, Any]) -> None:
        """Record a kernel that TileLang has just compiled and put in its place.

        Where another process was faster, TileLang keeps the other's files: then nothing is recorded.
        """
        from .provenance import check_run

        kernel, manifest = given["kernel"], self._call.manifest
        backend = _backend_of(kernel)
        if backend is None:
            return
        folder = Path(cache._get_cache_path(given["key"]))
        if (folder / MANIFEST).read_bytes() != manifest:
            return
        digests = {name: str(entry["sha256"]) for name, entry in json.loads(manifest)["files"].items()}
        if digests.keys() != set(files_of(backend)):
            return
        if backend == CUDA:
            source, library = (folder / "device_kernel.cu").read_bytes(), (folder / CUDA.library).read_bytes()
            check_run(getattr(self._call, "run", None), source, library)
        made = _provenance(folder, kernel, backend, self._callbacks).encode()
        compiled = CompiledKernel(folder, digests, manifest, made)
        self.compiled[f"{given['key']}/{_digest(made)[:16]}"] = compiled

    @contextmanager
    def _in_place(self, key: str, folder: Path) -> Iterator[None]:
        """Have TileLang look into ``folder`` for this key, on this thread."""
        self._call.place = key, folder
        try:
            yield
        finally:
            self._call.place = None


def copy_compiled(kernel: CompiledKernel, folder: Path) -> bool:
    """Write a kernel that was compiled here, and with what, whole into ``folder``. Return whether it is
    there.

    A kernel whose files TileLang, or somebody, has changed or removed is left out. Raises ``OSError``.
    """
    from ...atomic import replacing

    contents = {name: _read(kernel.folder / name) for name in kernel.digests}
    if any(_digest(contents[name]) != digest for name, digest in kernel.digests.items()):
        contents = {name: _read(folder / name) for name in kernel.digests}
        if any(_digest(contents[name]) != digest for name, digest in kernel.digests.items()):
            return False
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in ({**contents, MANIFEST: kernel.manifest, MADE: kernel.made}).items():
        if _read(folder / name) != content:
            with replacing(folder / name, 0o755 if name.endswith(".so") else 0o644) as out:
                out.write(content)
    return True


def _provenance(folder: Path, kernel: Any, backend: Backend, callbacks: Mapping[str, Any]) -> Provenance:
    """Return with what a kernel was made that this process has just compiled. Raises `Doubt`."""
    from ..builds.flags import Doubt
    from .provenance import Provenance, check_flags, check_source, compilers_here, facts_here

    check_flags(_flags(vars(kernel)))
    for name in backend.sources:
        check_source((folder / name).read_bytes())
    identities = compilers_here(backend)
    compilers = {name: identity for name, identity in identities.items() if identity}
    if compilers.keys() != identities.keys():
        raise Doubt("a compiler cannot be told")
    return Provenance(compilers, facts_here(backend, callbacks))


def _flags(given: Mapping[str, Any]) -> list[str]:
    """Return the flags of a kernel, as a call or TileLang's object of the kernel has them."""
    key = "tl.device_compile_flags"
    flags: list[str] = []
    for value in (given.get("compile_flags"), (given.get("pass_configs") or {}).get(key)):
        flags += [value] if isinstance(value, str) else map(str, value or ())
    return flags


def _backend_of(owner: Any) -> Backend | None:
    """Return for what a context, or a kernel, of TileLang's is; ``None`` for what is left to TileLang."""
    execution = getattr(owner.execution_backend, "name", owner.execution_backend)
    asked = (owner.target.kind.name, execution)
    backend = next((one for one in BACKENDS if (one.target, one.execution) == asked), None)
    if backend == CUDA and owner.target_host.kind.name != CPU.target:
        return None  # LLVM makes the host's part, and nobody has run that
    return backend


def _run(given: Mapping[str, Any], code: Any) -> NvccRun:
    from .provenance import NvccRun

    return NvccRun(str(given["code"]).encode(), tuple(given.get("options") or ()), bytes(code))


def _name(call: imports.Call) -> str:
    """Return the name of the function that a kernel is compiled from, safe to print."""
    attributes = getattr(call.argument("tilelang_func"), "attrs", None) or {}
    return printable(str(attributes.get("global_symbol", "a kernel")))[:100]


def _read(file: Path) -> bytes:
    return file.read_bytes() if file.is_file() else b""


def _digest(data: bytes) -> str:
    from ...wire.digest import Digest

    return Digest.of(data).hex
