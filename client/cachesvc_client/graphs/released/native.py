"""Describes the C++ code that libraries other than torch registered for operators.

A trace runs such code: a backward, a composite, a rule for shapes. No key of PyTorch holds any of it. The
dispatcher says in which source file each registration was written, and the library that registered it holds
that text. So the content of that library describes the code.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import mmap
import os
import re
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ..keys import CORE
from . import shared_library
from .known import torch_folder

_REGISTRATION = re.compile(
    r"(?m)^(?:\(inactive\): |)(\w+)(?:\[alias\])?(?: \(inactive\))?: registered at (.+):\d+"
)
"""Matches a line of PyTorch's list of an operator's registrations: the dispatch key, and the file."""
_REGISTERED = " registered at "
"""Precedes the file of each registration in that list."""
_DEFINITION = "debug"
"""What stands in the place of the key where the operator is defined."""
_KNOWN = "aten::add.Tensor"
"""An operator of PyTorch's own, whose definition says where torch was built."""
_BUILT = re.compile(r"^(.*?)(?:build/)?aten/src/ATen/")
_OF_PYTHON = (".py", "/dev/null")
"""Ends of the files of registrations from Python; torch 2.8 says ``/dev/null``."""
_REGISTERS = (b"5torch7Library", b"c1010Dispatcher", b"c1017RegisterOperators", b"torch_library")
"""What a library refers to that registers functions: C++ classes, and functions of the stable interface."""
_AT_RUN_TIME = re.compile(
    r"(?:Sparse|SparseCsr|Quantized|NestedTensor)?"
    r"(?:CPU|CUDA|HIP|XLA|MPS|MTIA|MAIA|IPU|XPU|HPU|VE|Lazy|PrivateUse\d)"
    r"|CompositeExplicitAutograd(?:NonFunctional)?"
)
"""Matches the keys of functions that run when a compiled graph runs, and not when it is traced."""
_DIGITS = 16


def code_of(name: str, dump: str) -> str:
    """Return the text that stands for an operator's C++ code in a key, empty if a trace takes none from it.

    ``dump``: PyTorch's list of the operator's registrations. Raises ``LookupError`` where no library is found
    that registered it.
    """
    found = {(key, file) for key, file in _REGISTRATION.findall(dump) if not _is_torchs(file)}
    traced = {file for key, file in found if key != _DEFINITION and not _AT_RUN_TIME.fullmatch(key)}
    return _loaded().digest_of(name, traced) if traced else ""


def over_torchs_own() -> tuple[Mapping[str, str], str]:
    """Return what libraries registered for operators of PyTorch's own: place -> text; and in words the first
    place whose code has no description, or an empty text."""
    return _loaded().over_torchs_own()


class _Libraries:
    """Knows the libraries of this process that register functions for operators, and are not torch's."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._registering: dict[str, str] = {}
        """Path -> digest of the content, or an empty text until it is needed."""
        self._places: dict[str, str] = {}
        self._unknown = ""
        self._count = -1

    def look(self) -> None:
        """Look for libraries that were loaded since."""
        count = _loads()
        if count == self._count:
            return
        self._count = count
        new = [one for one in _names() if one not in self._known]
        self._known.update(new)
        registering = [one for one in new if not one.startswith(torch_folder()) and _registers(one)]
        self._registering.update((one, "") for one in registering)
        if any(_has_any(one, _OF_CORE) for one in registering):
            self._places, self._unknown = {}, ""
            for place, name, file in _foreign_registrations():
                try:
                    self._places[place] = f"C++ {self.digest_of(name, {file})}"
                except LookupError as error:
                    self._unknown = self._unknown or str(error)

    def over_torchs_own(self) -> tuple[Mapping[str, str], str]:
        return self._places, self._unknown

    def digest_of(self, name: str, files: Iterable[str]) -> str:
        """Return the digest of the libraries that were made of source files. Raises ``LookupError``."""
        digests: set[str] = set()
        for file in sorted(files):
            holders = [path for path in self._registering if _has_any(path, (file.encode(),))]
            if not holders:
                raise LookupError(f"{name} has C++ code of {file}, which is in no library that is found")
            digests |= {self._digest(path) for path in holders}
        return " ".join(sorted(digests))

    def _digest(self, path: str) -> str:
        if not self._registering[path]:
            try:
                with open(path, "rb") as file:
                    self._registering[path] = hashlib.blake2b(file.read()).hexdigest()[:_DIGITS]
            except OSError as error:
                raise LookupError(f"{path}, which registers code in C++, cannot be read: {error}") from None
        return self._registering[path]


_OF_CORE = tuple(text for space in sorted(CORE) for text in (f"{space}\0".encode(), f"{space}::".encode()))
"""What a library holds that names operators of PyTorch's own."""
_libraries = _Libraries()


def _loaded() -> _Libraries:
    _libraries.look()
    return _libraries


def _foreign_registrations() -> Iterator[tuple[str, str, str]]:
    """Yield place, operator and file of each registration in C++ that is not torch's."""
    import torch

    own = [_REGISTERED + folder for folder in (torch_folder(), _built_at())]
    for name in torch._C._dispatch_get_all_op_names():
        if name.partition("::")[0] in CORE:
            dump = torch._C._dispatch_dump(name)
            if sum(map(dump.count, own)) == dump.count(_REGISTERED):
                continue  # all are torch's: to count takes a tenth of the time of reading each
            for key, file in _REGISTRATION.findall(dump):
                if not _is_torchs(file):
                    yield f"the implementation {name}[{key}]", name, file


def _is_torchs(file: str) -> bool:
    """Return whether a registration is torch's, or comes from Python: others look after those."""
    return file.endswith(_OF_PYTHON) or file.startswith((torch_folder(), _built_at()))


@functools.cache
def _built_at() -> str:
    """Return the folder in which torch was built, as its registrations have it."""
    import torch

    files = [
        file for key, file in _REGISTRATION.findall(torch._C._dispatch_dump(_KNOWN)) if key == _DEFINITION
    ]
    built = _BUILT.match(files[0]) if files else None
    return built[1] if built and built[1] else "\0"


def _registers(path: str) -> bool:
    """Return whether a library may register functions. One that cannot be read may."""
    try:
        with open(path, "rb") as file:
            names = shared_library.names(file)
    except FileNotFoundError:
        return os.sep in path  # the kernel's own is no file; another one was deleted
    except (OSError, ValueError, struct.error):
        return True
    return any(one in names for one in _REGISTERS)


def _has_any(path: str, texts: Iterable[bytes]) -> bool:
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return any(content.find(text) >= 0 for text in texts)
    except (OSError, ValueError):
        return True


_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


class _Loaded(ctypes.Structure):
    """Is ``struct dl_phdr_info`` of the C library's ``link.h``."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("headers", ctypes.c_void_p),
        ("number", ctypes.c_uint16),
        ("loads", ctypes.c_ulonglong),
        ("unloads", ctypes.c_ulonglong),
    )


def _each(look: Callable[[_Loaded], bool]) -> None:
    """Call ``look`` with each loaded library, until it returns that it has seen enough."""
    if sys.platform == "linux":

        def call(info: int, *_: Any) -> int:
            return int(look(_Loaded.from_address(info)))

        ctypes.CDLL(None).dl_iterate_phdr(_Callback(call), None)


def _loads() -> int:
    """Return how many libraries were loaded so far."""
    counts: list[int] = []

    def count(one: _Loaded) -> bool:
        counts.append(one.loads)
        return True

    _each(count)
    return counts[0] if counts else 0


def _names() -> list[str]:
    """Return the paths of the libraries that are loaded now."""
    found: list[bytes] = []

    def name(one: _Loaded) -> bool:
        found.append(one.name or b"")
        return False

    _each(name)
    return [os.fsdecode(one) for one in found if one]
