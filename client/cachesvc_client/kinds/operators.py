"""Operators whose Python code a compile traces into, and which no key of PyTorch's holds.

A graph names an operator; what AOTAutograd finds in it becomes part of the compiled code: the backward of a
``torch.library.custom_op``, the body of a ``triton_op`` (and its kernels, where ``torch.library.wrap_triton``
is named in full), what a ``Library`` registers for autograd or as a composite, a fake that computes shapes.
AOTAutograd's key holds the name alone, so that an edit of the code is a hit with the numbers of before
[measured, 2.13: wrong outputs, and wrong gradients]. Here the code's digest is put into that key where a
graph calls such an operator; the key of any other graph stays as it is. What an operator does when it runs
(the body of a ``custom_op``) is not traced, and not in it.

Functions are known of operators made with ``custom_op`` and ``triton_op``, and of every registration that
came after cachesvc. Of an earlier one of a ``Library`` it is known that it exists: then no other process's
key is met, which costs a trace and no compilation. Read in torch 2.11 and 2.13.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from .. import importhook
from .keys import AUTOGRAD_KEY, complete, graph_nodes, nonce

_log = logging.getLogger("cachesvc")

ATTRIBUTE = "python_operators"
"""Of the details that AOTAutograd's key is made of: the component's name."""
_CORE = frozenset({"aten", "prim", "prims"})
"""Namespaces of PyTorch's own operators, whose code is in every key as torch's version."""
_TRACED = re.compile(
    r"^(Autograd\w*|CompositeImplicitAutograd)(?:\[alias\])?: registered at (?:.+\.py|/dev/null):\d+",
    re.MULTILINE,
)
"""A registration from Python; torch 2.8 says ``/dev/null`` in the place of its file."""
_DEFINED = re.compile(r"^debug: registered at (.+):\d+", re.MULTILINE)
_registered: dict[str, dict[str, Any]] = {}
"""Operator -> dispatch key -> function, of libraries outside of ``_CORE``."""


def described(nodes: Iterable[Any]) -> list[str]:
    """``name code 91c0ed2f4a11`` of each operator in a graph that has traced Python code; its Triton kernels
    by name. Sorted, each once. Never raises."""
    found: dict[str, str] = {}
    for node in nodes:
        name = _operator(node)
        if name and name not in found:
            found[name] = _described(name, node.target)
    return sorted(text for text in found.values() if text)


def install_hooks() -> None:
    """Puts the hooks in place when the application imports the modules. Safe to call again."""
    importhook.when_imported("torch.library", _hook_library)
    complete(AUTOGRAD_KEY, _of_key)


def _of_key(_: Any, graph: Any) -> dict[str, list[str]]:
    """Answers the part of AOTAutograd's key: none for a graph without such operators."""
    found = described(graph_nodes(graph))
    return {ATTRIBUTE: found} if found else {}


def _operator(node: Any) -> str:
    """``namespace::name`` of an operator that is not PyTorch's own."""
    if node.op != "call_function":
        return ""
    target = node.target
    name = str(getattr(target, "_qualified_op_name", None) or getattr(target, "_name", ""))
    namespace, _, rest = name.partition("::")
    return f"{namespace}::{rest.partition('.')[0]}" if rest and namespace not in _CORE else ""


def _described(name: str, target: Any) -> str:
    try:
        from .code import Followed

        functions, unknown = _functions(name, target)
        if unknown:
            return f"{name} code {unknown}"
        followed = Followed(functions, _by_name())
        kernels = [f"{kernel} source {source}" for kernel, source in followed.kernels.items()]
        return ", ".join([f"{name} code {followed.digest}", *kernels]) if followed.anything else ""
    except Exception:  # noqa: BLE001 - a torch that is made otherwise
        _log.debug("%s: its code is not known", name, exc_info=True)
        return f"{name} code {nonce('not known')}"


def _functions(name: str, target: Any) -> tuple[list[Any], str]:
    """What is traced of an operator; or, of a registration that nobody knows, what stands for it."""
    import torch

    functions = [*_of_definition(torch._library.custom_ops.OPDEFS.get(name)), *_decompositions(target)]
    if name in torch._library.custom_ops.OPDEFS:
        return functions, ""
    told = torch._C._dispatch_dump(str(getattr(target, "_name", name)))
    if _torchs_own("".join(_DEFINED.findall(told)[:1]), os.path.dirname(torch.__file__)):
        return [], ""
    known = _registered.get(name, {})
    if any(key not in known for key in _TRACED.findall(told)):
        return [], nonce("registered before cachesvc was attached")
    functions += [known[key] for key in sorted(known) if _traced(key)]
    entry = torch._library.simple_registry.singleton._data.get(name)
    if entry is not None and entry.fake_impl.kernel is not None:
        functions.append(entry.fake_impl.kernel.func)
    return functions, ""


def _of_definition(made: Any) -> list[Any]:
    """Of what ``custom_op`` and ``triton_op`` make: all but what runs."""
    if made is None:
        return []
    dispatched = sorted(made._torch_dispatch_fns.items(), key=lambda item: str(item[0]))
    parts = [made._abstract_fn, made._setup_context_fn, made._backward_fn, made._vmap_fn]
    return [part for part in (*parts, *(part for _, part in dispatched)) if part is not None]


def _by_name() -> dict[str, list[Any]]:
    """What the operators do that a body may call, by their names without namespace."""
    import torch

    found: dict[str, list[Any]] = {}
    for name, made in list(torch._library.custom_ops.OPDEFS.items()):
        found.setdefault(name.partition("::")[2], []).extend(_of_definition(made))
    for name, known in _registered.items():
        traced = [known[key] for key in sorted(known) if _traced(key)]
        found.setdefault(name.partition("::")[2], []).extend(traced)
    return found


def _traced(key: str) -> bool:
    return key.startswith("Autograd") or key in ("CompositeImplicitAutograd", "Meta")


def _torchs_own(path: str, place: str) -> bool:
    """Whether an operator is defined by PyTorch itself, and not by what it offers to others."""
    offered = (os.path.join(place, "library.py"), os.path.join(place, "_library", "custom_ops.py"))
    return (path.startswith(place + os.sep) and path not in offered) or "/torch/csrc/" in path


def _decompositions(target: Any) -> Iterator[Any]:
    """Python code that was registered for one overload."""
    overloads = getattr(target, "overloads", None)
    for overload in (getattr(target, name) for name in overloads()) if overloads else (target,):
        yield from (fn for _, fn in sorted(overload.py_kernels.items(), key=lambda item: str(item[0])))
        for table in ("torch._decomp.decomposition_table", "torch._inductor.decomposition.decompositions"):
            module, _, attribute = table.rpartition(".")
            found = getattr(sys.modules.get(module), attribute, {}).get(overload)
            if found is not None:
                yield found


# Hooks ----------------------------------------------------------------------------------------


def _hook_library(module: ModuleType) -> None:
    if not importhook.hook(module, "Library.impl", _impl):
        _log.debug("this torch has no Library.impl: code that a library registers is not known")


def _impl(call: importhook.Call) -> Any:
    answer = call()
    _note(*call.args, **call.kwargs)
    return answer


def _note(library: Any, op_name: Any, fn: Any, dispatch_key: Any = "", *_: Any, **__: Any) -> None:
    """Takes the arguments of ``Library.impl``: thousands of calls come while torch is imported."""
    name = str(getattr(op_name, "_name", op_name))
    qualified = (name if "::" in name else f"{library.ns}::{name}").partition(".")[0]
    if qualified.partition("::")[0] not in _CORE:
        key = str(dispatch_key or library.dispatch_key or "CompositeImplicitAutograd")
        _registered.setdefault(qualified, {})[key] = fn
