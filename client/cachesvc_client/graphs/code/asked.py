"""Describes the state that code below Dynamo reads, for the digest of that code: states of loggers, locks and
files, values in modules of libraries, variables of the environment, settings of the process.

A digest with all of it would differ in each process. So a state counts only if the code has the name by which
it is read. Nothing of an application's is called.
"""

from __future__ import annotations

import _locale
import contextlib
import dis
import enum
import os
import pathlib
import sys
import types
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from itertools import pairwise
from typing import Any

from ..released import known
from .library import NOTHING, is_library, reached
from .reading import codes_in, names_in, texts_in
from .values import type_name

ENVIRONMENT = frozenset(("environ", "getenv", "environb"))
"""Names with which code reads variables of the environment."""
_ALL_VARIABLES = frozenset(("items", "keys", "values", "copy"))
_TAKES_ALL = ("GET_ITER", "CALL", "PRECALL", "DICT_UPDATE", "DICT_MERGE", "LIST_EXTEND")
"""How the names of instructions begin that use all of the object before them."""
_LEVELS = ("isEnabledFor", "getEffectiveLevel")
_STATES: dict[str, tuple[tuple[str, ...], str]] = {
    "logging.Logger": (("level", "disabled", *_LEVELS), "logger"),
    "logging.RootLogger": (("level", "disabled", *_LEVELS), "logger"),
    "_thread.lock": (("locked", "acquire"), "lock"),
    "threading.Event": (("is_set", "isSet", "_flag"), "event"),
    "threading.Semaphore": (("_value", "acquire"), "semaphore"),
    "threading.BoundedSemaphore": (("_value", "acquire"), "semaphore"),
    "_io.TextIOWrapper": (("read", "readline", "readlines", "closed", "seek", "tell"), "file"),
    "pathlib.PosixPath": (tuple({*dir(pathlib.Path)} - {*dir(pathlib.PurePath)}), "file"),
    "_frozen_importlib.ModuleSpec": (("origin", "submodule_search_locations"), "spec"),
    "typing.TypeVar": (("__name__", "__bound__", "__constraints__"), "variable"),
}
"""Type of objects that decide nothing -> the names with which code asks for a state, and what they are."""
_TOLD = ("__name__", "__qualname__", "__module__", "__doc__", "__annotations__", "co_firstlineno")
"""What a function or a class says of itself."""
_MEMBERS = frozenset(("dir", "vars", "getmembers", "__subclasses__"))
"""Names with which code asks what a class has, or what is made of it."""
_ANNOTATIONS = frozenset(("get_type_hints", "get_annotations", "signature", "getfullargspec"))
"""Names with which code reads annotations."""
PLAIN = (bool, int, float, complex, str, bytes, type(None))
OF_PROCESS = frozenset(
    f"sys.{name}"
    for name in (
        "stdin", "stdout", "stderr", "excepthook", "displayhook", "breakpointhook", "unraisablehook", "path",
        "executable", "ps1", "ps2",
    )
)  # fmt: skip
"""Attributes of the module ``sys`` that say where a process runs, or write for people."""


def told(values: Iterable[Any], names: Set[str]) -> Iterator[str]:
    """Yield what a program's functions and classes say of themselves, for which code has a name."""
    names = names | {"__annotations__"} if names & _ANNOTATIONS else names
    names = names | {"__doc__"} if "getdoc" in names else names
    for name in (one for one in _TOLD if one in names):
        yield from (f"{name} {_text(_said(value, name))}" for value in values if _is_of_program(value))
    if names & _MEMBERS:
        classes = [one for one in values if isinstance(one, type)]
        yield from (f"has {sorted(vars(one))}" for one in classes)
        yield from (f"below {sorted(map(type_name, type.__subclasses__(one)))}" for one in classes)


def of_process() -> dict[str, str]:
    """Return the settings by which plain Python computes in this thread, where they are not the defaults."""
    settings = {"locale of numbers": (_locale.setlocale(_locale.LC_NUMERIC), "C")}
    if hasattr(sys, "get_int_max_str_digits"):  # Python 3.10.7
        settings["digits of whole numbers"] = (
            str(sys.get_int_max_str_digits()),
            str(sys.int_info.default_max_str_digits),
        )
    settings["denormal numbers"] = ("zero" if sys.float_info.min / 2 == 0 else "", "")
    if (decimal := sys.modules.get("decimal")) is not None:
        now, usual = (f"{one.prec} {one.rounding}" for one in (decimal.getcontext(), decimal.DefaultContext))
        settings["decimal numbers"] = (now, usual)
    return {name: here for name, (here, usual) in settings.items() if here != usual}


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


def has_state(value: Any) -> bool:
    """Return whether an object decides nothing unless code asks for its state."""
    return type_name(type(value)) in _STATES


def states(values: Iterable[Any], names: Set[str]) -> Iterator[str]:
    """Yield the states of such objects for which code has a name. Raises ``ValueError`` with the reason for
    one that no text describes."""
    for value in values:
        asking, kind = _STATES[type_name(type(value))]
        if asked := names & frozenset(asking):
            yield f"{kind} {_state(kind, value, asked)}"


def _state(kind: str, value: Any, asked: Set[str]) -> str:
    if kind == "logger":
        levels = value.getEffectiveLevel() if asked & frozenset(_LEVELS) else ""
        return f"{value.name} {value.level} {value.disabled} {levels} {value.manager.disable}"
    if kind == "lock":
        return str(value.locked())
    if kind == "event":
        return str(value._flag)
    if kind == "semaphore":
        return str(value._value)
    if kind == "spec":
        return f"{value.name} {value.origin}"
    if kind == "variable":
        return f"{value.__name__} {value.__constraints__} {value.__bound__}"
    raise ValueError("a file")


def reads_environment(value: Any, code: types.CodeType) -> bool:
    """Return whether code that reads a value reads variables of the environment."""
    if value is os:
        return not ENVIRONMENT.isdisjoint(names_in(code))
    return _is_environment(value) or (_getter(value) is not None and _holds_environment(value))


def _is_environment(value: Any) -> bool:
    return any(value is one for one in (os, os.environ, os.getenv, getattr(os, "environb", os)))


def _getter(value: Any) -> Any:
    """Return the function by which a program's module answers for names that it does not have."""
    is_module = isinstance(value, types.ModuleType) and not known.is_library(value)
    return vars(value).get("__getattr__") if is_module else None


def _holds_environment(module: types.ModuleType) -> bool:
    """Return whether a module reads the environment, such as that of vLLM's settings: its function for
    hundreds of variables would be code of each operator, and so a variable's name alone counts."""
    return any(map(_is_environment, vars(module).values()))


def variables(texts: Set[str], parts: Collection[str], names: Set[str]) -> Iterator[str]:
    """Yield ``name=value`` for each variable of the environment that one of these texts names, or whose name
    begins or ends with one of ``parts``. Code with these ``names`` may make large letters of a text."""
    wanted = texts | ({one.upper() for one in texts} if "upper" in names else set())
    for name, value in sorted(os.environ.items()):
        if name in wanted or any(name.startswith(one) or name.endswith(one) for one in parts):
            yield f"environment {name}={value}"


def parts_of_variables(code: types.CodeType) -> Iterator[str]:
    """Yield the texts in code out of which it may make the name of a variable: those that begin or end with
    ``_``."""
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from parts_of_variables(one)
        elif isinstance(one, str) and len(one) > 2 and one.isidentifier() and "_" in (one[0], one[-1]):
            yield one


def reads_all_variables(code: types.CodeType) -> bool:
    """Return whether code goes through the whole environment."""
    is_environment = False
    for step in dis.get_instructions(code):
        if is_environment and (step.opname.startswith(_TAKES_ALL) or step.argval in _ALL_VARIABLES):
            return True
        is_environment = step.argval in ENVIRONMENT and step.argval != "getenv"
    return any(isinstance(one, types.CodeType) and reads_all_variables(one) for one in code.co_consts)


def by_hash(code: types.CodeType, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield what follows from the seed of hashes (``PYTHONHASHSEED``): the hash of a text, where code
    asks for one, and the order of a set of texts with which it does more than to test what is in it.

    ``values``: what the code reads outside of itself, by name.
    """
    if values.get("hash") is hash and code.co_name != "__hash__":
        yield f"hash {hash('text')}"
    for one in codes_in(code):
        if not any(isinstance(value, _SETS) for value in (*values.values(), *one.co_consts)):
            continue  # as most code: it needs no disassembly
        for step, after in pairwise(dis.get_instructions(one)):
            is_name = step.opname in _LOADS_OF_NAMES and isinstance(step.argval, str)
            value = values.get(step.argval) if is_name else step.argval
            if isinstance(value, _SETS) and after.opname != "CONTAINS_OP":
                texts = [text for text in value if isinstance(text, (str, bytes))]
                if len(texts) > 1:
                    yield f"order {texts}"


_SETS = (set, frozenset)
_LOADS_OF_NAMES = ("LOAD_GLOBAL", "LOAD_DEREF", "LOAD_NAME", "LOAD_CLASSDEREF")
"""Names of the instructions that load what stands under a name outside of a function."""


def of_module(value: Any, code: types.CodeType) -> Iterator[tuple[str, Any]]:
    """Yield what code may read of a module beside its functions and values by name."""
    names = names_in(code)
    names = names if _BY_TEXT.isdisjoint(names) else (*names, *texts_in(code))
    if isinstance(value, type):
        yield from _data_of(value, names)
    elif known.is_library(value):
        yield from _of_library(value, names)
    elif (getter := _getter(value)) is not None and not _holds_environment(value):
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
            yield from _data_of(value, names)
            if is_told(name, value):
                yield place, value
        elif place not in OF_PROCESS and is_told(name, value):
            yield place, value
        else:
            yield from _of_function(place, value)


def _data_of(cls: type, names: Collection[str]) -> Iterator[tuple[str, Any]]:
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
    for place in _ANSWERS:
        module, _, name = place.rpartition(".")
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
    for module, table in (
        ("copyreg", "dispatch_table"),
        ("copy", "_copy_dispatch"),
        ("copy", "_deepcopy_dispatch"),
    ):
        if (rule := getattr(sys.modules.get(module), table, {}).get(cls)) is not None:
            yield f"{module}.{table}", rule


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
