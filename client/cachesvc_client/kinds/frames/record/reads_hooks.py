"""Fills the reads of a trace, by hooks in the functions with which Dynamo makes constants of answers.

Read in torch 2.11 to 2.15.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any

from ....hooks import imports
from ....hooks.table import Hook
from ..describe.instances import is_instance
from ..describe.reads import words_at
from ..guards.spoken import object_name
from ..names import (
    ABSENT_KEY,
    ATTRIBUTE,
    ATTRIBUTE_BY_SLOT,
    BUILTIN,
    CONSTANT,
    CONSTANT_METHOD,
    FOLDED,
    GLOBAL,
    HAS_ATTRIBUTE,
    INLINE,
    LEFT_OUT,
    POLYFILL,
    SAME_OBJECT,
    SKIPPED,
    TENSOR,
    TENSOR_BY_SLOT,
)
from .container_reads import ContainerReads
from .traced_reads import UNKNOWN, TracedReads, constant_of, is_of_torch, package_of

_PURE = frozenset({
    *("abs", "all", "any", "ascii", "bin", "bool", "bytearray", "bytes", "callable", "chr", "classmethod"),
    *("complex", "delattr", "dict", "dir", "divmod", "enumerate", "filter", "float", "format"),
    *("frozenset", "getattr", "hasattr", "hex", "int", "isinstance", "issubclass", "iter", "len", "list"),
    *("map", "max", "min", "next", "object", "oct", "ord", "pow", "print", "property", "range", "repr"),
    *("reversed", "round", "set", "setattr", "slice", "sorted", "staticmethod", "str", "sum", "super"),
    *("tuple", "type", "vars", "zip"),
})  # fmt: skip
"""Builtins whose answer follows from their arguments, which have guards."""
_PURE_MODULES = frozenset({
    *("operator", "_operator", "math", "itertools", "functools", "_functools", "typing", "copy", "heapq"),
    *("_heapq", "struct", "_struct", "collections", "_collections", "traceback", "types"),
})  # fmt: skip
"""Modules whose functions answer by their arguments alone."""
_IMPURE_METHODS = ("__hash__", "__sizeof__", "__repr__", "__reduce__", "__reduce_ex__")
"""Methods of builtin classes whose answer is another one in each process."""
_COMPARED_OF_TENSORS = frozenset(
    ("device", "dtype", "grad", "itemsize", "layout", "nbytes", "ndim", "requires_grad", "shape")
)
"""Attributes of a tensor that its guards compare, besides those that say which kind it is."""
_NUMBERS = (int, float, bool, complex)
_ADDRESS = " at 0x"


class ReadsHooks:
    """Fills the reads of the trace that runs now."""

    def __init__(self) -> None:
        self._now: list[TracedReads] = []
        self._containers = ContainerReads(self._now, self._note_absent)
        self._identities: set[str] = set()
        """Names in guards of objects whose ``id`` a trace asked for."""
        self.missing = ""
        """The hook that is not there; empty if all are. Without one a frame cannot be recorded."""

    def install(self) -> None:
        """Put the hooks in place, which only a recording needs."""
        for hook, body in (
            (INLINE, self._inline),
            (BUILTIN, self._builtin),
            (POLYFILL, self._polyfill),
            (FOLDED, self._folded),
            (SKIPPED, self._skipped),
            (CONSTANT, self._constant_result),
            (CONSTANT_METHOD, self._constant_method),
            (ABSENT_KEY, self._absent_key),
            (HAS_ATTRIBUTE, self._attribute),
            (ATTRIBUTE, self._attribute),
            (ATTRIBUTE_BY_SLOT, self._attribute),
            (TENSOR, self._of_tensor),
            (TENSOR_BY_SLOT, self._of_tensor),
            (SAME_OBJECT, self._same_object),
            (GLOBAL, self._global),
            (LEFT_OUT, self._left_out),
        ):
            hook.install(body, on_missing=self._note_missing)
        imports.when_imported("torch._dynamo.symbolic_convert", self._watch_identities)
        self._containers.install()

    def _watch_identities(self, module: types.ModuleType) -> None:
        """See each ``is`` of a trace. Dynamo has the functions for it in a table, where no hook of a class
        reaches them."""
        handlers: dict[str, Any] = getattr(module, "compare_op_handlers", {})
        for operation in ("is", "is not"):
            if operation not in handlers:
                self._note_absent(f"{module.__name__}.compare_op_handlers")
            else:
                handlers[operation] = functools.partial(
                    _compare, imports.callback(self._identity), handlers[operation]
                )

    def _identity(self, translator: Any, arguments: Any) -> None:
        if self._now and not _is_of_library(translator.f_globals):
            self._now[-1].note_identity(arguments)

    def begin(self, code: types.CodeType, scope: Mapping[str, Any]) -> TracedReads:
        """Return the reads of a trace that begins. ``code``, ``scope``: the function's, and its globals."""
        reads = TracedReads()
        if not self._now:
            self._identities.clear()
        if self.missing:
            reads.refuse(f"this torch has no {self.missing}")
        reads.note_code(code, scope)
        self._now.append(reads)
        return reads

    def check_identities(self, builder: Any, guards: Iterable[Any]) -> None:
        """Raise ``TypeError`` for an object of a program that is a constant of a trace. Only its ``id``
        may be one: by that the interpreter's own code, such as ``copy``, tells what it saw before."""
        compared = [guard for guard in guards if guard.create_fn_name() == "ID_MATCH"]
        for guard in compared:
            if guard.name not in self._identities and is_instance(value := builder.get(guard)):
                kind = type(value).__qualname__
                raise TypeError(f"{object_name(guard.name)}: an object of {kind} becomes a constant")

    def now(self) -> TracedReads:
        """Return the reads of the trace that runs now."""
        return self._now[-1]

    def end(self) -> None:
        """Forget the trace that began last."""
        self._now.pop()

    def _note_absent(self, name: str) -> None:
        self.missing = self.missing or name

    def _note_missing(self, hook: Hook) -> None:
        import torch

        if hook.expected_in(torch.__version__):
            self.missing = hook.name

    def _inline(self, call: imports.Call) -> Any:
        if self._now:
            reads, code = self._now[-1], call.argument("code")
            reads.note_code(code, call.argument("funcvar").get_globals())
            reads.note_locals(code, call.argument("symbolic_locals"))
        return call()

    def _builtin(self, call: imports.Call) -> Any:
        answer = call()
        if self._now:
            function = call.args[0].fn
            self._note_builtin(call.args[1], function, call.args[2], call.args[3], answer)
        return answer

    def _note_builtin(
        self, translator: Any, function: Any, arguments: Any, named_arguments: Any, answer: Any
    ) -> None:
        value, reads = constant_of(answer), self._now[-1]
        if isinstance(value, str) and _ADDRESS in value:
            reads.refuse("the address of an object becomes a constant")
        if function in (isinstance, issubclass) and len(arguments) == 2:
            reads.note_instance(*arguments, of_class=function is issubclass)
        if _is_pure(function):
            return
        if function is hash and all(type(constant_of(one)) in _NUMBERS for one in arguments):
            return
        if function is id:
            self._identities |= {source.name for one in arguments if (source := getattr(one, "source", None))}
        # The interpreter's own modules and torch tell objects apart by these numbers, and do nothing else.
        if function is not id or not _is_of_library(translator.f_globals):
            reads.note_answer(function, arguments, named_arguments, answer)

    def _polyfill(self, call: imports.Call) -> Any:
        answer = call()
        if self._now:
            function, translator = call.args[0].fn, call.args[1]
            # There it only ends the search in a circle of wrappers, and compilers set it.
            ends_search = function is sys.getrecursionlimit and translator.f_code is inspect.unwrap.__code__
            if not (_is_pure(function) or ends_search):
                self._now[-1].note_answer(function, call.args[2], call.args[3], answer)
        return answer

    def _skipped(self, call: imports.Call) -> Any:
        answer = call()
        if self._now:
            self._now[-1].note_skipped(call.args[0].value, call.args[2], call.args[3], answer)
        return answer

    def _folded(self, call: imports.Call) -> Any:
        answer = call()
        if self._now:
            function = call.args[0].value
            arguments = [constant_of(one) for one in call.args[2]]
            is_getter = function in _folded_functions() and UNKNOWN not in arguments
            if is_getter and getattr(function, "__module__", "") != "math":
                self._now[-1].note_answer(function, call.args[2], call.args[3], answer)
        return answer

    def _constant_result(self, call: imports.Call) -> Any:
        if self._now:
            self._now[-1].refuse(f"{call.argument('name')} is a function whose answer is taken as a constant")
        return call()

    def _constant_method(self, call: imports.Call) -> Any:
        if self._now and call.args[2] in _IMPURE_METHODS and call.args[2] != "__repr__":
            self._now[-1].refuse(f"it calls {call.args[2]} of a constant")
        return call()

    def _absent_key(self, call: imports.Call) -> Any:
        """Have Dynamo guard that a dictionary lacks a key, where a ``KeyError`` is its answer."""
        try:
            return call()
        except Exception:
            if self._now:
                variable, translator, key = call.args
                variable.install_dict_contains_guard(translator, [key])
            raise

    def _attribute(self, call: imports.Call) -> Any:
        if self._now:
            module, translator, name = call.args[0].value, call.args[1], call.args[2]
            if not is_of_torch(vars(module)) and not _is_copy_of_torch(module, translator):
                self._now[-1].names[f"{module.__name__}:{name}"] = words_at(module, name)
        return call()

    def _same_object(self, call: imports.Call) -> Any:
        """Guard that a local name and a global one lead to one object: Dynamo relates two local ones, or two
        global ones, alone."""
        guard = call()
        source, other = call.args
        if guard is not None or not self._now or not other or other == source:
            return guard
        from torch._dynamo.guards import GuardBuilder

        return functools.partial(GuardBuilder.DUPLICATE_INPUT, source_b=other)

    def _global(self, call: imports.Call) -> Any:
        """Record what a global of the interpreter's own modules is: Dynamo guards nothing that it reads
        through one."""
        if self._now:
            translator, name = call.args
            self._now[-1].note_global(translator.f_globals, name)
        return call()

    def _left_out(self, call: imports.Call) -> Any:
        """Keep a guard that Dynamo omits, of what it expects to stay as it is: annotations, signatures. That
        two inputs are one tensor is omitted too, later: each has guards, and equal objects are compared."""
        is_left_out = call()
        if is_left_out and self._now:
            frame: types.FrameType | None = sys._getframe()
            while frame is not None and frame.f_code.co_name not in ("install_guard", "DUPLICATE_INPUT"):
                frame = frame.f_back
            if frame is None or frame.f_code.co_name == "install_guard":
                self._now[-1].note_left_out(frame.f_locals.get("guard") if frame is not None else None)
        return is_left_out

    def _of_tensor(self, call: imports.Call) -> Any:
        """Refuse what Dynamo reads of its stand-in for a tensor, such as whether that is a view."""
        answer = call()
        if self._now and constant_of(answer) is not UNKNOWN and not _is_compared(name := call.args[2]):
            self._now[-1].refuse(f"{name} of a tensor becomes a constant, and cannot be compared")
        return answer


def _is_copy_of_torch(module: types.ModuleType, translator: Any) -> bool:
    """Return whether torch's own code reads a copy of a module that it imported for itself: since torch 2.15
    its substitutes for ``operator`` call one. What is traced there is compared as code."""
    is_copy = sys.modules.get(module.__name__) is not module
    return is_copy and is_of_torch(translator.f_globals)


def _compare(note: Any, original: Any, translator: Any, arguments: Any, named_arguments: Any) -> Any:
    note(translator, arguments)
    return original(translator, arguments, named_arguments)


def _is_compared(name: str) -> bool:
    """Return whether guards compare an attribute of a tensor; those that a program set, too, have some."""
    import torch

    is_kind = name.startswith("is_") and name != "is_leaf"
    return is_kind or name in _COMPARED_OF_TENSORS or not hasattr(torch.Tensor, name)


def _is_pure(function: Any) -> bool:
    """Return whether the answer of a function in C, or of one for which Dynamo has a substitute, follows from
    its arguments."""
    if isinstance(function, type) or function is os.fspath:
        return True
    name = getattr(function, "__name__", "")
    if (kind := getattr(function, "__objclass__", None)) is not None:
        return kind.__module__ in ("builtins", "collections") and name not in _IMPURE_METHODS
    package = str(getattr(function, "__module__", "")).partition(".")[0]
    if package == "builtins":
        return name in _PURE
    return package in _PURE_MODULES or package in ("torch", "optree")


def _is_of_library(scope: Mapping[str, Any]) -> bool:
    return package_of(scope) in ("torch", *sys.stdlib_module_names)


def _folded_functions() -> Mapping[Any, Any]:
    from torch._dynamo.variables import torch as variables

    functions: Mapping[Any, Any] = variables.constant_fold_functions
    return functions
