"""Test that the names of an installed torch and Triton, once imported, are as the table of names says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.hook_contract import Row, Table, is_there, parameter_names, rows

from .environments import python_of

PROGRAM = """
import importlib, inspect, json, os, sys
def look(module, path):
    try:
        owner = importlib.import_module(module)
    except ModuleNotFoundError:
        return None
    *parents, last = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent, None)
    found = vars(owner).get(last, getattr(type(owner), last, None)) if owner is not None else None
    if found is not None and found is getattr(object, last, None):  # ``__getstate__``, Python 3.11
        return None
    if found is None and last not in getattr(type(owner), "__dict__", {}):
        return None
    found = getattr(found, "__func__", found)
    return sorted(inspect.signature(inspect.unwrap(found)).parameters) if inspect.isroutine(found) else []
names = json.loads(sys.stdin.read())
versions = {}
for package in ("torch", "triton"):
    try:
        versions[package] = importlib.import_module(package).__version__
    except ModuleNotFoundError:
        pass
forms = [look(*name) if name[0].split(".")[0] in versions else None for name in names]
print(json.dumps([versions, forms]), flush=True)
os._exit(0)  # some of these modules start processes, which nobody needs here
"""
VERSIONS = ("2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.1", "", "2.14.1", "2.15.0")


@pytest.mark.parametrize("version", VERSIONS)
def test_imported_names_are_as_the_table_says(version: str) -> None:
    """No version: the torch of this environment. Triton takes part where it is installed."""
    python = python_of(version) if version else Path(sys.executable)
    hooks = [row for row in rows() if row.path and not row.called]
    names = json.dumps([(row.module, row.path) for row in hooks])
    result = subprocess.run(
        [python, "-W", "ignore", "-c", PROGRAM], input=names, capture_output=True, text=True, check=True
    )
    versions, seen = json.loads(result.stdout.splitlines()[-1])
    table, compared = Table.read(), 0
    for row, parameters in zip(hooks, seen, strict=True):
        if row.package in versions:
            compared += 1
            release = table.nearest(row.package, versions[row.package].partition("+")[0])
            assert release is not None, versions
            assert_as_in_table(row, table.form(row, release), parameters)
    assert compared >= 25


def assert_as_in_table(row: Row, form: str, parameters: list[str] | None) -> None:
    """Assert that an imported name has the parameters of the form; no value may be a function.

    A method that only a base class has is none of the class's own: a hook does not find it there.
    """
    assert (parameters is None) != is_there(form), (row.name, form, parameters)
    if parameters:
        assert set(parameters) == parameter_names(form), (row.name, form)
