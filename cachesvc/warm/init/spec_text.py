"""Write a warm spec as TOML, for `cachesvc init`. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .project import ProjectSpec, Target

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_HEAD = """\
# Written by cachesvc init from one run of the program. docs/warm.md explains each key.
#   cachesvc warm {file}
"""


def render(spec: ProjectSpec, file: str = "warm.toml") -> str:
    """Return the text of the spec; what it cannot express is commented out at the end, with the reason."""
    parts = [_HEAD.format(file=file), f"name = {value(spec.name)}", ""]
    defaults = {key: item for key, item in (("paths", spec.paths), ("env", spec.env)) if item}
    if defaults:
        parts += ["[defaults]", *(f"{key} = {value(item)}" for key, item in defaults.items()), ""]
    for target in spec.targets:
        parts += [*_target(target), ""]
    for target, why in spec.stubs:
        parts += [*(f"# {line}" for line in (f"{target.id} has no target: {why}.", *_stub(target))), ""]
    return "\n".join(parts).rstrip("\n") + "\n"


def value(item: object) -> str:
    """Return a value as TOML on one line. Raises ``TypeError`` for one that TOML has no form for."""
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, (int, float)):
        return repr(item)
    if isinstance(item, str):
        return json.dumps(item, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(item, (list, tuple)):
        return "[" + ", ".join(map(value, item)) + "]"
    if isinstance(item, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {value(inner)}" for key, inner in item.items()) + "}"
    raise TypeError(f"TOML has no {type(item).__name__}")


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else value(key)


def _stub(target: Target) -> list[str]:
    """Return the entry with a factory that is still to be written, and without inputs that TOML lacks."""
    head, *lines = _target(replace(target, keys={"factory": "MODULE:FUNCTION", **target.keys}, inputs={}))
    try:
        inputs = _inputs(target)
    except TypeError:
        inputs = ['inputs = "MODULE:FUNCTION"']
    return [head, *lines, *inputs]


def _target(target: Target) -> list[str]:
    lines = ["[[target]]", f"id = {value(target.id)}"]
    lines += [f"{key} = {value(item)}" for key, item in target.keys.items()]
    return lines + _inputs(target)


def _inputs(target: Target) -> list[str]:
    lines = []
    for name, arguments in target.inputs.items():
        lines.append(f"[target.inputs.{_key(name)}]")
        lines += [f"{_key(key)} = {value(item)}" for key, item in arguments.items()]
    return lines
