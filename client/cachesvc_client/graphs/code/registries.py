"""Describes what programs and packages registered with the interpreter, as far as code below Dynamo asks for
it: error handlers of codecs, classes of abstract classes, rules to copy, what JSON is written with, packages.
"""

from __future__ import annotations

import codecs
import contextlib
import importlib.metadata
import sys
import types
from collections.abc import Iterable, Iterator, Set
from importlib.machinery import PathFinder
from typing import Any

from ..released import known
from .asked import PLAIN, copy_rules, is_programs
from .values import Undescribed, type_name

_ENCODES = frozenset(("encode", "decode", "str", "bytes", "bytearray", "open", "TextIOWrapper"))
"""Names with which code turns texts into bytes, or bytes into texts."""
_COPIES = frozenset(("copy", "deepcopy", "dumps", "dump", "loads", "load"))
"""Names with which code copies or pickles objects."""
PACKAGES = ("importlib.metadata.version", "importlib.util.find_spec")
"""Functions that ask which packages there are; the second is compared as far as there is one."""
_OF_SPEC = frozenset(("origin", "loader", "submodule_search_locations", "cached", "parent"))


def handlers(texts: Set[str], names: Set[str]) -> Iterator[tuple[str, Any]]:
    """Yield the error handlers of codecs that a program registered under one of these texts."""
    for name in sorted(texts) if names & _ENCODES else ():
        with contextlib.suppress(LookupError, ValueError):
            handler = codecs.lookup_error(name)
            if not (known.is_c_function(handler) and known.own_name(handler).startswith(name)):
                yield f"errors {name}", handler


def registered(abstract: Iterable[type], values: Iterable[Any]) -> Iterator[str]:
    """Yield which classes among ``values`` a program registered with abstract classes of libraries."""
    import _abc  # type: ignore[import-not-found]

    classes = [one for one in values if isinstance(one, type)]
    for one in abstract:
        with_it = [reference() for reference in _abc._get_dump(one)[0]]
        names = sorted(type_name(cls) for cls in classes if cls in with_it)
        if names:
            yield f"{type_name(one)} registers {names}"


def copies(cls: type, names: Set[str]) -> Iterator[tuple[str, Any]]:
    """Yield a program's rules to copy objects of a library's class, for code with these names."""
    for place, rule in copy_rules(cls) if names & _COPIES else ():
        if isinstance(rule, types.FunctionType) and is_programs(rule):
            yield f"{place} of {type_name(cls)}", rule


def of_json(names: Set[str]) -> Iterator[tuple[str, Any]]:
    """Yield what the encoder and the decoder of JSON that every program shares were made with."""
    module = sys.modules.get("json") if not names.isdisjoint(("dumps", "loads", "dump", "load")) else None
    for name in ("_default_encoder", "_default_decoder"):
        one = getattr(module, name, None)
        held = {key: value for key, value in getattr(one, "__dict__", {}).items() if type(value) in PLAIN}
        if held:
            yield f"json.{name} {type_name(type(one))}", held


def packages(texts: Set[str], names: Set[str], asks: Set[str]) -> Iterator[str]:
    """Yield the versions of packages that these texts name, and whether there are such modules, as far as
    code asks for one of both. Raises `Undescribed` with the reason where others answer than files do."""
    if not asks:
        return
    if PACKAGES[1] in asks and names & _OF_SPEC:
        raise Undescribed("code that asks where a module is")
    for finder in sys.meta_path:
        place = (
            f"{getattr(finder, '__module__', '')}.{getattr(finder, '__qualname__', type(finder).__name__)}"
        )
        if not place.startswith(_FINDERS):
            raise Undescribed(f"code that asks for packages, which {place} answers")
    for name in sorted(filter(_is_name, texts)):
        if PACKAGES[0] in asks:
            yield from (f"version {name} {one.version}" for one in _distributions(name)[:1])
        if PACKAGES[1] in asks:
            yield from (f"module {name}",) if _is_there(name) else ()


_FINDERS = (
    "_frozen_importlib",
    "_distutils_hack",
    "__editable___",
    "six.",
    "_virtualenv",
    "cachesvc_client.",
)


def _is_name(text: str) -> bool:
    return 1 < len(text) < 80 and text.replace("-", "_").replace(".", "_").isidentifier()


def _distributions(name: str) -> list[Any]:
    context = importlib.metadata.DistributionFinder.Context(name=name)
    return list(importlib.metadata.MetadataPathFinder.find_distributions(context))


def _is_there(name: str) -> bool:
    if name in sys.modules:
        return getattr(sys.modules[name], "__spec__", None) is not None
    parent = name.rpartition(".")[0]
    places = getattr(sys.modules.get(parent), "__path__", None) if parent else None
    if parent and places is None:
        if _is_there(parent):
            raise Undescribed("code that asks for a module in a package that is not loaded")
        return False
    with contextlib.suppress(ImportError, ValueError):
        return PathFinder.find_spec(name, places) is not None
    return False
