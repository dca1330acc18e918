"""Test that programs in texts import what exists: no type checker reads them, and a move forgets them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tools.house import ROOT, modules

IMPORT = re.compile(
    r"\bfrom (cachesvc(?:_client)?(?:\.\w+)*) import \(?([\w, ]+)|\bimport (cachesvc(?:_client)?(?:\.\w+)+)"
)
MODULES = modules()


@cache
def names(module: str) -> set[str]:
    """Return each name that a module binds anywhere, and its submodules."""
    nodes = list(ast.walk(MODULES[module].tree))
    bound = {
        node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    bound |= {node.id for node in nodes if isinstance(node, ast.Name)}
    bound |= {node.asname or node.name for node in nodes if isinstance(node, ast.alias)}
    return bound | {name.removeprefix(f"{module}.") for name in MODULES if name.startswith(f"{module}.")}


def missing(source: str) -> Iterator[str]:
    """Yield what the texts in a module import of these packages and what does not exist."""
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            continue
        for module, imported, whole in IMPORT.findall(node.value):
            if (module or whole) not in MODULES:
                yield module or whole
            elif module:
                wanted = {part.split(" as ")[0].strip() for part in imported.split(",")} - {""}
                yield from (f"{module}.{name}" for name in sorted(wanted - names(module)))


@pytest.mark.parametrize("folder", ["tests", "benchmarks", "tools", "examples"])
def test_programs_in_texts_import_what_exists(folder: str) -> None:
    plants = Path(__file__).parent  # tests of the checks import what must not exist
    files = [file for file in (ROOT / folder).rglob("*.py") if file.parent != plants]
    found = {f"{file.relative_to(ROOT)}: {name}" for file in files for name in missing(file.read_text())}
    assert found == set()


def test_a_forgotten_move_is_found() -> None:
    program = (
        '"""import sys\\nfrom cachesvc_client.wire import names, gone\\nimport cachesvc_client.away.too"""'
    )
    assert list(missing(program)) == ["cachesvc_client.wire.gone", "cachesvc_client.away.too"]
