"""Takes out of compiled graphs what a start does not use: imports in the generated code, and texts of the
graph for readers of PyTorch's logs.

Every generated module imports Inductor's lowerings, memory planner and more, most of it for names that it
never reads. A start that does not compile spends a quarter of its time on that [measured, 2.13]. The code is
made lean in the process that records it, so the proof of `warm` is of the lean code.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterator
from typing import Any

_INDUCTOR = "torch._inductor"
_SELECTION = "torch._inductor.select_algorithm"
_NAMESPACE = "extern_kernels"
"""The name under which generated code finds the operators that Inductor does not generate."""
_PLAIN_OPERATORS = ("aten", "prims")
"""Namespaces of ``torch.ops`` whose operators are there without Inductor."""
_TEXTS_OF_GRAPH = ("runnable_graph_str", "inductor_post_grad_graph_str")
_TEXTS_OF_RESULT = ("aot_joint_graph_str", "aot_forward_graph_str", "aot_backward_graph_str")
_LINES_OF_KEY = "_fx_graph_cache_debug_lines"
"""Attributes with the same graph once more, as text for PyTorch's logs: half of the bytes of a record."""
_LEFT_OUT = "(cachesvc does not record this text)"


def drop_texts(result: Any) -> None:
    """Replace the texts of a result of AOTAutograd that PyTorch only writes into its logs. A text that is not
    there stays ``None``: PyTorch asks that."""
    owners = [
        (result.content, _TEXTS_OF_RESULT),
        *((one, _TEXTS_OF_GRAPH) for one in compiled_graphs(result)),
    ]
    for owner, names in owners:
        for name in names:
            if isinstance(getattr(owner, name, None), str):
                setattr(owner, name, _LEFT_OUT)
        if isinstance(getattr(owner, _LINES_OF_KEY, None), list):
            setattr(owner, _LINES_OF_KEY, [])


def make_lean(graph: Any) -> None:
    """Replace the source of a compiled graph (PyTorch's ``CompiledFxGraph``) by its lean form, with a name of
    its own."""
    source = lean(graph.source_code)
    if source != graph.source_code:
        graph.source_code = source
        graph.cache_key = "c" + hashlib.sha256(source.encode()).hexdigest()[:51]


def compiled_graphs(result: Any) -> Iterator[Any]:
    """Yield the compiled graphs, with sources, of a result of AOTAutograd."""
    for part in ("compiled_fw", "compiled_bw"):
        graph = getattr(getattr(result.content, part, None), "result", None)
        if isinstance(getattr(graph, "source_code", None), str):
            yield graph


def lean(source: str) -> str:
    """Return generated code without imports of Inductor that it does not use; line numbers stay.

    The operators in ``extern_kernels`` that are functions of ``torch`` itself are taken from there. Code that
    calls operators of Inductor or of an application keeps all imports: they may register the operators.
    """
    tree = ast.parse(source)
    if not set(_namespaces(tree)) <= {*_PLAIN_OPERATORS}:
        return source
    lines = source.splitlines(keepends=True)
    for node in tree.body:
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith(_INDUCTOR):
            continue
        if node.lineno != node.end_lineno or len(node.names) != 1:
            continue
        name = node.names[0].asname or node.names[0].name
        line = lines[node.lineno - 1]
        if not any(_uses(tree, name)):
            lines[node.lineno - 1] = f"# not used: {line}"
        elif name == _NAMESPACE and node.module == _SELECTION and _is_torch(tree):
            lines[node.lineno - 1] = f"{_NAMESPACE} = torch  # {line}"
    return "".join(lines)


def _uses(tree: ast.Module, name: str) -> Iterator[ast.Name]:
    """Yield where the code reads a name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == name:
            yield node


def _is_torch(tree: ast.Module) -> bool:
    """Return whether the code reads attributes alone of ``extern_kernels``, and each is that of ``torch``."""
    import torch

    kernels = getattr(sys.modules.get(_SELECTION), _NAMESPACE, None)
    read = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == _NAMESPACE
    ]
    return len(read) == len(list(_uses(tree, _NAMESPACE))) and all(
        getattr(torch, node.attr, None) is getattr(kernels, node.attr, _NAMESPACE) for node in read
    )


def _namespaces(tree: ast.Module) -> Iterator[str]:
    """Yield the namespaces of ``torch.ops`` that functions of the code use.

    The head of the module gives names to some namespaces and operators: such a name counts where a function
    reads it.
    """
    named: dict[str, str] = {}
    for statement in tree.body:
        if (name := _name_of_operators(statement)) is not None:
            named[name[0]] = name[1]
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and node.id in named:
                yield named[node.id]
            elif isinstance(node, ast.Attribute) and (namespace := _namespace(node)):
                yield namespace


def _name_of_operators(statement: ast.stmt) -> tuple[str, str] | None:
    """Return ``(name, x)`` of a statement ``name = torch.ops.x`` or ``name = torch.ops.x.operator``."""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return None
    namespace = _namespace(statement.value)
    return (statement.targets[0].id, namespace) if namespace else None


def _namespace(node: ast.expr) -> str:
    """Return the ``x`` of ``torch.ops.x`` or of an attribute of it; else an empty text."""
    path: list[str] = []
    while isinstance(node, ast.Attribute):
        path.insert(0, node.attr)
        node = node.value
    is_operator = isinstance(node, ast.Name) and node.id == "torch" and path[:1] == ["ops"] and len(path) > 1
    return path[1] if is_operator else ""
