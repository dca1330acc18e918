"""Has the client ask the points that docs/upstream proposes, in the place of its hooks.

For tests in a torch with those patches, in each of their processes. A file ``ask_nothing`` on the path takes
the hooks away and asks nothing: then the same tests have to fail."""

from __future__ import annotations

import functools
import os
import sys
from types import ModuleType
from typing import Any

from cachesvc_client.graphs import keys
from cachesvc_client.hooks import imports
from cachesvc_client.hooks.table import Hook
from cachesvc_client.kinds.inductor import kind

ASKED = not any(os.path.exists(os.path.join(path, "ask_nothing")) for path in sys.path)
_hook_install, _key_install, _key_installed = Hook.install, keys._install, keys._is_installed
_parts: dict[tuple[str, Any], str] = {}


def add_parts(hook: Hook, parts: keys.Parts, module: ModuleType) -> None:
    """Register what a hook on the constructor of the details would put into a key."""
    if module.__name__ != hook.module:
        return _key_install(hook, parts, module)
    import torch.compiler._cache as official

    name = f"cachesvc {len(_parts)}"
    wanted = keys._class_of(hook)

    def part(details: Any, graph: Any) -> dict[str, Any] | None:
        if wanted not in [one.__name__ for one in type(details).__mro__]:
            return None
        told = keys._parts(parts, details, graph)
        return {key: value for key, value in told.items() if not hasattr(details, key)} or None

    if (hook.name, parts) not in _parts:
        _parts[hook.name, parts] = name
        if ASKED:
            official.CacheKeyParts.register(name, part)
        imports.on_disarm(functools.partial(forget, hook.name, parts, official))
    return None


def forget(hook: str, parts: Any, official: Any) -> None:
    """Take back what `add_parts` registered."""
    official.CacheKeyParts._parts.pop(_parts.pop((hook, parts)), None)


def is_installed(hook: Hook, module: ModuleType) -> bool:
    """Return whether a part of the hook is registered."""
    named = vars(module).get(keys._class_of(hook))
    if named is not None and named.__module__ == hook.module and "torch" in str(module.__file__):
        return any(name == hook.name for name, _ in _parts)
    return _key_installed(hook, module)


def install(self: Hook, body: Any, **options: Any) -> None:
    """Listen in the place of the hooks that record, save and look up."""
    if self in kind._SAVES or (self in kind._LOOKUPS and self is not next(iter(kind._LOOKUPS))):
        return
    if self is kind._RECORDS or self in kind._LOOKUPS:
        listen = recorded if self is kind._RECORDS else missed
        imports.when_imported("torch.compiler._cache", lambda official: listen(body, official))
        return
    _hook_install(self, body, **options)


def recorded(body: Any, official: Any) -> None:
    """Have what is recorded told to the client; what was made here is that of a save."""

    def called(artifact_type: str, key: str, content: Any) -> None:
        """Stand for the original."""

    def on_record(artifact: str, key: str, content: Any, made: bool) -> None:
        call = imports.Call(called, (artifact, key, content), {})
        if made:
            save = imports.Call(lambda: body(call), (), {})
            body.__self__.save(save)
        else:
            body(call)

    add(official.CacheArtifactRecorder._on_record, on_record)


def missed(body: Any, official: Any) -> None:
    """Have the client asked for a graph that was not found."""
    state, ask = body.func.__self__, body.keywords["missed"]

    def on_miss(key: str) -> bool:
        if not state._used.left() and ask(key):
            return True
        state._keys.not_found.add(key)
        return False

    add(official.CacheArtifactRecorder._on_miss, on_miss)


def add(listeners: list[Any], listener: Any) -> None:
    """Register a listener until the client is disarmed."""
    if ASKED:
        listeners.append(listener)
        imports.on_disarm(lambda: listeners.remove(listener))


keys._install, keys._is_installed = add_parts, is_installed  # type: ignore[assignment]
Hook.install = install  # type: ignore[method-assign]
