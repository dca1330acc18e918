"""Describes what vLLM's own keys leave out, as the name of a folder.

vLLM names its artifacts by a hash of its configuration and of its variables, and drops all guards when it
loads one. What its hash leaves out would be a false hit, so it is in the name of the folder that holds the
artifact (docs/engines/vllm.md lists it). What cannot be described is a doubt: no other process has that name.
"""

from __future__ import annotations

import enum
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..builds.flags import Doubt
from .versions import GROUPS, LEFT_OUT, OF_HOST, VARIABLES_OF_PROCESS

_DEPTH = 12
"""How deep a configuration may be nested."""
_OWN = (
    "aten",
    "prim",
    "prims",
    "quantized",
    "quantized_decomposed",
    "onednn",
    "mkldnn",
    "mkl",
    "sparse",
    "inductor",
)
_OWN_OPERATORS = (
    *_OWN,
    "_c10d_functional",
    "c10d",
    "c10d_functional",
    "higher_order",
    "profiler",
    "rngprims",
)
"""Namespaces of PyTorch's own operators, which its version stands for."""


def identity(config: Any, environ: Mapping[str, str] = os.environ) -> str:
    """Return 32 hex digits over what vLLM's hash leaves out. ``config``: a ``VllmConfig``.

    Raises ``Doubt`` where a part has no stable text, and whatever a version raises that moved a name.
    """
    from ...wire.codec import canonical
    from ...wire.digest import Digest

    facts = {
        "versions": dict(_versions()),
        "config": {path: describe(_at(config, path)) for path in LEFT_OUT},
        "variables": dict(unknown_variables(environ, _known_variables())),
        "operators": operators_digest(_schemas()),
        "plugins": sorted(plugins()),
    }
    return Digest.of(canonical(facts)).hex[:32]


def describe(value: Any, depth: int = 0) -> Any:
    """Return a value as plain data that is the same in every process. Raises ``Doubt``."""
    if depth > _DEPTH:
        raise Doubt(f"{type(value).__qualname__} is nested too deeply")
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, enum.Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if isinstance(value, Mapping):
        return {str(key): describe(value[key], depth + 1) for key in sorted(value, key=str)}
    if isinstance(value, (list, tuple)):
        return [describe(item, depth + 1) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(str(describe(item, depth + 1)) for item in value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, type) or callable(value):
        return _name(value)
    return _describe_object(value, depth)


def unknown_variables(environ: Mapping[str, str], known: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield vLLM's variables that it does not know itself, since plugins read those; values as digests."""
    from ...wire.digest import Digest

    names = VARIABLES_OF_PROCESS.union(known)
    for name in sorted(environ):
        if name.startswith("VLLM_") and name not in names:
            yield name, Digest.of(environ[name].encode(errors="surrogateescape")).hex[:16]


def operators_digest(schemas: Iterable[str]) -> str:
    """Return a digest of the schemas of operators that are not PyTorch's own."""
    from ...wire.codec import canonical
    from ...wire.digest import Digest

    others = sorted(schema for schema in schemas if schema.partition("::")[0] not in _OWN_OPERATORS)
    return Digest.of(canonical(others)).hex[:16]


def _describe_object(value: Any, depth: int) -> Any:
    """Return the fields of a configuration, or the text of another value."""
    if hasattr(value, "to_dict"):  # a configuration of transformers
        return describe(value.to_dict(), depth + 1)
    fields = getattr(type(value), "__dataclass_fields__", None) or getattr(type(value), "model_fields", None)
    if fields is not None:
        names = [name for name in fields if name not in OF_HOST]
        described = {name: describe(getattr(value, name, None), depth + 1) for name in sorted(names)}
        return {"class": _name(type(value)), "fields": described}
    text = str(value)
    if re.search(r" at 0x[0-9a-f]+", text):
        raise Doubt(f"{type(value).__qualname__} has no stable text")
    return text


def _name(value: Any) -> str:
    name = getattr(value, "__qualname__", None)
    if name is None or "<lambda>" in name:
        raise Doubt(f"{type(value).__qualname__} has no stable text")
    return f"{value.__module__}.{name}"


def _at(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = getattr(config, name, None)
    return config


def _versions() -> Iterator[tuple[str, str]]:
    for name in ("vllm", "torch", "triton", "transformers", "flashinfer"):
        yield name, str(getattr(sys.modules.get(name), "__version__", ""))


def _known_variables() -> Iterable[str]:
    import vllm.envs

    known: Iterable[str] = vllm.envs.environment_variables
    return known


def _schemas() -> Iterator[str]:
    import torch

    return (str(schema) for schema in torch._C._jit_get_all_schemas())


def plugins() -> Iterator[str]:
    """Yield the packages that have a plugin for vLLM, with their versions."""
    from importlib.metadata import entry_points

    for group in GROUPS:
        for point in entry_points(group=group):
            package = getattr(point.dist, "name", "")
            if package != "cachesvc-client":
                yield f"{group} {point.name} {package} {getattr(point.dist, 'version', '')}"
