"""Put the hooks of one kind around names of a torch that is not there, and print the outcome as JSON.

Usage: ``hooks_program.py KIND``. The modules of the kind's rows hold one function for each name. Nothing else
of torch or Triton can be imported, so everything else that a hook needs is missing too. The function stands
for the compiler, and it must still run."""

import json
import sys
from types import ModuleType, SimpleNamespace

from cachesvc_client import kinds
from cachesvc_client.hooks import imports
from cachesvc_client.kinds.kind import ProcessCallbacks
from tests.e2e.programs.changed_hooks import ChangedHooks

CHANGES = ("none", "missing", "raises-before", "raises-after", "parameters")
KIND = kinds.BY_NAME[sys.argv[1]]
waits = []
CALLBACKS = ProcessCallbacks(lambda: waits.append(1), lambda _: None)
ANSWER = "the compiler's own"


def rows():
    return [row for row in KIND.hooks if row.path]


def expected(name):
    return None if name.endswith("__init__") else ANSWER


def compiler(name, calls):
    """Return a function of the compiler, which any caller may call."""

    def function(*_, **__):
        calls.append(name)
        return expected(name)

    return function


def make_modules(missing):
    """Make the modules. Return the holder and attribute of each name, and the list of calls."""
    places, calls = {}, []
    for row in KIND.hooks:
        for end in range(1, row.module.count(".") + 2):
            package = ".".join(row.module.split(".")[:end])
            sys.modules.setdefault(package, ModuleType(package))
    for row in rows():
        holder = sys.modules[row.module]
        *parents, attribute = row.path.split(".")
        for parent in parents:
            if not hasattr(holder, parent):
                owner = type(parent, (), {}) if parent[0].isupper() else SimpleNamespace()
                setattr(holder, parent, owner)
            holder = getattr(holder, parent)
        if not missing:
            function = compiler(f"{row.module}.{row.path}", calls)
            setattr(holder, attribute, staticmethod(function) if isinstance(holder, type) else function)
        places[f"{row.module}.{row.path}"] = holder, attribute
    return places, calls


def remove_modules():
    for row in KIND.hooks:
        sys.modules.pop(row.module, None)


def run_with_change(how):
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
answer = {
    "imported": sorted(
        {name.partition(".")[0] for name in sys.modules}
        & {"torch", "triton", "vllm", "tilelang", "flashinfer", "helion", "deep_gemm"}
    ),
    "waiting": waiting,
}
imports.disarm()
answer["left"] = sorted(imports._waiting)
answer["changes"] = {how: run_with_change(how) for how in CHANGES}
print(json.dumps(answer))
