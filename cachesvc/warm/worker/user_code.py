"""Import the user's code, and report its errors in one line. Imports no torch."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from ..spec.plan import Job
from ..spec.toml_table import MADE_BY


class UserCodeError(Exception):
    """The user's code failed; the text says how, in one line."""


def one_line(error: object) -> str:
    """Return the type and the first line of an exception that has text; of anything else the first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0][:300] if lines else ""
    return f"{type(error).__name__}: {text}" if isinstance(error, BaseException) else text


def add_import_paths(job: Job) -> None:
    """Add the folders from which factories are imported: the declared ones, then the spec's."""
    for folder in reversed([*job.spec.paths, job.folder]):
        if folder not in sys.path:
            sys.path.insert(0, folder)


def make_argument(value: Any, job: Job) -> Any:
    """Return an argument of the factory; one that names what makes it is made."""
    if isinstance(value, list):
        return [make_argument(item, job) for item in value]
    if not isinstance(value, dict):
        return value
    made = {name: make_argument(item, job) for name, item in value.items() if name != MADE_BY}
    return call_by_name(value[MADE_BY], made, job) if MADE_BY in value else made


def call_by_name(path: str, arguments: dict[str, Any], job: Job) -> Any:
    """Import ``module:function`` and call it."""
    module_name, _, names = path.partition(":")
    try:
        function: Any = importlib.import_module(module_name)
    except Exception as error:
        folders = ", ".join([job.folder, *job.spec.paths])
        raise UserCodeError(
            f"{path}: cannot import {module_name} (from {folders}): {one_line(error)}"
        ) from error
    for name in names.split("."):
        function = getattr(function, name, None)
    if not callable(function):
        raise UserCodeError(f"{path}: {module_name} has no function {names}")
    try:
        return function(**arguments)
    except Exception as error:
        raise UserCodeError(f"{path} raised {one_line(error)}{missing_hint(error, job)}") from error


def missing_hint(error: Exception, job: Job) -> str:
    """Return what helps against a file that is missing."""
    if isinstance(error, FileNotFoundError) and not job.spec.cwd:
        return '; targets run in an empty folder: set cwd = "." to run in the spec\'s'
    return ""
