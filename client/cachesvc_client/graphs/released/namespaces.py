"""Finds what stands in a namespace of ``torch.ops``, or in an operator, that torch did not put there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .known import is_c_function

OPERATORS = "torch._ops"
"""The module of the classes of ``torch.ops.NAMESPACE`` and ``torch.ops.NAMESPACE.OPERATOR``."""


def operator_holders(holder: Any) -> Iterator[Any]:
    """Yield the namespaces of ``torch.ops``, or the operators of a namespace, that were used already."""
    kinds = ("_OpNamespace", "OpOverloadPacket")
    for value in list(vars(holder).values()):
        if type(value).__module__ == OPERATORS and type(value).__name__ in kinds:
            yield value


def operator_name(holder: Any) -> str:
    """Return the name of a namespace of operators, or of an operator with its namespace."""
    return str(getattr(holder, "_qualified_op_name", "")).replace("::", ".") or str(holder.name)


def operator_changes(holder: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names of a namespace of operators, or of an operator, under which something else stands than
    the operator, or the overload, of that name."""
    own, overloads = operator_name(holder), ("_op", "default", *getattr(holder, "_overload_names", ()))
    for name, value in list(vars(holder).items()):
        if hasattr(holder, "_overload_names") and name not in overloads:
            continue  # what torch keeps there beside the overloads, and no call of the operator uses
        if not callable(value) or (name == "_op" and is_c_function(value)):
            continue
        if getattr(value, "_overloadpacket", None) is holder and value._overloadname == name:
            continue
        said = str(getattr(value, "_qualified_op_name", "")).replace("::", ".")
        if type(value).__module__ == OPERATORS and said == f"{own}.{name}":
            continue
        if own == "higher_order" and getattr(value, "_name", None) == name:
            continue
        yield name, value
