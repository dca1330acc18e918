"""Says with what a configuration was found, as far as Helion's own key leaves it out.

Helion's key has the source of the kernel's own function, the shapes and types of its arguments, the GPU and
the space of configurations. It leaves out functions that the kernel calls, constants of its module, Helion's
release, settings of the kernel, and how results were checked. So a record holds the digest of the code that
Helion generates for the configuration: whoever takes the configuration must generate the same code. What
cannot be told is a `Doubt`: such a configuration is neither kept nor given.
"""

from __future__ import annotations

import json
import os
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..builds.flags import Doubt
from .versions import BACKENDS, EFFORTS, IDLE, THOROUGH

_FORMAT = 1
_MAX_BYTES = 1 << 18
"""Bytes of a record."""
_UNLIMITED = 1 << 60
_FIELDS = {"config": str, "code": str, "facts": dict, "search": dict}


@dataclass(frozen=True, slots=True)
class Made:
    """A configuration and with what it was found.

    ``config``: Helion's JSON of it. ``code``: the digest of the generated code. ``facts``: what has to be
    equal, as short texts. ``search``: how thorough the search was; a larger number is more thorough.
    """

    config: str
    code: str
    facts: Mapping[str, str]
    search: Mapping[str, int]

    def encode(self) -> bytes:
        """Return the bytes of a record: JSON in which Helion finds the configuration where it looks."""
        mine = {"format": _FORMAT, "code": self.code, "facts": dict(self.facts), "search": dict(self.search)}
        document = {"config": self.config, "cachesvc": mine}
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Made:
        """Read a record. Raises ``ValueError``, ``TypeError`` or ``KeyError`` for others."""
        document = json.loads(data) if len(data) <= _MAX_BYTES else {}
        mine = document["cachesvc"]
        if mine["format"] != _FORMAT:
            raise ValueError(f"{data[:40]!r} is no configuration that cachesvc wrote")
        values = {"config": document["config"], **{name: mine[name] for name in ("code", "facts", "search")}}
        for name, type_ in _FIELDS.items():
            if not isinstance(values[name], type_):
                raise TypeError(f"{name} is no {type_.__name__}")
        facts = {str(name): str(text) for name, text in values["facts"].items()}
        return cls(
            values["config"], values["code"], facts, {str(n): int(v) for n, v in values["search"].items()}
        )

    def difference(self, facts: Mapping[str, str], search: Mapping[str, int]) -> str:
        """Return what differs for a kernel with these facts that wants such a search, in words; an empty text
        if nothing does. The generated code is compared apart, since it takes Helion to make it."""
        for name in sorted({*facts, *self.facts}):
            here, there = facts.get(name, "none"), self.facts.get(name, "none")
            if here != there:
                return f"{name} is {here} here, and {there} there"
        for name, wanted in search.items():
            if self.search.get(name, -1) < wanted:
                return f"its search was less thorough ({name}) than the one that is asked for here"
        return ""


def check_kernel(cache: Any) -> None:
    """Raise `Doubt` for a search of Helion's whose result no record stands for.

    ``cache``: Helion's object of the cache, with the kernel and its arguments.
    """
    kernel, torch = cache.kernel, sys.modules["torch"]
    backend = str(kernel.env.backend.name)
    on_cpu = backend == "pallas" and getattr(kernel.settings, "pallas_interpret", False)
    if backend not in BACKENDS or (backend == "pallas" and not on_cpu):
        raise Doubt(f"nobody has run the kind with Helion's backend {backend}")
    if getattr(torch.version, "hip", None):
        raise Doubt("nobody has run the kind on ROCm")
    if getattr(kernel.env, "process_group_name", None) is not None:
        raise Doubt("its ranks have to search together")
    if not isinstance(cache.args, (tuple, list)):
        raise Doubt("it was tuned for several inputs together")


def code_of(kernel: Any, config: Any) -> str:
    """Return the digest of the code that Helion generates for a configuration: tens of milliseconds."""
    from ...wire.digest import Digest

    return Digest.of(kernel.to_triton_code(config).encode()).hex


def facts_of(kernel: Any) -> dict[str, str]:
    """Return the facts of a kernel of Helion's and of this process. Raises `Doubt` for a setting that has no
    short text."""
    settings = kernel.settings
    fields = getattr(settings, "__dataclass_fields__", None)
    if not fields:
        raise Doubt("the settings of the kernel cannot be told")
    own = {f"the setting {name}": _text(name, getattr(settings, name)) for name in fields if name not in IDLE}
    return {**own, **_process_facts(), **_device_facts(kernel)}


def search_of(settings: Any) -> dict[str, int]:
    """Return how thorough a search with these settings is: a larger number is more thorough."""
    effort = str(settings.autotune_effort)
    if effort not in EFFORTS:
        raise Doubt(f"nobody knows Helion's effort {effort!r}")
    limits = {name: getattr(settings, name, None) for name in THOROUGH}
    return {
        "autotune_effort": EFFORTS.index(effort),
        **{name: _UNLIMITED if limit is None else int(limit) for name, limit in limits.items()},
    }


def _process_facts() -> dict[str, str]:
    helion = sys.modules["helion"]
    algorithm = os.environ.get("HELION_AUTOTUNER", "").strip()
    return {"Helion": _release(helion), "the variable HELION_AUTOTUNER": algorithm or "none"}


def _release(helion: Any) -> str:
    version = getattr(helion, "__version__", "")
    if version:
        return str(version)
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("helion")
    except PackageNotFoundError:
        raise Doubt("Helion's release cannot be told") from None


def _device_facts(kernel: Any) -> dict[str, str]:
    """A part of a GPU (MIG) has another number of multiprocessors."""
    device = kernel.env.device
    if getattr(device, "type", "") != "cuda":
        return {}
    properties = sys.modules["torch"].cuda.get_device_properties(device)
    return {"the number of multiprocessors": str(properties.multi_processor_count)}


def _text(name: str, value: Any) -> str:
    """Return a setting as a text without addresses. Raises `Doubt` where there is none."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return str(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_text(name, item) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_text(name, value[key])}' for key in sorted(value, key=str))}}}"
    if isinstance(value, types.FunctionType):
        return f"{value.__module__}.{value.__qualname__} {_function_digest(name, value)}"
    text = repr(value)
    if " at 0x" in text or (callable(value) and not isinstance(value, type)):
        raise Doubt(f"the setting {name} cannot be told")
    return text


def _function_digest(name: str, function: types.FunctionType) -> str:
    """Return the digest of a function's own code and constants. Helion's own functions are those of its
    release; what a function calls is not followed, since such a function only chooses among
    configurations."""
    from ...wire.digest import Digest

    if function.__module__.partition(".")[0] == "helion":
        return "of Helion"
    values = [cell.cell_contents for cell in function.__closure__ or ()]
    parts = [*_code_lines(function.__code__), *(_text(name, value) for value in values)]
    return Digest.of("\n".join(parts).encode()).hex[:16]


def _code_lines(code: types.CodeType) -> Iterator[str]:
    yield code.co_code.hex()
    yield repr(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code_lines(constant)
        else:
            yield repr(constant)
