"""Digests code objects, and writes constants as texts without addresses, alike in every process."""

from __future__ import annotations

import enum
import hashlib
import types
from typing import Any

PLAIN = (bool, int, float, str, bytes, complex)
_codes: dict[types.CodeType, str] = {}
"""The digests of code objects, by the objects: code does not change."""


def code_digest(code: types.CodeType) -> str:
    """Return the digest of a code object and of the code inside of it, without its place in the source."""
    known = _codes.get(code)
    if known is None:
        known = _codes[code] = _digest_of_code(code)
    return known


def _digest_of_code(code: types.CodeType) -> str:
    constants = [
        code_digest(one) if isinstance(one, types.CodeType) else constant_text(one) for one in code.co_consts
    ]
    parts = (
        code.co_code,
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        code.co_flags,
        (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount),
        getattr(code, "co_exceptiontable", b""),
        constants,
    )
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()


def constant_text(value: Any) -> str:
    """Return a constant of a code object, or a default value, as a text without addresses."""
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__}({', '.join(map(constant_text, value))})"
    if isinstance(value, (set, frozenset)):
        return f"{type(value).__name__}({', '.join(sorted(map(constant_text, value)))})"
    if type(value) is dict:
        items = (f"{constant_text(key)}: {constant_text(one)}" for key, one in value.items())
        return f"dict({', '.join(items)})"
    if value is None or value is Ellipsis or type(value) in PLAIN:
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, enum.Enum):
        return (
            f"{qualified_name(type(value))}.{value.name} {constant_text(value.value)} {own_attributes(value)}"
        )
    if isinstance(value, types.FunctionType):
        return f"function {value.__module__}.{value.__qualname__} {code_digest(value.__code__)}"
    if isinstance(value, type):
        return f"class {qualified_name(value)}"
    if type(value).__module__ == "torch":
        return (
            f"{qualified_name(type(value))} {value!s}" if type(value).__name__ in _PLAIN_OF_TORCH else "torch"
        )
    return qualified_name(type(value))


_PLAIN_OF_TORCH = frozenset({"dtype", "device", "layout", "memory_format", "Size"})
"""Names of torch's types whose texts are their values."""


def own_attributes(member: enum.Enum) -> str:
    """Return the attributes that a program gave a member of an enumeration: Dynamo guards none of them."""
    return constant_text({name: one for name, one in vars(member).items() if not name.startswith("_")})


def qualified_name(kind: type) -> str:
    """Return the module and the name of a class."""
    return f"{kind.__module__}.{kind.__qualname__}"
