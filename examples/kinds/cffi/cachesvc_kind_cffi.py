"""The kind `cffi`: the libraries that ``ffi.verify()`` compiles, in ``CFFI_TMPDIR``.

_cffi__x<crc>x<crc>.<abi>.so    immutable; its name is a checksum of the source, declarations and options
own/                            what is not shared, see `unclear`
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from cachesvc_client.hooks import counters, imports
from cachesvc_client.hooks.kind_counts import Count
from cachesvc_client.hooks.table import Hook
from cachesvc_client.kinds.kind import Activity, Kind, KindFolder, KindState, ProcessCallbacks, RestoredFacts
from cachesvc_client.kinds.rules import FileRule, KindRules
from cachesvc_client.wire.digest import Digest

RULES = KindRules(
    "cffi", (FileRule(r"_cffi_[A-Za-z0-9_]{0,40}_[xg][0-9a-f]{0,8}x?[0-9a-f]{0,8}\.[A-Za-z0-9_-]{1,60}\.so"),)
)
_MODULE = "cffi.verifier"
_IMPORTED = Hook(
    _MODULE,
    "",
    "waits for the restore: cffi imports the module in the first verify(), before it reads CFFI_TMPDIR",
    "",
    role="restore",
)
_NAMES = Hook(
    _MODULE,
    "Verifier.__init__",
    "keeps libraries apart whose names lack what decides them",
    "no library of cffi's is captured",
    role="restore",
)
_COMPILES = Hook(
    _MODULE,
    "Verifier._compile_module",
    "counts and records the libraries that cffi compiles",
    "no library of cffi's is captured or counted",
    role="restore",
)
_LOADS = Hook(
    _MODULE,
    "Verifier.load_library",
    "records the libraries that cffi loads",
    "no use of a restored library is counted",
    role="restore",
)

_VARIABLES = (
    *(
        "CC",
        "CFLAGS",
        "CPPFLAGS",
        "LDFLAGS",
        "LDSHARED",
        "ARFLAGS",
        "CPATH",
        "C_INCLUDE_PATH",
        "LIBRARY_PATH",
    ),
    *("COMPILER_PATH", "GCC_EXEC_PREFIX", "LD_RUN_PATH", "SOURCE_DATE_EPOCH"),
)
"""Variables that the compiler reads, and cffi's checksum does not have."""
_HEADERS = frozenset(
    f"<{name}.h>"
    for name in "assert complex ctype errno fcntl fenv float inttypes iso646 limits locale math pthread "
    "setjmp signal stdarg stdbool stddef stdint stdio stdlib string tgmath time unistd wchar wctype".split()
)
"""The C library's headers: its version is a factor of the environment."""
_IN_CHECKSUM = frozenset({"define_macros", "undef_macros", "libraries"})
_LIBRARIES = frozenset({"m", "c", "pthread", "dl", "rt"})
_MAY_READ_FILES = re.compile(r"asm|__has_|_Pragma|%:|\?\?=")
"""Assembler, looks at files, and other spellings of ``#``."""
_DIRECTIVE = re.compile(
    r"#[ \t]*(?:(?:define|undef|ifdef|ifndef|if|else|elif|endif)\b|include[ \t]*(<\w+\.h>))"
)
"""The directives whose meaning is known; any other ``#`` is a doubt."""


def unclear(preamble: str, options: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> str:
    """Return what decides a library and is not in cffi's checksum; an empty text for one that is shared."""
    if named := [name for name in _VARIABLES if environ.get(name)]:
        return f"{', '.join(named)} is set"
    if more := {name for name, value in options.items() if value} - _IN_CHECKSUM:
        return f"its option {min(more)}"
    if not _LIBRARIES.issuperset(options.get("libraries") or ()):
        return "it links a library that is not the C library's"
    directives = _DIRECTIVE.findall(preamble)
    if (
        _MAY_READ_FILES.search(preamble)
        or len(directives) != preamble.count("#")
        or not _HEADERS.issuperset(filter(None, directives))
    ):
        return "it includes more than the C library's headers"
    return ""


class CffiState(KindState):
    """The libraries that this process compiled or loaded."""

    def __init__(self) -> None:
        self._root: Path | None = None
        self._used: set[str] = set()
        self._made: dict[str, Digest] = {}
        self._reasons: dict[str, None] = {}
        self._callbacks = ProcessCallbacks(lambda: None, lambda _: None)

    def install_hooks(self, callbacks: ProcessCallbacks) -> None:
        self._callbacks = callbacks
        _IMPORTED.watch(lambda _: callbacks.before_compile())
        _NAMES.install(self._name)
        _COMPILES.install(self._compile)
        _LOADS.install(callbacks.noting(self._load))

    def use_folder(self, root: Path) -> None:
        self._root = root

    def forget(self, paths: Collection[str], keys: Collection[str]) -> None:
        self._used.difference_update(paths)
        for path in paths:
            self._made.pop(path, None)

    def used_files(self, root: Path, *, left: bool = False) -> set[str]:
        return {path for path in self._used if (root / path).is_file()}

    def made_files(self, root: Path) -> Mapping[str, Digest | None]:
        return dict(self._made)

    def used_paths(self) -> set[str]:
        return set(self._used)

    def has_host_code(self) -> bool:
        return bool(self._used)

    def activity(self) -> Activity:
        return Activity((len(self._used), len(self._made)), opened=bool(self._used))

    def explain(self, restored: RestoredFacts) -> Iterable[str]:
        if restored.revisions:
            yield from (f"a library of cffi's is in no entry: {reason}" for reason in self._reasons)

    def _name(self, call: imports.Call) -> Any:
        """Run in the place of ``Verifier.__init__``, which names the library."""
        call()
        verifier = call.args[0]
        if self._root is not None and self._path_of(verifier):
            named = len(call.args) > 4 or call.kwargs.get("modulename")
            reason = unclear(verifier.preamble, verifier.kwds)
            if named or not verifier.sourcefilename.endswith(".c"):
                reason = "it has a name or a language of its own"
            if reason:
                self._reasons[reason] = None
                for name in ("sourcefilename", "modulefilename"):
                    setattr(verifier, name, str(self._root / "own" / Path(getattr(verifier, name)).name))

    def _compile(self, call: imports.Call) -> Any:
        answer = counters.counter_of("cffi.builds")(call)
        counters.counts["cpp_commands"] += 1
        if path := self._path_of(call.args[0]):
            self._made[path] = Digest.of(Path(call.args[0].modulefilename).read_bytes())
        return answer

    def _load(self, call: imports.Call) -> Any:
        verifier = call.args[0]
        path = self._path_of(verifier)
        restored = path and path not in self._made and Path(verifier.modulefilename).is_file()
        with self._callbacks.files.loading(RULES.name, path) if restored else nullcontext():
            answer = call()
        if path:
            self._used.add(path)
        return answer

    def _path_of(self, verifier: Any) -> str:
        """Return the path of a library in the kind's folder; empty for one elsewhere."""
        file = Path(verifier.modulefilename)
        return file.name if file.parent == self._root and RULES.rule(file.name) else ""


KIND = Kind(
    rules=RULES,
    start=CffiState,
    folder=KindFolder("CFFI_TMPDIR", home="inside", place="cffi"),
    hooks=(_IMPORTED, _NAMES, _COMPILES, _LOADS),
    counts=(Count("builds", "built", "library of cffi's"),),
    distributions=("cffi",),
)
