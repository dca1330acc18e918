"""Finds a host library of Triton's that was built on another host, and keeps a library that is built here
where another host finds it.

Triton's name for such a library's folder holds facts of the host that do not change the library: what
``platform.architecture()`` answers, which asks the program ``file``, and from 3.8 on the absolute folders of
its headers and of libcuda. A slim image or another virtual environment would look elsewhere than the
builder, and run gcc.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...hooks import imports
from .versions import ARCHITECTURES, KEY_LISTS

_log = logging.getLogger("cachesvc")


@dataclass(frozen=True, slots=True)
class HelperRequest:
    """One call for a host library.

    Attributes:
        name: The name of the library's module.
        keys: The keys, in hex, under which the library may lie in the cache folder; the best one first.
        portable: The key, among ``keys``, that is the same on every host and in every virtual environment;
            empty if only Triton's own keys are known to be right.
        loads: Whether the caller wants the module; else it wants the path.
    """

    name: str
    keys: tuple[str, ...]
    portable: str
    loads: bool

    @classmethod
    def of(cls, call: imports.Call) -> HelperRequest:
        """Return what a call of ``compile_module_from_src`` or of ``_compile_so`` asks for.

        Raises an error for a call of another form.
        """
        asked = call.arguments
        if "src_path" not in asked:  # compile_module_from_src
            keys = tuple(_hexdigest(asked["src"].encode(), host) for host in _hosts())
            return cls(asked["name"], keys, "", loads=True)
        portable = _portable_key(asked)
        own = tuple(_hexdigest(asked["src"], host, _settings(asked)) for host in _hosts())
        return cls(asked["name"], (portable, *own) if portable else own, portable, bool(asked["load_module"]))

    def answer(self, restored: Path | None) -> Any:
        """Return the library, as its caller wants it, if Triton's folder or ``restored`` has it; else
        ``None``.

        Never raises.
        """
        try:
            from triton.runtime import build

            paths = (path for key in self.keys for path in self._paths(key, restored))
            path = next(filter(Path.is_file, paths), None)
            if path is None or not self.loads:
                return path and str(path)
            return build._load_module_from_path(self.name, str(path))
        except Exception:  # noqa: BLE001 - Triton looks and builds by itself
            _log.debug("%s: left to Triton", self.name, exc_info=True)
            return None

    def keep(self, built: Path, restored: Path | None) -> Path:
        """Copy a library to where another host searches for it; return the library's path.

        A program may remove the folder that it named, as Helion does after a search, so the library is copied
        to ``restored``, the folder whose files are published. Raises ``OSError`` if it cannot be
        copied.
        """
        folder = built.parent.parent if restored is None else restored
        key = self.portable and self._folder_name(self.portable)
        kept = folder / (key or built.parent.name) / built.name
        if kept == built:
            return built
        from ...atomic import replacing

        kept.parent.mkdir(parents=True, exist_ok=True)
        with replacing(kept) as out:
            out.write(built.read_bytes())
        return kept

    def _paths(self, key: str, restored: Path | None) -> Iterator[Path]:
        """Yield where a library of a key may lie."""
        import sysconfig

        from triton import knobs

        name = self.name + str(sysconfig.get_config_var("EXT_SUFFIX"))
        for folder in dict.fromkeys(filter(None, (Path(knobs.cache.dir), restored))):
            yield folder / self._folder_name(key) / name

    @staticmethod
    def _folder_name(key: str) -> str:
        from triton.runtime import cache

        return str(cache._base32(key))


def helper_request(call: imports.Call) -> HelperRequest | None:
    """Return what a call asks for; ``None`` where cachesvc does not know: Triton looks and builds by itself.

    Never raises.
    """
    try:
        from triton import knobs
        from triton.runtime import cache

        if knobs.cache.manager_class in (None, cache.FileCacheManager):
            return HelperRequest.of(call)
    except Exception:  # noqa: BLE001 - a Triton whose internals differ
        _log.debug("a host library is left to Triton", exc_info=True)
    return None


def _hosts() -> list[bytes]:
    """Return what Triton's ``platform_key`` answers on hosts like this one, with and without programs."""
    import platform

    machine = (platform.machine(), platform.system())
    return [",".join((*machine, *architecture)).encode() for architecture in ARCHITECTURES]


def _settings(asked: Mapping[str, Any]) -> bytes:
    """Return the part of Triton's key after source and host (``_get_cache_manager`` in 3.8 and 3.9)."""
    lists = {"language": [asked["language"]], **{name: asked[name] for name in KEY_LISTS}}
    texts = (
        name + "".join(f"{text}:" for text in values) for name, values in lists.items() if values is not None
    )
    return "".join(texts).encode()


def _portable_key(asked: Mapping[str, Any]) -> str:
    """Return a key without folders, for a library of Triton's own; empty for any other library.

    The source and the headers must lie in Triton's package: its version stands for the headers then. Each
    library must be a shared one, of which the linker takes the name alone: so it does not matter where it
    lies.
    """
    import triton

    package = Path(os.path.realpath(triton.__file__)).parent
    places = [asked["src_path"], *(asked["include_dirs"] or ())]
    libraries = asked["libraries"] or ()
    if not all(Path(os.path.realpath(place)).is_relative_to(package) for place in places):
        return ""
    if not all(".so" in library for library in libraries):
        return ""
    from ...wire.codec import canonical

    facts = {
        "triton": triton.__version__,
        "host": _hosts()[-1].decode(),
        "name": asked["name"],
        "language": asked["language"],
        "libraries": list(libraries),
        "flags": list(asked["ccflags"] or ()),
        "headers": [os.path.relpath(os.path.realpath(place), package) for place in places],
    }
    return _hexdigest(asked["src"], canonical(facts))


def _hexdigest(*parts: bytes) -> str:
    import hashlib  # here: it loads OpenSSL, for which `attach` has no time

    return hashlib.sha256(b"".join(parts)).hexdigest()
