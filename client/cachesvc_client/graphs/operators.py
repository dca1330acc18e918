"""Puts the Python code of operators into AOTAutograd's key, which has only the operators' names.

A graph names an operator. AOTAutograd traces the operator's Python code, which so becomes part of what is
compiled: the backward of a ``torch.library.custom_op``, the body of a ``triton_op`` (and its kernels, where
``torch.library.wrap_triton`` is named in full), the functions that a ``Library`` registers for autograd or as
a composite, and a fake that computes shapes. Since the key has only the name, after an edit of the code the
old entry would be a hit [measured, 2.13: wrong outputs, and wrong gradients]. So these hooks put a digest of
the code into the key of each graph that calls such an operator; the key of any other graph stays as it is.
The function that runs (the body of a ``custom_op``) is not traced, and is no part of the digest. The schema
is: a graph of an operator that writes into its input is another one [measured, 2.13: 30 in the place of 0].

The functions are known of operators that ``custom_op`` and ``triton_op`` define, and of every registration
after cachesvc attached. Of an earlier registration by a ``Library`` PyTorch says only that it exists. Then
the key is one that no other process has, which costs a trace and no compilation. Read in torch 2.11 and 2.13.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from ..hooks import imports
from ..hooks.table import Hook
from .keys import AUTOGRAD_KEY, CORE, complete, graph_nodes, nonce

_log = logging.getLogger("cachesvc")

ATTRIBUTE = "python_operators"
"""Name of the component in the details that AOTAutograd's key is made of."""
_TRACED = (
    r"(?m)^(Autograd\w*|Autocast\w+|CompositeImplicitAutograd|Functionalize)(?:\[alias\])?: "
    r"registered at (?:.+\.py|/dev/null):\d+"
)
"""Matches a registration from Python; torch 2.8 says ``/dev/null`` in the place of its file."""
_CAST = "_autocast_"
"""What the attributes of a custom operator begin with that hold dtypes of autocast."""
_SHAPES = r"(?m)^(Meta)(?:\[alias\])?: registered at (?:.+\.py|/dev/null):\d+"
"""Matches a registration from Python that computes shapes, which PyTorch's own keys omit."""
_DEFINED = r"(?m)^debug: registered at (.+):\d+"
"""Matches the place where an operator is defined."""
_NATIVE = "/aten/src/ATen/"
"""Where PyTorch defines operators in C++, of several namespaces."""
_LIBRARY = Hook(
    "torch.library",
    "Library.impl",
    "records the Python functions that libraries register for their operators",
    "the code of such functions is not in a key, so a graph that traces them is cached nowhere",
    role="safety",  # a function under the key Meta would be in no key of PyTorch either
)
HOOKS = (_LIBRARY,)


class RegisteredFunctions:
    """Records the functions that libraries register for operators outside of ``CORE``.

    ``by_operator``: operator -> dispatch key -> function.
    """

    def __init__(self) -> None:
        self.by_operator: dict[str, dict[str, Any]] = {}

    def impl(self, call: imports.Call) -> Any:
        """Run ``Library.impl`` and record its function."""
        answer = call()
        self._record(*call.args, **call.kwargs)
        return answer

    def _record(
        self, library: Any, op_name: Any, fn: Any, dispatch_key: Any = "", *_: Any, **__: Any
    ) -> None:
        """Record the arguments of ``Library.impl``: thousands of calls come while torch is imported."""
        name = str(getattr(op_name, "_name", op_name))
        qualified = (name if "::" in name else f"{library.ns}::{name}").partition(".")[0]
        key = str(dispatch_key or library.dispatch_key or "CompositeImplicitAutograd")
        if qualified.partition("::")[0] in CORE:
            from .released import registered

            place = name.partition("::")[2] if "::" in name else name
            registered.core.noted[f"{library.ns}/{place}/{key}"] = fn
        else:
            self.by_operator.setdefault(qualified, {})[key] = fn


def describe_operators(nodes: Iterable[Any], registered: RegisteredFunctions) -> list[str]:
    """Return ``name code 91c0ed2f4a11`` for each operator in a graph that has traced Python code, with the
    names and sources of its Triton kernels.

    The texts are sorted, each once. Never raises.
    """
    by_name: dict[str, str] = {}
    for node in nodes:
        name = _operator_name(node)
        if name and name not in by_name:
            by_name[name] = _described(name, node.target, registered)
    return sorted(text for text in by_name.values() if text)


def operator_names(nodes: Iterable[Any]) -> set[str]:
    """Return the names, with overloads, of the operators in a graph that are not PyTorch's own."""
    names: set[str] = set()
    for node in nodes:
        if _operator_name(node):
            target = node.target
            names |= {str(getattr(one, "_name", "")) for one in _overloads(target)}
    return names


def describe_operator(name: str, registered: RegisteredFunctions) -> str:
    """Return all that a trace takes from an operator: how it is declared, the digest of its Python code, and
    its C++ code. Return an empty text for an operator that PyTorch itself defines.

    Raises ``LookupError`` for an operator that is not registered here, and for one with code that is traced
    and that no one can name.
    """
    import torch

    from .code.followed import FollowedCode

    space, _, rest = name.partition("::")
    plain, _, overload = rest.partition(".")
    try:
        target = getattr(getattr(getattr(torch.ops, space), plain), overload or "default")
    except AttributeError:
        raise LookupError(f"operator {name} is not registered") from None
    qualified = f"{space}::{plain}"
    declared = _declared(qualified, target)
    if not declared:
        return ""
    functions, unknown = _functions(qualified, target, registered)
    by_key = registered.by_operator.get(qualified, {})
    definition = _definition(qualified)
    shapes = [] if definition is not None else re.findall(_SHAPES, torch._C._dispatch_dump(name))
    if unknown or any(key not in by_key for key in shapes):
        raise LookupError(f"operator {name} has code that was registered before cachesvc was attached")
    followed = FollowedCode(functions, _by_short_name(registered))
    if followed.unknown:
        raise LookupError(f"operator {name} reads what has no description: {followed.unknown}")
    parts = [*declared, *_casts(definition), *_native(target)]
    return f"{' '.join(parts)} code {followed.digest_without(qualified)}"


def _casts(definition: Any) -> list[str]:
    """Return what autocast makes of the inputs of a custom operator: an attribute for each device up to torch
    2.12, one for all devices after that."""
    given = getattr(definition, "__dict__", {}).items()
    values = {name: value for name, value in given if _CAST in name and value}
    return [
        f"{name} {sorted(map(str, value.items())) if isinstance(value, dict) else value}"
        for name, value in sorted(values.items())
    ]


def install_hooks(registered: RegisteredFunctions) -> None:
    """Put the hooks in place when the application imports the modules. They fill and read ``registered``.

    Safe to call again.
    """
    imports.when_imported("torch.library", _note_earlier)
    _LIBRARY.install(registered.impl)
    complete(AUTOGRAD_KEY, functools.partial(key_parts, registered))


def _note_earlier(module: Any) -> None:
    """Note the registrations for operators of PyTorch's own that came before the hook."""
    if not hasattr(getattr(module, "Library", None), "impl") or hasattr(module.Library.impl, "__wrapped__"):
        return
    from .released import registered

    spaces = tuple(f"{one}/" for one in CORE)
    registered.core.earlier |= {one for one in getattr(module, "_impls", ()) if one.startswith(spaces)}


def key_parts(registered: RegisteredFunctions, _: Any, graph: Any) -> dict[str, list[str]]:
    """Return the part of AOTAutograd's key: none for a graph without such operators."""
    operators = describe_operators(graph_nodes(graph), registered)
    return {ATTRIBUTE: operators} if operators else {}


def _operator_name(node: Any) -> str:
    """Return ``namespace::name`` of an operator that is not PyTorch's own; else an empty text."""
    if node.op != "call_function":
        return ""
    target = node.target
    name = str(getattr(target, "_qualified_op_name", None) or getattr(target, "_name", ""))
    namespace, _, rest = name.partition("::")
    return f"{namespace}::{rest.partition('.')[0]}" if rest and namespace not in CORE else ""


def _described(name: str, target: Any, registered: RegisteredFunctions) -> str:
    """Return the text of one operator; an empty text if PyTorch itself defines it."""
    try:
        from .code.followed import FollowedCode
        from .code.values import short

        declared = _declared(name, target)
        if not declared:
            return ""
        functions, unknown = _functions(name, target, registered)
        if unknown:
            return f"{name} code {unknown}"
        followed = FollowedCode(functions, _by_short_name(registered))
        if followed.unknown:
            return f"{name} code {nonce(f'reads what has no description: {followed.unknown}')}"
        parts = [followed.digest_without(name), *declared, *_casts(_definition(name)), *_native(target)]
        kernels = [f"{kernel} source {source}" for kernel, source in followed.kernels.items()]
        return ", ".join([f"{name} code {short(repr(parts))}", *kernels])
    except LookupError as error:
        return f"{name} code {nonce(str(error))}"
    except Exception:  # noqa: BLE001 - a torch whose internals differ
        _log.debug("%s: its code is not known", name, exc_info=True)
        return f"{name} code {nonce('not known')}"


def _declared(name: str, target: Any) -> list[str]:
    """Return the schemas, tags and effects of an operator's overloads, without its name: they say what the
    operator writes into, how Inductor may lay out its inputs, and whether a call may be omitted. Return an
    empty list for an operator that PyTorch itself defines."""
    import torch

    overloads = _overloads(target)
    if _definition(name) is None:
        files = [_file_of(torch._C._dispatch_dump(one._name)) for one in overloads]
        if all(_NATIVE in file or _is_torchs_own(file, _folder(torch)) for file in files):
            return []
    return [
        f"({str(one._schema).partition('(')[2]} {sorted(map(str, one.tags))} {_effect(one)}"
        for one in overloads
    ]


def _effect(overload: Any) -> Any:
    """Return the effect that was registered for an operator; ``None`` for one that has none."""
    effects = sys.modules.get("torch._higher_order_ops.effects")
    get = getattr(effects, "_get_effect", None) or getattr(effects, "SIDE_EFFECTS", {}).get
    return get(overload)


def _overloads(target: Any) -> list[Any]:
    """Return the overloads of an operator that a graph calls: all of them, or the one."""
    names = getattr(target, "overloads", None)
    return [getattr(target, name) for name in names()] if names else [target]


def _functions(name: str, target: Any, registered: RegisteredFunctions) -> tuple[list[Any], str]:
    """Return the functions that are traced of an operator which PyTorch itself does not define; or, where one
    is not known, none of them and a text that stands for them in the key."""
    import torch

    definition = _definition(name)
    functions = [*_of_definition(definition), *_decompositions(target)]
    if definition is not None:
        return functions, ""
    dump = torch._C._dispatch_dump(str(getattr(target, "_name", name)))
    by_key = registered.by_operator.get(name, {})
    if any(key not in by_key for key in re.findall(_TRACED, dump)):
        return [], nonce("registered before cachesvc was attached")
    functions += [by_key[key] for key in sorted(by_key) if _is_traced(key)]
    entry = torch._library.simple_registry.singleton._data.get(name)
    from .released.tables import functions_of_entry

    return functions + functions_of_entry(entry), ""


def _native(target: Any) -> list[str]:
    """Return what stands for the C++ code of an operator's overloads that is traced. Raises ``LookupError``
    for code that is in no library."""
    import torch

    from .released import native  # `attach` loads nothing that a compile alone needs

    names = [one._name for one in _overloads(target)]
    texts = [native.code_of(name, torch._C._dispatch_dump(name)) for name in names]
    return [f"C++ {text}" for text in texts if text]


def _definition(name: str) -> Any:
    """Return what ``custom_op`` or ``triton_op`` made of a function; ``None`` for other operators."""
    import torch

    return torch._library.custom_ops.OPDEFS.get(name)


def _of_definition(definition: Any) -> list[Any]:
    """Return the functions of a ``custom_op`` or ``triton_op`` that are traced: all but the one that runs."""
    if definition is None:
        return []
    dispatched = sorted(definition._torch_dispatch_fns.items(), key=lambda item: str(item[0]))
    parts = [
        definition._abstract_fn,
        definition._setup_context_fn,
        definition._backward_fn,
        definition._vmap_fn,
    ]
    return [part for part in (*parts, *(part for _, part in dispatched)) if part is not None]


def _by_short_name(registered: RegisteredFunctions) -> dict[str, list[Any]]:
    """Return the traced functions of all operators, which a body may call, by the operators' names without
    their namespaces."""
    import torch

    functions: dict[str, list[Any]] = {}
    for name, definition in list(torch._library.custom_ops.OPDEFS.items()):
        functions.setdefault(name.partition("::")[2], []).extend(_of_definition(definition))
    for name, by_key in registered.by_operator.items():
        traced = [by_key[key] for key in sorted(by_key) if _is_traced(key)]
        functions.setdefault(name.partition("::")[2], []).extend(traced)
    return functions


_TRACED_KEYS = ("CompositeImplicitAutograd", "Functionalize", "Meta")


def _is_traced(key: str) -> bool:
    return key.startswith(("Autograd", "Autocast")) or key in _TRACED_KEYS


def _is_torchs_own(path: str, torch_folder: str) -> bool:
    """Return whether PyTorch itself defines an operator. ``path``: the file of the definition.

    Two files of PyTorch define the operators of applications: those are not PyTorch's own.
    """
    public = (
        os.path.join(torch_folder, "library.py"),
        os.path.join(torch_folder, "_library", "custom_ops.py"),
    )
    return (path.startswith(torch_folder + os.sep) and path not in public) or "/torch/csrc/" in path


def _file_of(dump: str) -> str:
    """Return the file that defines an operator, out of PyTorch's list of its registrations."""
    return "".join(re.findall(_DEFINED, dump)[:1])


def _folder(torch: Any) -> str:
    return os.path.dirname(str(torch.__file__))


def _decompositions(target: Any) -> Iterator[Any]:
    """Yield the Python functions that are registered for the overloads of an operator."""
    for overload in _overloads(target):
        yield from (fn for _, fn in sorted(overload.py_kernels.items(), key=lambda item: str(item[0])))
        for table in ("torch._decomp.decomposition_table", "torch._inductor.decomposition.decompositions"):
            module, _, attribute = table.rpartition(".")
            function = getattr(sys.modules.get(module), attribute, {}).get(overload)
            if function is not None:
                yield function
