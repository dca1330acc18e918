"""Describes what code below Dynamo reads of libraries, for the digest of that code: values in their modules
and classes, answers of functions that return a setting, and what functions and classes say of themselves.

Nothing of an application's is called.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import os
import sys
import types
from collections.abc import Collection, Iterable, Iterator, Set
from typing import Any

from ..released import known
from . import variables
from .by_arguments import MODULES
from .library import NOTHING, is_library, reached
from .reading import has_attributes, names_in, own_attributes, texts_in
from .values import Undescribed, type_name

_TOLD = (
    "__name__", "__qualname__", "__module__", "__doc__", "__annotations__", "co_firstlineno", "co_filename",
    "co_name", "co_qualname",
)  # fmt: skip
"""What a function or a class says of itself."""
_MEMBERS = frozenset(("dir", "vars", "getmembers", "__subclasses__"))
"""Names with which code asks what a class has, or what is made of it."""
_ORDERED = frozenset(("dir", "vars", "getmembers", "__dict__"))
"""Names with which code reads attributes one after the other."""
_ANNOTATIONS = frozenset(("get_type_hints", "get_annotations", "signature", "getfullargspec"))
"""Names with which code reads annotations."""
PLAIN = (bool, int, float, complex, str, bytes, type(None))
OF_PROCESS = frozenset(
    f"sys.{name}"
    for name in (
        "stdin", "stdout", "stderr", "excepthook", "displayhook", "breakpointhook", "unraisablehook",
        "executable", "ps1", "ps2",
    )
)  # fmt: skip
"""Attributes of the module ``sys`` that say where a process runs, or write for people."""


def told(values: Iterable[Any], names: Set[str]) -> Iterator[str]:
    """Yield what a program's functions and classes say of themselves, for which code has a name."""
    names = names | {"__annotations__"} if names & _ANNOTATIONS else names
    names = names | {"__doc__"} if "getdoc" in names else names
    if "get_type_hints" in names and any(map(_has_texts, values)):
        raise Undescribed("annotations as texts")
    for name in (one for one in _TOLD if one in names):
        yield from (f"{name} {_text(_said(value, name))}" for value in values if _is_of_program(value))
    if "fields" in names or "__dataclass_fields__" in names:
        tables = [vars(one).get("__dataclass_fields__", {}) for one in values if isinstance(one, type)]
        yield from (f"types {[_text(one.type) for one in table.values()]}" for table in tables if table)
    classes = [one for one in values if isinstance(one, type)]
    if names & _ORDERED:
        yield from (f"order {list(own_attributes(value))}" for value in values if has_attributes(value))
        yield from (f"has {list(vars(one))}" for one in classes)
    if names & _MEMBERS:
        yield from (f"below {sorted(map(type_name, type.__subclasses__(one)))}" for one in classes)


def _has_texts(value: Any) -> bool:
    """Return whether annotations are texts, which a function of the interpreter reads as code."""
    annotations = getattr(value, "__annotations__", None) if _is_of_program(value) else None
    return isinstance(annotations, dict) and any(isinstance(one, str) for one in annotations.values())


def _is_of_program(value: Any) -> bool:
    is_function = isinstance(value, types.FunctionType)
    return not known.is_known(value.__code__) if is_function else isinstance(value, type)


def _said(value: Any, name: str) -> Any:
    code = getattr(value, "__code__", None)
    return getattr(code if name.startswith("co_") else value, name, None)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return str([(str(key), _text(one)) for key, one in value.items()])
    if type(value) in PLAIN:
        return repr(value)
    return type_name(value if isinstance(value, type) else type(value))


def of_module(value: Any, code: types.CodeType) -> Iterator[tuple[str, Any]]:
    """Yield what code may read of a module beside its functions and values by name."""
    names = names_in(code)
    names = names if _BY_TEXT.isdisjoint(names) else (*names, *texts_in(code))
    if isinstance(value, type):
        yield from data_of(value, names)
    elif known.is_library(value):
        yield from _of_library(value, names)
    elif (getter := variables.getter(value)) is not None and not variables.holds_environment(value):
        yield f"{value.__name__}.__getattr__", getter


_BY_TEXT = frozenset(("getattr", "hasattr", "setattr"))
"""Built-in functions that read an attribute by a text."""


def _of_library(module: types.ModuleType, names: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yield what code with these names may read of a module of a library, and of the modules in it, that the
    version of the library does not tell: plain values, and what a program put there."""
    names = [name for name in names if not name.startswith("__") or name == "__version__"]
    for place, value in reached(module, names, _of_module):
        name = place.rpartition(".")[2]
        if isinstance(value, type):
            yield from data_of(value, names)
            if is_told(name, value) or hasattr(value, "_abc_impl"):
                yield place, value
        elif place not in OF_PROCESS and is_told(name, value):
            yield place, value
        else:
            yield from _of_function(place, value)


def data_of(cls: type, names: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yield the plain values that a library's class has under these names: a program may put them there."""
    if is_library(cls):
        held = type.__getattribute__(cls, "__dict__")
        for name in names:
            if type(value := held.get(name, held)) in PLAIN and not name.startswith("__"):
                yield f"{type_name(cls)}.{name}", value


def _of_module(module: types.ModuleType, name: str) -> Any:
    """Return what a module has under a name. Of torch's modules of a class of its own, such as of settings,
    it may be the answer of a function of torch's."""
    held = types.ModuleType.__getattribute__(module, "__dict__")
    kind = type(module)
    if name not in held and kind.__module__.startswith("torch.") and kind.__module__ not in _OF_OPERATORS:
        with contextlib.suppress(Exception):
            return getattr(module, name)
    return held.get(name, NOTHING)


_OF_OPERATORS = ("torch._ops", "torch._classes")
"""Modules of torch whose objects search for an operator, or for a class in C, under each name."""
_ANSWERS = frozenset(
    (
        "sys.getrecursionlimit", "sys.getswitchinterval", "gc.isenabled",
        "numpy.geterr", "numpy.get_printoptions", "decimal.getcontext", "torch.get_num_threads",
        "torch.get_num_interop_threads", "torch.is_warn_always_enabled", "torch.is_anomaly_enabled",
        "torch.get_default_device", "torch.get_autocast_dtype", "torch.get_autocast_cpu_dtype",
        "torch.get_autocast_gpu_dtype",
        "torch.is_deterministic_algorithms_warn_only_enabled", "torch.accelerator.is_available",
        "torch.accelerator.current_accelerator", "torch.xpu.is_available", "torch.backends.mps.is_available",
        "torch.cpu._is_avx2_supported", "torch.cpu._is_avx512_supported", "torch.cpu._is_vnni_supported",
        "torch.cpu._is_avx512_bf16_supported", "torch.cpu._is_amx_tile_supported",
        "torch.cuda.device_count", "torch.cuda.is_available", "torch.distributed.is_available",
        "torch.distributed.is_initialized", "torch.distributed.get_rank", "torch.distributed.get_world_size",
        "torch.initial_seed",
    )
)  # fmt: skip
"""Functions of libraries that answer with a setting of the process, and do nothing else."""


_ANSWERING: dict[str, list[str]] = {}
for _place in _ANSWERS:
    _ANSWERING.setdefault(_place.rpartition(".")[2], []).append(_place.rpartition(".")[0])


def _of_function(place: str, function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the answer of a function of a library that returns a setting."""
    is_own = known.is_c_function(function) or (
        isinstance(function, types.FunctionType) and known.is_known(function.__code__)
    )
    if is_own and is_compared(place) and function is not os.getenv:
        devices = ((), ("cpu",), ("cuda",)) if "autocast" in place else ((),)
        yield f"{place}()", [_answer(function, arguments) for arguments in devices]


def is_compared(place: str) -> bool:
    """Return whether a digest has the answer of a function of a library."""
    return place in _ANSWERS or _is_switch(place) or place in ("os.getenv", "os.environ", "os.environb")


def _answer(function: Any, arguments: tuple[str, ...]) -> str:
    with contextlib.suppress(Exception):
        return str(function(*arguments))
    return "no answer"


def _is_switch(place: str) -> bool:
    """Return whether a place names a function of torch that says if something is switched on, such as a
    kernel of attention."""
    name = place.rpartition(".")[2].lstrip("_")
    return place.startswith("torch.") and name.endswith("_enabled") and not name.startswith("set")


def of_function(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the answer of a function that code has by a name of its own, or in a container."""
    yield from _of_function(place_of(function), function)


def place_of(function: Any) -> str:
    """Return where a function stands."""
    if function is os.getenv:
        return "os.getenv"
    for module in _ANSWERING.get(name := getattr(function, "__name__", ""), ()):
        place = f"{module}.{name}"
        if vars(sys.modules.get(module, types)).get(name) is function:
            return place
    return f"{function.__module__}.{function.__name__}"


def is_told(name: str, value: Any) -> bool:
    """Return whether a digest has to have what stands under a name of a library's module."""
    kind = type(value)
    if kind in PLAIN or kind in (types.SimpleNamespace, types.ModuleType):
        return True
    if kind in (tuple, list) or (kind.__module__ == "sys" and isinstance(value, tuple)):
        return all(type(one) in PLAIN for one in value)
    if kind is types.FunctionType:
        return is_programs(value)
    if isinstance(value, type):
        is_own = known.is_own_module(str(value.__module__)) and value.__name__ == name
        return not is_own or any(put_into(value))
    if known.is_c_function(value):
        return known.owner_of(value) is None and known.own_name(value) != name
    return not is_library(kind)


def own_of_member(member: enum.Enum) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that a program added to a member of an enumeration."""
    yield from ((name, one) for name, one in sorted(vars(member).items()) if not name.startswith("_"))


def rules_of(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield how torch flattens objects of a program's class, and how Python copies them."""
    nodes = getattr(sys.modules.get("torch.utils._pytree"), "SUPPORTED_NODES", {})
    if (node := nodes.get(cls)) is not None:
        yield "pytree", [node.flatten_fn, node.unflatten_fn]
    yield from copy_rules(cls)


def copy_rules(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield what Python has to copy or pickle objects of a class by, beside its methods, by table."""
    for module, table in (
        ("copyreg", "dispatch_table"),
        ("copy", "_copy_dispatch"),
        ("copy", "_deepcopy_dispatch"),
    ):
        if (rule := getattr(sys.modules.get(module), table, {}).get(cls)) is not None:
            yield f"{module}.{table}", rule


def global_hooks() -> Iterator[tuple[str, Any]]:
    """Yield the hooks that a program set on all of torch's modules."""
    module = sys.modules.get("torch.nn.modules.module")
    for name, value in vars(module).items() if module is not None else ():
        if name.startswith("_global_") and name.endswith("_hooks") and value:
            yield name, list(value.values())


def is_programs(function: types.FunctionType) -> bool:
    """Return whether a program wrote a function: it is of no library, of no class that Python writes, and no
    hook of this client."""
    code, home = function.__code__, str(function.__globals__.get("__name__"))
    is_written = code.co_filename == known.GENERATED and (
        known.is_own_module(home) or home.startswith("namedtuple_")
    )
    return not (is_written or known.is_known(code) or known.is_ours(code))


def put_into(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the functions of a library's class that a program wrote."""
    for name, value in list(type.__getattribute__(cls, "__dict__").items()):
        function = getattr(value, "__func__", value) if type(value) in (staticmethod, classmethod) else value
        if type(function) is types.FunctionType and is_programs(function):
            yield name, function


def put_into_package(module: str) -> Iterator[tuple[str, Any]]:
    """Yield the functions that a program put into modules and classes of a package of the interpreter's: code
    that is not followed calls them."""
    top = module.partition(".")[0]
    if top not in MODULES or top not in sys.stdlib_module_names:
        return
    for name in _modules_of(top, len(sys.modules)):
        for place, value in list(vars(sys.modules.get(name, types)).items()):
            if type(value) is types.FunctionType:
                yield from ((f"{name}.{place}", value),) if is_programs(value) else ()
            elif isinstance(value, type) and value.__module__ == name:
                yield from ((f"{name}.{place}.{method}", one) for method, one in put_into(value))


@functools.lru_cache(maxsize=256)
def _modules_of(top: str, _loaded: int) -> tuple[str, ...]:
    """Return the names of the modules of a package. ``_loaded``: how many modules there are."""
    return tuple(name for name in sys.modules if name == top or name.startswith(f"{top}."))
