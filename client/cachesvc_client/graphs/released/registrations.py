"""Reads in torch's sources for which operators its modules register an entry of a table.

A process that attaches late does not know what stood in a table before a program changed it. The sources say
that: a statement at the left margin of a module, such as ``@register_lowering(aten.cat)``, names the
operators. What a loop or a function registers is not read.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

from .source import source

_STATEMENTS = re.compile(r"\n(?=[^\s)\]}#])")
"""Matches where a statement at the left margin begins."""
_CALL = re.compile(r"@?(?:[\w, ]+ = )?(?:\w+\.)*(\w+)\(\s*(\[[^\]]*\]|[\w.]+)")
"""Matches a statement that calls a function: its name, and the first argument."""
_OPERATOR = re.compile(r"\b(aten|prims|inductor_prims)\.(\w+)(?:\.(\w+))?")
_IN_PLACE = re.compile(r"(\w+_) = _make_inplace\(")
"""Matches a statement that registers a reference for the operator that writes into its input."""
_OVERLOAD = re.compile(r"aten\.(\w+).*")
_COMMENT = re.compile(r"#[^\n]*")
_REFERENCE = re.compile(r"@_make_elementwise_(?:unary|binary)_reference\(")
"""Matches a decorator that registers a function for the operator of the function's name."""
_DEFINED = re.compile(r"def (\w+)\(")
_PATTERN = re.compile(r"@register_(?:graph|lowering)_pattern\(")
_KERNEL = re.compile(r"@(aten\.\w+\.\w+)\.py_impl\(\s*DispatchKey\.(\w+)")
"""Matches a decorator that registers a function for an operator and a dispatch key."""
_ELSEWHERE = ("registry", "lowering_dict", "extra_random_decomps", "pre_autograd", "\n    ]\n    +")
"""What a statement names that registers for another table than the one of its function."""
_CORE = "_core_aten_decompositions_post_autograd"
"""The function that lists the operators which Inductor decomposes with AOTAutograd's functions."""


def of_table(table: str) -> list[Any]:
    """Return the operators for which the loaded modules of torch register an entry of a table."""
    find = _TABLES.get(table)
    return list(dict.fromkeys(find())) if find is not None else []


def kernels() -> Iterator[tuple[Any, Any]]:
    """Yield operator and dispatch key of the functions that torch registers with the operators' objects."""
    import torch

    for module in _loaded(*_DECOMPOSE):
        for statement in _statements(module):
            if found := _KERNEL.match(statement):
                yield from ((one, getattr(torch._C.DispatchKey, found[2])) for one in _named_in(found[1]))


def handlers(module: Any) -> tuple[str, ...]:
    """Return the names of the functions that a module registers as the handler of a pattern."""
    return _handlers(str(getattr(module, "__file__", "")))


@functools.cache
def _handlers(file: str) -> tuple[str, ...]:
    found, waiting = [], False
    for statement in _STATEMENTS.split(source(file).text):
        waiting |= _PATTERN.match(statement) is not None
        if waiting and (defined := _DEFINED.match(statement)):
            waiting = False
            found.append(defined[1])
    return tuple(found)


def _statements(module: Any) -> list[str]:
    return _STATEMENTS.split(source(str(getattr(module, "__file__", ""))).text)


def _loaded(*names: str) -> Iterator[Any]:
    """Yield the loaded modules of these names, and those within the packages of these names."""
    for name, module in list(sys.modules.items()):
        if name in names or name.startswith(tuple(f"{one}." for one in names)):
            yield module


def _named_in(text: str) -> Iterator[Any]:
    """Yield the operators that a text names: of a name without an overload, all overloads."""
    import torch

    for space, name, overload in _OPERATOR.findall(_COMMENT.sub("", text)):
        packet: Any
        if space == "inductor_prims":
            packet = getattr(sys.modules.get("torch._inductor.inductor_prims"), name, None)
        else:
            packet = getattr(getattr(torch.ops, space), name, None)
        if not hasattr(packet, "overloads"):
            yield from () if packet is None else (packet,)
            continue
        for one in (overload,) if overload else packet.overloads():
            if (operator := getattr(packet, one, None)) is not None:
                yield operator


def _registered(function: Callable[[str], bool], *modules: str) -> Iterator[Any]:
    """Yield the operators that the statements of modules register. ``function``: whether a function of this
    name registers."""
    for module in _loaded(*modules):
        for statement in _statements(module):
            call = _CALL.match(statement)
            if call and function(call[1]) and not any(one in statement for one in _ELSEWHERE):
                yield from _named_in(call[2])
                if call[1].startswith("register_pointwise"):  # and for the one of its name in ``prims``
                    yield from _named_in(_OVERLOAD.sub(r"prims.\1", call[2]))


def _with_kernel(operators: Iterator[Any]) -> Iterator[Any]:
    """Yield the operators for which the dispatcher has a function: torch registers no other decomposition."""
    import torch

    for one in operators:
        if torch._C._dispatch_has_kernel(one.name()):
            yield one


def _references() -> Iterator[Any]:
    """Yield the operators for which a decorator of references registers a decomposition."""
    for module in _loaded("torch._refs"):
        prefix = module.__name__.removeprefix("torch._refs").lstrip(".").replace(".", "_")
        decorator = ""
        for statement in _statements(module):
            if not prefix and (written := _IN_PLACE.match(statement)):
                yield from _named_in(f"aten.{written[1]}")
            decorator = statement if _REFERENCE.match(statement) else decorator
            if not decorator or not (defined := _DEFINED.match(statement)):
                continue
            _, given, operator = decorator.partition("aten_op=")
            if "should_register_decomposition=False" not in decorator:
                own = f"aten.{prefix}_{defined[1]}" if prefix else f"aten.{defined[1]}"
                yield from _named_in(operator.partition(",")[0] if given else own)
            decorator = ""


def _decompositions() -> Iterator[Any]:
    yield from _with_kernel(_registered(lambda name: name == "register_decomposition", *_DECOMPOSE))
    yield from _with_kernel(_references())


_DECOMPOSE = ("torch._decomp.decompositions", "torch._refs")


def _meta() -> Iterator[Any]:
    yield from _with_kernel(_registered(lambda name: name == "register_meta", "torch._meta_registrations"))


def _of_inductor() -> Iterator[Any]:
    """Yield the operators that Inductor decomposes: of those that two lists have what AOTAutograd decomposes,
    without a third list; and its own."""
    decomp = sys.modules["torch._decomp"]
    [module] = _loaded("torch._inductor.decomposition")
    _, _, core = source(str(decomp.__file__)).text.partition(f"def {_CORE}(")
    lists = [core.partition("\n\n\n")[0]] if core else []
    excluded: set[Any] = set()
    for statement in _statements(module):
        if statement.startswith("inductor_decompositions = get_decompositions("):
            lists.append(statement)
        elif statement.startswith("decomps_to_exclude"):
            excluded.update(_named_in(statement))
    for text in lists:
        for one in _named_in(text):
            if one in decomp.decomposition_table and one not in excluded:
                yield one
    own = _registered(lambda name: name == "register_decomposition", module.__name__)
    yield from _with_kernel(own)


def _lowerings() -> Iterator[Any]:
    def registers(name: str) -> bool:
        return name.startswith("register_") or name == "make_fallback"

    yield from _registered(registers, "torch._inductor.lowering", "torch._inductor.kernel")


_TABLES: dict[str, Callable[[], Iterator[Any]]] = {
    "torch._decomp.decomposition_table": _decompositions,
    "torch._decomp.meta_table": _meta,
    "torch._inductor.decomposition.decompositions": _of_inductor,
    "torch._inductor.lowering.lowerings": _lowerings,
}
"""Table -> what yields its operators."""
