"""Record what Dynamo made of each frame, and give it to Dynamo in another process instead of a trace.

A frame is what Dynamo compiles at once: a Python function, up to a graph break. Recorded are the bytecode
that Dynamo made of it, its guards, the modules that the bytecode names, and AOTAutograd's result for each
graph.

PyTorch's own serialisation refuses guards that compare identities: of modules, classes, functions, builtins
and code objects. Here such a guard is recorded with a description of its object. The other process first
checks the serialised guards against the live frame, then the descriptions, and then makes *all* guards anew
from the live frame, as a trace would have. So no guard is lost.

Private names of torch 2.13 to 2.15 are used without care for other versions: it is an experiment.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib
import pickle
import sys
import time
import types
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch._dynamo
import torch._dynamo.convert_frame as convert_frame
import torch._dynamo.guards as dynamo_guards
import torch._functorch.config as functorch_config
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.package import SerializedCode
from torch._dynamo.precompile_context import PrecompileContext
from torch._dynamo.source import DefaultsSource


@dataclasses.dataclass
class Frame:
    """One frame as Dynamo left it. ``code`` and ``bytecode`` are serialised code objects."""

    code: Any
    bytecode: Any = None
    guards: bytes = b""
    by_identity: bytes = b""
    """The guards that PyTorch does not serialise, each with the description of its object; pickled."""
    modules: dict[str, str] = dataclasses.field(default_factory=dict)
    """Global names of the bytecode -> modules."""
    traced: list[tuple[str, str, str]] = dataclasses.field(default_factory=list)
    """Module, qualified name and digest of every traced function that a module has under its name."""
    backends: list[str] = dataclasses.field(default_factory=list)
    refused: str = ""
    counts: dict[str, int] = dataclasses.field(default_factory=dict)


class _Package:
    """Stands for Dynamo's ``CompilePackage`` while one frame is traced, and fills a `Frame`."""

    def __init__(self, frame: Frame, installed: dict[str, str]) -> None:
        self.frame = frame
        self._installed = installed

    @contextlib.contextmanager
    def code_context(self, _code: types.CodeType) -> Iterator[None]:
        yield

    def add_guarded_code(self, guards_state: bytes, dynamo_code: types.CodeType) -> None:
        self.frame.guards = guards_state
        self.frame.bytecode = SerializedCode.from_code_object(dynamo_code)
        self.frame.modules |= self._installed

    def add_inlined_source(self, sources: list[types.CodeType]) -> None:
        described = [_described_code(code) for code in sources]
        self.frame.traced = [one for one in described if _now(*one[:2]) == one[2]]

    def add_import_source(self, alias: str, module_name: str) -> None:
        self.frame.modules[alias] = module_name

    def add_backend_id(self, backend_id: str, _backend: Any = None) -> None:
        self.frame.backends.append(backend_id)

    def add_resume_function(self, *_: Any) -> None:
        self.frame.refused = "a graph break"

    def update_device_type(self, _graph: Any) -> None: ...

    def bypass_current_entry(self) -> None:
        self.frame.refused = "Dynamo does not serialise this frame"


def record() -> list[Frame]:
    """Record every frame from now on, and return the list that fills."""
    frames: list[Frame] = []
    installed: dict[str, str] = {}
    functorch_config.bundled_autograd_cache = True
    # Dynamo trusts that nobody adds a hook to a module after its trace. Between two processes somebody may.
    torch._dynamo.config.skip_nnmodule_hook_guards = False
    DefaultsSource.__reduce__ = _reduce_source
    compile_frame, install = convert_frame._compile, OutputGraph.install_global_by_id
    serialize = dynamo_guards.CheckFunctionManager.serialize_guards

    def compile_and_record(code: types.CodeType, *args: Any, **kwargs: Any) -> Any:
        frame = Frame(SerializedCode.from_code_object(code))
        kwargs["package"] = _Package(frame, installed)
        frames.append(frame)
        return compile_frame(code, *args, **kwargs)

    def install_and_record(self: Any, prefix: str, value: Any) -> str:
        name: str = install(self, prefix, value)
        if isinstance(value, types.ModuleType):
            installed[name] = value.__name__
        return name

    def serialize_most(self: Any, builder: Any, guards: list[Any], graph: Any) -> bytes:
        kept = [guard for guard in guards if not _compares_identity(guard)]
        left = [guard for guard in guards if _compares_identity(guard)]
        frames[-1].by_identity = pickle.dumps([(_bare(one), describe(builder.get(one))) for one in left])
        frames[-1].counts = {"guards": len(guards), "by identity": len(left)}
        state: bytes = serialize(self, builder, kept, graph)
        return state

    convert_frame._compile = compile_and_record
    OutputGraph.install_global_by_id = install_and_record
    dynamo_guards.CheckFunctionManager.serialize_guards = serialize_most
    return frames


def save(path: Path, frames: list[Frame], output: Any) -> None:
    """Write the frames, AOTAutograd's results for their graphs, and the builder's output."""
    names = [name for frame in frames for name in frame.backends]
    results = {name: PrecompileContext._backend_artifacts_by_key[name] for name in names}
    path.write_bytes(pickle.dumps({"frames": frames, "results": results, "output": output}))


class Replay:
    """Gives recorded frames to Dynamo. ``reasons``: why a frame was traced all the same.

    ``seconds``: what the steps took, summed over all frames."""

    def __init__(self, saved: dict[str, Any]) -> None:
        self._frames = [(SerializedCode.to_code_object(one.code), one) for one in saved["frames"]]
        self._results = saved["results"]
        self._compile = convert_frame._compile
        torch._dynamo.config.skip_nnmodule_hook_guards = False
        self.used, self.reasons, self.seconds = 0, list[str](), dict[str, float]()
        convert_frame._compile = self._give_or_trace

    def _give_or_trace(
        self,
        code: types.CodeType,
        globals: dict[str, Any],
        locals: dict[str, Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        given = self._given(code, globals, locals, kwargs["compile_id"])
        return given or self._compile(code, globals, locals, *args, **kwargs)

    def only_recorded(self, code: Any, globals: Any, locals: Any, *_: Any, **kwargs: Any) -> Any:
        """Stand for Dynamo's compile of a frame as `Replay` does, but let a frame without a record run in
        eager mode."""
        from torch._dynamo.types import ConvertFrameReturn

        return self._given(code, globals, locals, kwargs["compile_id"]) or ConvertFrameReturn()

    def _given(self, code: Any, globals: Any, locals: Any, compile_id: Any) -> Any:
        for known, frame in self._frames:
            if known == code:
                reason, result = self._give(frame, code, globals, locals, compile_id)
                if not reason:
                    self.used += 1
                    return result
                self.reasons.append(reason)
        return None

    def _give(self, frame: Frame, code: Any, globals: Any, locals: Any, compile_id: Any) -> tuple[str, Any]:
        """Return why the frame does not fit, or Dynamo's result."""
        from torch._dynamo.package import load_guard_manager, load_guards_state
        from torch._dynamo.types import GuardedCode, wrap_guarded_code

        if frame.refused:
            return frame.refused, None
        with self._timed("code"):
            changed = [name for module, name, digest in frame.traced if _now(module, name) != digest]
        if changed:
            return f"{changed[0]} is other code", None
        with self._timed("guards, read"):
            state = load_guards_state(frame.guards)
            _install(frame, state, globals)
            _fill_pruned(state, locals, globals)
        with self._timed("guards, recorded"):
            if not load_guard_manager(state, code, globals).check(locals):
                return "a recorded guard fails", None
        with self._timed("guards, live"):
            manager, differs = _live_manager(frame, state, code, globals, locals)
        if differs:
            return f"{differs} is another object", None
        with self._timed("graphs"):
            for name in frame.backends:
                globals[name] = torch._dynamo.disable(self._results[name].after_deserialization())
        bytecode = SerializedCode.to_code_object(frame.bytecode)
        return "", wrap_guarded_code(GuardedCode(bytecode, manager, compile_id, "recorded frame"))

    @contextlib.contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.seconds[what] = self.seconds.get(what, 0.0) + time.perf_counter() - begin


def describe(value: Any) -> str:
    """Return what an object is, in words that are equal in every process with the same code.

    Raises ``TypeError`` for an object that has no such words.
    """
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__}"
    if isinstance(value, types.CodeType):
        return f"code {_digest(value)}"
    if isinstance(value, types.FunctionType):
        return f"function {value.__module__}.{value.__qualname__} {_digest(value.__code__)}"
    if isinstance(value, type) or hasattr(value, "__qualname__"):
        return f"{type(value).__name__} {value.__module__}.{value.__qualname__}"
    if value is None or isinstance(value, bool | int | str | torch.dtype | torch.device):
        return repr(value)
    raise TypeError(f"{type(value).__qualname__} has no description")


def _reduce_source(source: Any) -> tuple[Any, ...]:
    """Pickle a source by the arguments of its class. That of torch 2.11 adds the fields that it computes."""
    fields = [getattr(source, field.name) for field in dataclasses.fields(source) if field.init]
    return type(source), tuple(fields)


def _compares_identity(guard: Any) -> bool:
    kinds = dynamo_guards.CheckFunctionManager.UNSUPPORTED_SERIALIZATION_GUARD_TYPES
    return bool({guard.create_fn_name(), *(guard.guard_types or ())} & set(kinds)) or guard._unserializable


def _bare(guard: Any) -> Any:
    """Return the guard without what refers to objects of this process."""

    def dereferenced(value: Any) -> Any:
        is_reference = isinstance(value, weakref.ref) or type(value).__name__ == "TensorWeakRef"
        return value() if is_reference else value

    create = guard.create_fn
    if isinstance(create, functools.partial):
        words = {name: dereferenced(value) for name, value in create.keywords.items()}
        create = functools.partial(create.func, *map(dereferenced, create.args), **words)
    return dataclasses.replace(guard, create_fn=create, **_UNSET)


_UNSET = {"obj_weakref": None, "guarded_class_weakref": None, "guard_types": None, "code_list": None}


def _install(frame: Frame, state: Any, globals: dict[str, Any]) -> None:
    """Put the modules that the bytecode names, and the dictionary of builtins, into the frame's globals."""
    from torch._dynamo.output_graph import get_builtins_dict

    for alias, name in frame.modules.items():
        globals[alias] = importlib.import_module(name)
    if name := state.output_graph.name_of_builtins_dict_key_in_fglobals:
        globals.setdefault(name, get_builtins_dict(globals))


def _fill_pruned(state: Any, locals: dict[str, Any], globals: dict[str, Any]) -> None:
    """Put live objects where PyTorch pruned the recorded ones. Their descriptions are compared later."""
    graph = state.output_graph
    for name, live in (("local_scope", locals), ("global_scope", globals)):
        scope = getattr(graph, name)
        pruned = {key: live[key] for key, value in scope.items() if type(value).__name__ == "_Missing"}
        graph = dataclasses.replace(graph, **{name: {**scope, **pruned}})
    state.output_graph = graph


def _live_manager(frame: Frame, state: Any, code: Any, globals: Any, locals: Any) -> tuple[Any, str]:
    """Return the manager of all guards, made from the live frame; and the first object that differs from the
    recorded one."""
    from torch._dynamo.output_graph import OutputGraphCommon
    from torch._guards import GuardsSet
    from torch.utils._ordered_set import OrderedSet

    scope = {"L": locals, "G": globals}
    identities = pickle.loads(frame.by_identity)
    for guard, described in identities:
        if describe(eval(guard.name, scope)) != described:
            return None, guard.name
    every = [*state.output_graph._guards, *(guard for guard, _ in identities)]
    fresh = OrderedSet([dataclasses.replace(guard, **_UNSET) for guard in every])
    live = dataclasses.replace(
        state.output_graph, local_scope=locals, global_scope=globals, _guards=GuardsSet(fresh)
    )
    manager = dynamo_guards.CheckFunctionManager(
        code,
        OutputGraphCommon(live),
        shape_code_parts=state.shape_code_parts,
        runtime_global_scope=globals,
    ).guard_manager
    return manager, ""


@functools.cache
def _digest(code: types.CodeType) -> str:
    """Return the digest of a code object without its place in the source."""
    constants = [_digest(one) if isinstance(one, types.CodeType) else repr(one) for one in code.co_consts]
    return hashlib.sha256(repr((code.co_code, code.co_names, constants)).encode()).hexdigest()


@functools.cache
def _modules_by_file() -> dict[str, str]:
    return {getattr(module, "__file__", None) or "": name for name, module in list(sys.modules.items())}


def _described_code(code: types.CodeType) -> tuple[str, str, str]:
    return _modules_by_file().get(code.co_filename, ""), code.co_qualname, _digest(code)


def _now(module: str, name: str) -> str:
    """Return the digest of the code that a module has under a qualified name; empty if there is none.

    A function inside of a function has no such name. Dynamo guards the function that holds it."""
    if not module or "<" in name:
        return ""
    value: Any = sys.modules.get(module) or importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part, None)
    while callable(getattr(value, "__wrapped__", None)):
        value = value.__wrapped__
    code = getattr(value, "__code__", None) or getattr(getattr(value, "fget", None), "__code__", None)
    return _digest(code) if code else ""
