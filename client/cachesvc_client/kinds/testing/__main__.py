"""Put the hooks of one kind around names of a torch that is not there, and print the outcome as JSON.

Usage: ``python -m cachesvc_client.kinds.testing KIND``. The modules of the kind's rows hold one function for
each name. Nothing else of torch or Triton can be imported, so everything else that a hook needs is missing
too. The function stands for the compiler, and it must still run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

from ... import kinds
from ...hooks import imports
from ...hooks.table import Hook
from ...hooks.testing import ChangedHooks
from ..kind import ProcessCallbacks

CHANGES = ("none", "missing", "raises-before", "raises-after", "parameters")
KIND = kinds.BY_NAME[sys.argv[1]]
CALLBACKS = ProcessCallbacks(lambda: None, lambda _: None)
ANSWER = "the compiler's own"


def rows() -> list[Hook]:
    return [row for row in KIND.hooks if row.path]


def expected(name: str) -> str | None:
    return None if name.endswith("__init__") else ANSWER


def compiler(name: str, calls: list[str]) -> Callable[..., str | None]:
    """Return a function of the compiler, which any caller may call."""

    def function(*_: object, **__: object) -> str | None:
        calls.append(name)
        return expected(name)

    return function


def make_modules(missing: bool) -> tuple[dict[str, tuple[Any, str]], list[str]]:
    """Make the modules. Return the holder and attribute of each name, and the list of calls."""
    places: dict[str, tuple[Any, str]] = {}
    calls: list[str] = []
    for row in KIND.hooks:
        for end in range(1, row.module.count(".") + 2):
            package = ".".join(row.module.split(".")[:end])
            sys.modules.setdefault(package, ModuleType(package))
    for row in rows():
        holder: Any = sys.modules[row.module]
        *parents, attribute = row.path.split(".")
        for parent in parents:
            if not hasattr(holder, parent):
                owner: Any = type(parent, (), {}) if parent[0].isupper() else SimpleNamespace()
                setattr(holder, parent, owner)
            holder = getattr(holder, parent)
        if not missing:
            function = compiler(f"{row.module}.{row.path}", calls)
            setattr(holder, attribute, staticmethod(function) if isinstance(holder, type) else function)
        places[f"{row.module}.{row.path}"] = holder, attribute
    return places, calls


def remove_modules() -> None:
    for row in KIND.hooks:
        sys.modules.pop(row.module, None)


def run_with_change(how: str) -> dict[str, list[str]]:
    """Return the outcome of the hooks: the names whose call ended otherwise, and those whose attribute stayed
    hooked."""
    places, calls = make_modules(missing=how == "missing")
    before = {name: vars(holder).get(attribute) for name, (holder, attribute) in places.items()}
    changed = ChangedHooks("none" if how == "missing" else how)
    KIND.start().install_hooks(CALLBACKS)
    hooked = [name for name, (holder, key) in places.items() if vars(holder).get(key) is not before[name]]
    wrong = []
    for name, (holder, attribute) in places.items():
        if how != "missing":
            calls.clear()
            try:
                answer = getattr(holder, attribute)(SimpleNamespace(), more=1)
            except Exception as error:  # noqa: BLE001 - whatever reaches the caller is wrong
                answer = repr(error)
            if answer != expected(name) or calls != [name]:
                wrong.append(f"{name}: {answer}, {calls}")
    imports.disarm()
    ours = [name for name, (holder, key) in places.items() if vars(holder).get(key) is not before[name]]
    changed.end()
    remove_modules()
    return {"hooked": hooked, "wrong": wrong, "ours": ours, "warnings": changed.warnings}


KIND.start().install_hooks(CALLBACKS)
waiting = sorted(imports._waiting)
answer: dict[str, Any] = {
    "imported": sorted(
        {name.partition(".")[0] for name in sys.modules}
        & {"torch", *(row.module.partition(".")[0] for row in KIND.hooks)}
    ),
    "waiting": waiting,
}
imports.disarm()
answer["left"] = sorted(imports._waiting)
answer["changes"] = {how: run_with_change(how) for how in CHANGES}
print(json.dumps(answer))
