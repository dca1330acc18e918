"""Signs what stands in torch: the same bytes for the same functions under the same names, in every process.

To judge a namespace or a table by torch's sources takes a millisecond. A builder has judged all of them, so a
record has the signatures of those that are as torch was released. A service does not judge again what has one
of these.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import sys
import types
from typing import Any

from ..code.constants import code_digest
from . import in_place
from .known import torch_folder
from .namespaces import OPERATORS

_DEEPEST = 4
"""How many wrappers deep a signature follows."""
BYTES = 8
"""The length of a signature."""
_LONGEST, _MEMBERS = 200, 64
"""Characters of a plain value, and members of a list, that a signature holds."""
_SCALARS = frozenset((str, int, float, bool, complex, bytes, type(None)))
_INNER = ("__func__", "__wrapped__", "fget", "fset", "fdel", "func", "fn")
"""Attributes under which wrappers keep the function that they wrap."""


_known: set[bytes] = set()
"""Signatures of what a builder of a restored entry found to be as released."""


def learn(known: bytes) -> None:
    """Take over what a builder judged. ``known``: signatures, one after the other, of a verified record."""
    _known.update(known[start : start + BYTES] for start in range(0, len(known), BYTES))


def are_known(names: dict[str, Any]) -> bool:
    """Return whether a builder found a namespace, or an entry of a table, with this content as released."""
    return bool(_known) and signature(names, in_place.is_late()) in _known


def of_services(names: dict[str, Any], *, alike: bool) -> set[bytes]:
    """Return both signatures of a namespace: for services that have to compare code, and for the others.
    ``alike``: return one, for those that attach as this process did."""
    return {signature(names, whole) for whole in ((in_place.is_late(),) if alike else (False, True))}


def signature(names: dict[str, Any], whole: bool) -> bytes:
    """Return a few bytes for what stands in a namespace, by name. They are equal in another process of the
    same torch if each name leads to the same code there.

    ``whole``: what code does and the defaults are a part. Only a process that loaded torch before it attached
    has to compare them (`in_place`): elsewhere each change of them is seen when it is made.
    """
    return _signed("\n".join(f"{name} {_words(value, 0, whole)}" for name, value in list(names.items())))


def _signed(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=BYTES).digest()


def _words(value: Any, depth: int, whole: bool) -> str:
    kind = type(value)
    if kind is types.ModuleType:
        return f"module {value.__name__} {_is_elsewhere(value, value.__name__)}"
    if kind in _PLAIN:
        return kind.__name__
    if kind is types.FunctionType:
        return _function(value, depth, whole)
    if kind in _OF_C:
        owner = getattr(value, "__objclass__", None) or type(getattr(value, "__self__", None))
        return f"{value.__name__} {getattr(value, '__module__', '')} {owner.__module__}.{owner.__qualname__}"
    if kind.__module__ == OPERATORS:
        kept = getattr(value, "__dict__", {})
        return f"{kind.__qualname__} {kept.get('_name') or kept.get('_qualified_op_name')}"
    if issubclass(kind, type):
        place = _is_elsewhere(value, value.__module__, *value.__qualname__.split("."))
        return f"class {value.__module__}.{value.__qualname__} {place}"
    if depth == _DEEPEST or hasattr(kind, "__getattr__"):  # such an object answers, and warns, by itself
        return f"{kind.__module__}.{kind.__qualname__}"
    if kind is functools.partial:
        keywords = [f"{name}={_held(one, depth + 1, whole)}" for name, one in value.keywords.items()]
        return (
            f"partial {_words(value.func, depth + 1, whole)} {_held(value.args, depth + 1, whole)} {keywords}"
        )
    inner = [_words(one, depth + 1, whole) for name in _INNER if (one := _attribute(value, name)) is not None]
    own = _attribute(value, "__name__") or ""
    return f"{kind.__module__}.{kind.__qualname__} {own if isinstance(own, str) else ''} {inner}"


def _is_elsewhere(value: Any, module: Any, *names: str) -> bool:
    """Return whether a module or a class is another one than that which Python finds under its name. A
    program's own may have the name of torch's."""
    found: Any = sys.modules.get(module)
    for name in names:
        found = vars(found).get(name) if hasattr(found, "__dict__") else None
    return found is not value


def _function(function: types.FunctionType, depth: int, whole: bool) -> str:
    """Return the name of a function, where its code was written, and what its closure holds: one factory
    makes the functions of many operators. ``whole``: the code and the defaults too."""
    code = function.__code__
    words = f"{_file(code.co_filename)}:{code.co_firstlineno} {code.co_name} {function.__qualname__}"
    if whole:
        given = (function.__defaults__, *(function.__kwdefaults__ or {}).items())
        words += f" {code_digest(code)} {_held(given, 1, whole)}"
    if function.__closure__ is None or depth == _DEEPEST:
        return words
    for cell in function.__closure__:
        with contextlib.suppress(ValueError):  # an empty one
            words += f" {_held(cell.cell_contents, depth + 1, whole)}"
    return words


def _held(value: Any, depth: int, whole: bool) -> str:
    """Return the words for what a closure holds: a plain value by its text, a list by its members."""
    kind = type(value)
    if kind in _SCALARS:
        return repr(value)[:_LONGEST]
    if kind in (list, tuple) and depth <= _DEEPEST:
        return f"[{' '.join(_held(one, depth + 1, whole) for one in value[:_MEMBERS])} of {len(value)}]"
    return _words(value, depth, whole)


def _attribute(value: Any, name: str) -> Any:
    """Return an attribute of a wrapper; ``None`` where it has none, or says so in another way."""
    try:
        return getattr(value, name, None)
    except Exception:  # noqa: BLE001 - an object of torch's that loads something when it is asked
        return None


@functools.cache
def _file(name: str) -> str:
    """Return a file of torch's by its path below torch's folder."""
    folder = torch_folder()
    return name[len(folder) :] if name.startswith(folder) else name


_PLAIN = _SCALARS | {dict, list, set, tuple, frozenset}
"""Types of values that have no code by themselves."""
_OF_C = frozenset((types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType))
