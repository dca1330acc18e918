"""Finds every place where the loaded torch is not torch as it was released.

`changes` walks the modules of torch and their classes, and the tables of AOTAutograd and Inductor, and
returns
what a program put there. Whatever is compiled can depend on it, and PyTorch's keys have the version of torch
alone. A patch may come at any moment: each call sees the patches of that moment. What was judged before and
is
still the same object is not judged again.
"""

from __future__ import annotations

import atexit
import functools
import gc
import itertools
import operator
import sys
import threading
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..code.followed import FollowedCode
from ..code.passes import described as description
from . import (
    classes,
    in_place,
    known,
    modules,
    namespaces,
    native,
    presence,
    registered,
    signatures,
    tables,
)

_MEMBERS = 64
"""Namespaces that are compared in one step."""
_OLD_TENSOR = "tensortype"
"""The class of ``torch.FloatTensor`` and its like, which show the attributes of ``torch.Tensor``."""
_FUNCTIONS = "torch._VF"
"""The module of a class of its own through which torch's Python calls its functions in C."""
_SCRIPT = ("torch.jit", "torch.ScriptMethod", "torch.compiler._cache.CacheInfo")
"""Beginnings of the names of classes that no graph of ``torch.compile`` reaches: TorchScript's, and
counts."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Says how the loaded torch differs from its release.

    Attributes:
        described: Place -> what stands there. Equal in each process in which the same was put there.
        unknown: In words, the first place whose content has no description that holds in other processes;
            empty if there is none.
    """

    described: Mapping[str, str] = field(default_factory=dict)
    unknown: str = ""

    @property
    def texts(self) -> list[str]:
        """Return a line for each place."""
        return [
            f"{place} was replaced by the program: {text}" for place, text in sorted(self.described.items())
        ]


class _Namespace:
    """Holds one module or class, its names as they were judged last, and what was not torch's own there."""

    __slots__ = ("changed", "data", "holder", "keys", "names", "values")

    def __init__(self, holder: Any, is_own: bool) -> None:
        """``is_own``: whether torch's own code put all values there."""
        self.holder = holder
        self.names = _names_of(holder)
        self.changed: dict[str, Any] = {}
        self.data: dict[str, Any] = {}
        """What was put under the names of data first that lead to something else since."""
        self._keep()
        if is_own and known.are_files_known(self.values):
            in_place.keep(self.values)
        else:
            self.judge()

    def _keep(self) -> None:
        self.keys, self.values = list(self.names), list(self.names.values())

    def judge(self) -> None:
        """Judge all values."""
        before = dict(zip(self.keys, self.values, strict=True))
        self._keep()
        self.changed = {}
        if _is_of_operators(self.holder):
            self.changed = dict(namespaces.operator_changes(self.holder))
            return
        in_place.keep(self.values)
        if signatures.are_known(self.names):
            return
        in_place.compare(self.values)
        found = classes.class_changes if isinstance(self.holder, type) else modules.module_changes
        self.changed = {**self._data_changes(before), **dict(found(self.holder))}

    def _data_changes(self, before: dict[str, Any]) -> dict[str, Any]:
        """Return what stands in the place of data: of what is no code, and torch's own text does not put
        there later."""
        for name, first in before.items():
            if (value := self.names.get(name, first)) is first or callable(value):
                continue
            if known.is_constant(self.holder, name, first):
                self.data.setdefault(name, first)
        return {
            name: self.names[name]
            for name, first in self.data.items()
            if name in self.names and not known.are_alike(self.names[name], first)
        }


class _Part:
    """Compares some namespaces at once: most did not change since the last call."""

    __slots__ = ("keys", "members", "names", "values")

    def __init__(self, members: list[_Namespace]) -> None:
        self.members = members
        self.names = [one.names for one in members]
        self._keep()

    def judge_again(self) -> bool:
        """Judge the namespaces again in which a value was replaced; return whether there were any."""
        if _is_same(self.names, self.keys, self.values):
            return False
        for one in self.members:
            if not _is_same([one.names], one.keys, one.values):
                one.judge()
        self._keep()
        return True

    def _keep(self) -> None:
        self.keys = [key for one in self.members for key in one.keys]
        self.values = [value for one in self.members for value in one.values]


def _is_same(names: list[dict[str, Any]], keys: list[str], values: list[Any]) -> bool:
    """Return whether the same objects stand under the same names."""
    flat = itertools.chain.from_iterable
    return list(flat(names)) == keys and all(map(operator.is_, flat(map(dict.values, names)), values))


def _names_of(holder: Any) -> dict[str, Any]:
    """Return the dict in which a module or class keeps its names. A class shows only a proxy of it."""
    names = vars(holder)
    if isinstance(names, dict):
        return names
    [kept] = (one for one in gc.get_referents(names) if isinstance(one, dict))
    return dict(kept) if not isinstance(kept, dict) else kept


_PARTS = (
    *("nn", "_C", "_ops", "_refs", "_prims", "_prims_common", "_decomp", "_meta_registrations"),
    *("_higher_order_ops", "_library", "library", "overrides", "functional", "_tensor", "_lowrank"),
    *("_linalg_utils", "autograd", "amp", "cuda.amp", "utils.checkpoint", "linalg", "fft", "special"),
    *("sparse", "nested", "masked", "random", "_VF", "func", "_functorch.vmap", "_functorch.apis"),
    *("_functorch.eager_transforms", "_functorch.autograd_function", "_functorch.partitioners"),
    *("_subclasses.fake_impls", "distributed.tensor", "distributed._functional_collectives"),
    *("_inductor.lowering", "_inductor.decomposition", "_inductor.codegen", "_inductor.ir"),
    *("_inductor.fx_passes", "_inductor.kernel", "_inductor.pattern_matcher", "_inductor.inductor_prims"),
    *("_inductor.scheduler", "_inductor.choices", "_inductor.ops_handler", "_inductor.virtualized"),
    *("_inductor.index_propagation", "_inductor.comms", "_inductor.compile_fx"),
)
"""The parts of torch that decide what an operator is traced into and compiled to. The other parts run the
compiler and its caches, which tools wrap to watch them, or are models and training, whose code Dynamo traces
and a record compares function by function."""
_WALKED = tuple(f"torch.{one}." for one in _PARTS)


@functools.cache
def is_walked(module: str) -> bool:
    """Return whether `changes` compares a module of torch."""
    return module == "torch" or f"{module}.".startswith(_WALKED)


class Released:
    """Keeps what was judged, so that a call judges only what is new."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._namespaces: dict[int, _Namespace] = {}
        self._parts: list[_Part] = []
        self._changed: dict[str, Any] = {}
        self._modules: dict[str, types.ModuleType] = {}
        self._loaded = 0
        self._is_own = False

    def take(self) -> None:
        """Take what is loaded for torch as released. Only what replaces it later is judged."""
        with self._lock:
            self._is_own = True
            try:
                self._add_modules()
                self._add_classes()
                self._add_operators()
            finally:
                self._is_own = False

    def changed(self) -> dict[str, Any]:
        """Return what stands in the place of torch's own, by place."""
        with self._lock:
            new = self._add_modules()
            for part in self._parts:
                new |= part.judge_again()
            if new:
                self._add_classes()
                self._add_operators()
                self._changed = {
                    f"{_place(one.holder)}.{name}": value
                    for one in self._namespaces.values()
                    for name, value in one.changed.items()
                }
            return self._changed

    def signatures(self, *, alike: bool) -> set[bytes]:
        """Return the signatures of the namespaces that are as released, see `signatures.of_services`."""
        with self._lock:
            members = (one for one in self._namespaces.values() if not _is_of_operators(one.holder))
            clean = (one for one in members if not one.changed)
            return set().union(*(signatures.of_services(one.names, alike=alike) for one in clean))

    def _add_modules(self) -> bool:
        """Add the modules of torch that were imported since; return whether there are any."""
        if len(sys.modules) == self._loaded:
            return False
        self._loaded, folder = len(sys.modules), known.torch_folder()
        found = [
            module
            for name, module in list(sys.modules.items())
            if is_walked(name)
            and (type(module) is types.ModuleType or name == _FUNCTIONS)
            and self._modules.get(name) is not module
            and str(vars(module).get("__file__") or folder).startswith(folder)
        ]
        self._modules.update((module.__name__, module) for module in found)
        self._add(found)
        return bool(found)

    def _add_classes(self) -> None:
        """Add the classes of torch that stand in its modules."""
        while True:
            classes = [
                value
                for name, module in self._modules.items()
                for value in vars(module).values()
                if issubclass(type(value), type)
                and id(value) not in self._namespaces
                and is_walked(str(value.__module__))
                and type(value).__name__ != _OLD_TENSOR
                and not _place(value).startswith(_SCRIPT)
            ]
            if not classes:
                return
            self._add(classes)

    def _add_operators(self) -> None:
        """Add the namespaces of ``torch.ops`` and the operators in them that were used."""
        spaces = list(namespaces.operator_holders(sys.modules["torch"].ops))
        packets = (packet for space in spaces for packet in namespaces.operator_holders(space))
        self._add([one for one in (*spaces, *packets) if id(one) not in self._namespaces])

    def _add(self, holders: list[Any]) -> None:
        new = [_Namespace(one, self._is_own) for one in {id(one): one for one in holders}.values()]
        self._namespaces.update((id(one.holder), one) for one in new)
        self._parts += [_Part(new[start : start + _MEMBERS]) for start in range(0, len(new), _MEMBERS)]


def _is_of_operators(holder: Any) -> bool:
    """Return whether a holder's names are those of operators, or of one operator's overloads."""
    return type(holder).__module__ == namespaces.OPERATORS


def _place(holder: Any) -> str:
    if _is_of_operators(holder):
        return f"torch.ops.{namespaces.operator_name(holder)}"
    return f"{holder.__module__}.{holder.__qualname__}" if isinstance(holder, type) else str(holder.__name__)


_released = Released()


@atexit.register
def _forget() -> None:
    """Let go of what was judged. Else torch's objects would outlive torch at the end of the process."""
    global _released
    _released = Released()
    tables.forget()
    in_place.forget()


def judged(*, alike: bool = False) -> bytes:
    """Return what spares a service of the same torch to judge all of it, for `signatures.learn`. ``alike``: a
    service that attaches as this process did, at half the price."""
    changes()
    entries = (signatures.of_services(entry, alike=alike) for entry in tables.own_entries())
    return b"".join(sorted(_released.signatures(alike=alike).union(*entries)))


def take() -> None:
    """Take torch, as it is loaded now, for torch as released."""
    _released.take()
    tables.take()


def changes() -> Changes:
    """Return how torch, as it is loaded now, differs from its release."""
    found = {**_released.changed(), **dict(tables.changed())}
    in_cpp, unknown_cpp = native.over_torchs_own()
    reason = registered.core.unknown() or in_place.changed() or unknown_cpp
    described = dict(in_cpp)
    for place, value in sorted(found.items()):
        if value is presence.REMOVED:
            described[place] = "nothing"
            continue
        followed = FollowedCode([description(value)])
        described[place] = f"{_in_words(value)} code {followed.digest}"
        # A pass that says what it is by a `uuid` is known to PyTorch, whatever else its class reads.
        if followed.unknown and not hasattr(value, "uuid"):
            reason = reason or f"{place} was replaced by the program, which reads {followed.unknown}"
    return Changes(described, reason)


def _in_words(value: Any) -> str:
    """Return the name of what stands in a place; a name that has no address."""
    name = (
        getattr(value, "__qualname__", None) or getattr(value, "__name__", None) or type(value).__qualname__
    )
    return f"{getattr(value, '__module__', None) or type(value).__module__}.{name}"
