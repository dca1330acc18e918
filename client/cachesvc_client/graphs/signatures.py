"""Signs what stands in torch: the same bytes for the same functions under the same names, in every process.

To judge a namespace or a table by torch's sources (`stock`) takes a millisecond. A builder has judged all of
them, so a record holds the signatures of those that are as torch was released. A service does not judge again
what has one of these.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import types
from collections.abc import Callable
from typing import Any

from . import in_place
from .stock import OPERATORS, torch_folder

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
_found: set[bytes] = set()
"""Signatures of the entries of tables that this process found to be as released."""


def learn(known: bytes) -> None:
    """Take over what a builder judged. ``known``: signatures, one after the other, of a verified record."""
    _known.update(known[start : start + BYTES] for start in range(0, len(known), BYTES))


def joined(signatures: set[bytes]) -> bytes:
    """Return these signatures and those of entries that were judged here, for `learn`."""
    return b"".join(sorted(signatures | _found))


def is_known_namespace(names: dict[str, Any]) -> bool:
    """Return whether a builder found a namespace with this content to be as released."""
    return bool(_known) and signature(names) in _known


def is_own_entry(name: str, value: Any, judge: Callable[[], bool]) -> bool:
    """Return whether an entry of a table is as released: a builder found that, or ``judge`` says so now."""
    signed = _signed(f"{name} {_words(value, 0)}")
    if signed not in _known and not judge():
        return False
    _found.add(signed)
    return True


def signature(names: dict[str, Any]) -> bytes:
    """Return a few bytes for what stands in a namespace, by name. They are equal in another process of the
    same torch if each name leads to the same code there."""
    return _signed("\n".join(f"{name} {_words(value, 0)}" for name, value in list(names.items())))


def _signed(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=BYTES).digest()


def _words(value: Any, depth: int) -> str:
    kind = type(value)
    if kind in _PLAIN:
        return kind.__name__
    if kind is types.FunctionType:
        return _function(value, depth)
    if kind in _OF_C:
        return str(value.__name__)
    if kind.__module__ == OPERATORS:
        kept = getattr(value, "__dict__", {})
        return f"{kind.__qualname__} {kept.get('_name') or kept.get('_qualified_op_name')}"
    if issubclass(kind, type):
        return f"class {value.__module__}.{value.__qualname__}"
    if depth == _DEEPEST or hasattr(kind, "__getattr__"):  # such an object answers, and warns, by itself
        return f"{kind.__module__}.{kind.__qualname__}"
    if kind is functools.partial:
        keywords = [f"{name}={_held(one, depth + 1)}" for name, one in value.keywords.items()]
        return f"partial {_words(value.func, depth + 1)} {_held(value.args, depth + 1)} {keywords}"
    inner = [_words(one, depth + 1) for name in _INNER if (one := _attribute(value, name)) is not None]
    own = _attribute(value, "__name__") or ""
    return f"{kind.__module__}.{kind.__qualname__} {own if isinstance(own, str) else ''} {inner}"


def _function(function: types.FunctionType, depth: int) -> str:
    """Return the name of a function, where its code was written, what the code and the defaults are, and what
    its closure holds: one factory makes the functions of many operators."""
    code = function.__code__
    words = f"{_file(code.co_filename)}:{code.co_firstlineno} {code.co_name} {function.__qualname__}"
    words += f" {_code(code)}"
    if function.__defaults__:
        words += f" {_held(function.__defaults__, 1)}"
    if function.__kwdefaults__:
        words += f" {[f'{name}={_held(one, 1)}' for name, one in function.__kwdefaults__.items()]}"
    if depth == _DEEPEST:
        return words
    if (inner := function.__dict__.get("__wrapped__")) is not None:
        words += f" around {_words(inner, depth + 1)}"
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty one
            words += f" {_held(cell.cell_contents, depth + 1)}"
    return words


@functools.cache
def _code(code: types.CodeType) -> str:
    """Return a few characters for what code does. Kept for each code object: many functions share one."""
    text = in_place.code_words(code)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _held(value: Any, depth: int) -> str:
    """Return the words for what a closure holds: a plain value by its text, a list by its members."""
    kind = type(value)
    if kind in _SCALARS:
        return repr(value)[:_LONGEST]
    if kind in (list, tuple) and depth <= _DEEPEST:
        return f"[{' '.join(_held(one, depth + 1) for one in value[:_MEMBERS])} of {len(value)}]"
    return _words(value, depth)


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


_PLAIN = _SCALARS | {dict, list, set, tuple, frozenset, types.ModuleType}
"""Types of values that hold no code by themselves."""
_OF_C = frozenset((types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType))
