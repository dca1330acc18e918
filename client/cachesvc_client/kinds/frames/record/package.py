"""Stands for Dynamo's package of compiled code while one frame is traced, and fills the record of the frame.

Dynamo tells a package what it made of a function. What it does not tell is read from the guards, and from the
globals that it adds.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import types
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from .. import split
from ..describe.digests import class_digest
from ..describe.objects import has_name, traced_functions
from ..guards import pickles
from ..guards.live import marks_of
from ..guards.optimizers import note_start
from ..guards.spoken import object_name
from ..stored import RecordedFrame
from .traced_reads import TracedReads

_GLOBAL = re.compile(r"\bG\['(\w+)'\]")
"""Matches a global in the name of a guard."""
_BUILTINS = "__builtins_dict__"
"""How the name begins of the global under which Dynamo keeps builtins; a service makes it, see `guards`."""


_WHY_NOT = {
    "__gen_rand_values": "it takes random numbers of Python's module random: take them of torch",
    "___unnamed_scope": "it calls a function whose globals are no module's, such as that of a named tuple",
}
"""How globals begin that Dynamo makes and no service can -> why a frame that reads one is refused."""


class FramePackage:
    """Stands for Dynamo's ``CompilePackage`` while one frame is traced, and fills a `RecordedFrame`."""

    def __init__(self, frame: RecordedFrame, modules: dict[str, str]) -> None:
        self.frame = frame
        self.refused = ""
        self.kernels: list[Any] = []
        """The Triton kernels of the application that the frame's graphs launch."""
        self._modules = modules
        self._names: set[str] = set()
        """Global names that the guards read."""
        self._split: Any = None
        """The graph that is split now, and the names of its parts."""
        self._parts: list[str] = []
        self._optimizers: dict[str, Any] = {}
        """The optimizers by the names of their guards, while the frame is traced."""

    @contextlib.contextmanager
    def code_context(self, _code: types.CodeType) -> Iterator[None]:
        """Do nothing: each frame has a package of its own."""
        yield

    def add_guarded_code(self, guards_state: bytes, dynamo_code: types.CodeType) -> None:
        """Take the guards and the bytecode of the frame."""
        from torch._dynamo.package import SerializedCode

        self.frame.guards = guards_state
        self.frame.output.bytecode = SerializedCode.from_code_object(dynamo_code)
        self.frame.output.modules |= self._modules

    def add_inlined_source(self, sources: Any) -> None:
        """Do nothing: Dynamo leaves out the code in which a trace failed, see `note_reads`."""

    def note_reads(self, reads: TracedReads) -> None:
        """Take the code that was traced, and what the trace read without a guard."""
        self.refused = self.refused or reads.refused
        self.frame.facts.reads = reads.recorded()
        try:
            self.frame.facts.traced = traced_functions(reads.codes)
        except LookupError as error:
            self.refused = self.refused or str(error)

    def add_import_source(self, alias: str, module_name: str) -> None:
        """Take a module that the bytecode names."""
        self.frame.output.modules[alias] = module_name

    def add_backend_id(self, backend_id: str, _backend: Any = None) -> None:
        """Take the name of a compiled graph, and of a split one how it calls its parts."""
        self.frame.output.graphs = (*self.frame.output.graphs, backend_id)
        graph, parts = self._split, self._parts
        self._split, self._parts = None, []
        try:
            if parts:
                self.frame.splits[backend_id] = split.keep(graph, parts)
            if self.frame.output.tensors.keys() & {*parts}:
                raise TypeError("a part of a split graph has tensors that are no inputs of it")
        except TypeError as error:
            self.refused = self.refused or str(error)

    def add_resume_function(self, code: types.CodeType, _module: str, name: str) -> None:
        """Take a function that goes on after a graph break."""
        from torch._dynamo.output_graph import OutputGraph
        from torch._dynamo.package import SerializedCode

        if code.co_freevars and not hasattr(OutputGraph, "install_resume_function_global"):
            self.refused = "a graph break in a function with free variables, on this torch"
        self.frame.output.resumes[name] = SerializedCode.from_code_object(code)

    def note_guards(self, builder: Any, guards: Any, output_graph: Any) -> None:
        """Take the global names that guards read, and the marks on the sizes of tensors."""
        self.frame.output.builtins = output_graph.name_of_builtins_dict_key_in_fglobals or ""
        self._names |= {name for guard in guards for name in _GLOBAL.findall(guard.name)}
        for guard in guards:
            self._note_marks(builder, guard)
        held = {name for names in self.frame.output.tensors.values() for name in names}
        if held - {guard.name for guard in guards if guard.create_fn_name() == "ID_MATCH"}:
            self.refused = self.refused or "the graph has tensors that no guard compares"

    def _note_marks(self, builder: Any, guard: Any) -> None:
        value = builder.get(guard) if guard.create_fn_name() in pickles.OF_TENSORS else None
        if pickles.is_of_tensor(guard, value) and (marks := marks_of(value)):
            self.frame.facts.markings[guard.name] = marks

    def note_tensors(self, graph: str, names: tuple[str, ...]) -> None:
        """Note the names of the tensors that a graph has itself, in the order of its inputs."""
        self.frame.output.tensors[graph] = names

    def note_part(self, graph: Any) -> str:
        """Return a name for one more part of a graph that is split now."""
        self._split = graph
        self._parts.append(f"__part_{secrets.token_hex(8)}")
        return self._parts[-1]

    def note_optimizer(self, name: str, optimizer: Any, arguments: Any) -> None:
        """Note what a trace does with an optimizer, see `guards.optimizers`."""
        try:
            note_start(self.frame.facts.optimizers, name, optimizer, arguments)
            self._optimizers[name] = optimizer
        except TypeError as error:
            self.refused = self.refused or f"{object_name(name)}: {error}"

    def _optimizer_of(self, value: Any) -> str:
        """Return the name of the optimizer that a weak reference is to; an empty text for other objects."""
        referred = value() if isinstance(value, weakref.ref) else None
        named = (name for name, one in self._optimizers.items() if one is referred)
        return next(named, "")

    def _note_class(self, kind: type) -> str:
        """Take a class that is found under its name; return that."""
        name = f"{kind.__module__}:{kind.__qualname__}"
        self.frame.facts.classes[name] = class_digest(kind)
        return name

    def check_globals(self, added: Mapping[str, Any]) -> None:
        """Take the classes that the bytecode or a guard reads as a global that Dynamo added, and refuse the
        frame if it reads another object so.

        ``added``: what Dynamo put into the globals of the function, by name.
        """
        if self.frame.output.bytecode is None:
            return
        output = self.frame.output
        output.as_plain = tuple(name for name in output.graphs if _is_as_plain(added.get(name)))
        known = {*output.modules, *output.graphs, *output.resumes}
        for name in ({*_global_names(self.frame.output.bytecode)} | self._names) & added.keys() - known:
            value = added[name]
            if isinstance(value, type) and has_name(value):
                self.frame.output.modules[name] = self._note_class(value)
            elif owner := self._optimizer_of(value):
                self.frame.facts.weak[name] = owner
            elif not name.startswith(_BUILTINS):
                why = next((why for begin, why in _WHY_NOT.items() if name.startswith(begin)), "")
                self.refused = self.refused or why or f"Dynamo made the global {name} for it"

    def update_device_type(self, _graph: Any) -> None:
        """Do nothing: the device is in the guards."""

    def bypass_current_entry(self) -> None:
        """Note that Dynamo does not serialise the frame."""
        self.refused = self.refused or "Dynamo does not serialise this frame"

    def bypass_current_compile(self) -> None:
        """Note the same, as Dynamo says it since torch 2.15."""
        self.bypass_current_entry()


def _is_as_plain(function: Any) -> bool:
    """Return whether Dynamo calls a graph without ``__torch_function__`` of subclasses of tensors."""
    inner = getattr(function, "_torchdynamo_orig_callable", None)
    return bool(getattr(inner, "__name__", "") == "_tf_disabled_wrapper")


def _global_names(code: Any) -> Iterator[str]:
    """Yield the names that serialised bytecode reads."""
    yield from code.co_names
    for constant in code.co_consts:
        if hasattr(constant, "co_names"):
            yield from _global_names(constant)
