"""Observe what this process compiles, for `cachesvc init`: who built it, with which options it is called.

`observe` waits for the program's own import of torch. It changes nothing of what the program computes: what
``torch.compile`` returns is torch's own object for a module, and a function with the same behaviour for a
function. A fault of the observation never reaches the program.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import json
import os
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from cachesvc_client.hooks.imports import when_imported

from ...spec.toml_table import MADE_BY
from .records import CallSeen, Candidate, CompiledSeen, CompileOptions
from .written_calls import NotPlain, written_call

VARIABLE = "CACHESVC_INIT_FOLDER"
"""Name of the variable that holds the folder into which each observed process writes its records."""
MAX_CALLS = 16
"""Number of different calls of one compiled callable that are recorded."""
_MAX_CANDIDATES = 6
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_STANDARD = os.path.dirname(os.__file__) + os.sep

_lock = threading.RLock()
_seen: dict[int, CompiledSeen] = {}
_kept: list[Any] = []
"""What was compiled: it must live as long as its number in `_seen`."""
_built: weakref.WeakKeyDictionary[Any, list[tuple[CodeType, Candidate]]] = weakref.WeakKeyDictionary()
"""What built each module, with the code of the function: a frame would keep the program's objects alive."""
_threads: list[int] = []


def observe() -> None:
    """Observe this process, if the variable names a folder; returns at once and imports nothing."""
    if os.environ.get(VARIABLE):
        when_imported("torch", _hook_torch)
        when_imported("torch._dynamo.eval_frame", _hook_calls)


def _hook_torch(torch: Any) -> None:
    _threads.append(torch.get_num_threads())
    _hook_modules(torch)
    compile_ = torch.compile

    @functools.wraps(compile_)
    def observed(model: Any = None, **options: Any) -> Any:
        if model is None:
            return lambda function: observed(function, **options)
        seen = None
        with contextlib.suppress(Exception):
            seen = _note_compile(model, options)
        compiled = compile_(model, **options)
        return compiled if seen is None or _is_module(model) else _recorded(compiled, model)

    torch.compile = observed


def _hook_modules(torch: Any) -> None:
    init = torch.nn.Module.__init__

    @functools.wraps(init)
    def observed(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        if torch.compiler.is_compiling():  # Dynamo traces this too: a slice of a ModuleList makes a module
            return
        with contextlib.suppress(Exception):
            _built[self] = list(_builders(self, sys._getframe(1)))

    torch.nn.Module.__init__ = observed


def _hook_calls(eval_frame: Any) -> None:
    """Record the calls of compiled modules. Functions are recorded by what ``torch.compile`` returns."""
    cls = eval_frame.OptimizedModule
    call = cls.__call__

    @functools.wraps(call)
    def observed(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not sys.modules["torch"].compiler.is_compiling():
            with contextlib.suppress(Exception):
                _note_call(self._orig_mod, args, kwargs)
        return call(self, *args, **kwargs)

    cls.__call__ = observed


def _recorded(compiled: Callable[..., Any], model: Any) -> Callable[..., Any]:
    @functools.wraps(compiled)
    def observed(*args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(Exception):
            _note_call(_subject(model), args, kwargs)
        return compiled(*args, **kwargs)

    return observed


def _subject(model: Any) -> Any:
    """Return the module of ``model.compile()``, which compiles a bound method of it, else ``model``."""
    owner = getattr(model, "__self__", None)
    return owner if _is_module(owner) and getattr(model, "__name__", "") == "_call_impl" else model


def _is_module(value: Any) -> bool:
    return isinstance(value, sys.modules["torch"].nn.Module)


def _note_compile(model: Any, options: dict[str, Any]) -> CompiledSeen:
    subject = _subject(model)
    frames = list(_frames(sys._getframe(2)))
    user = next((frame for frame in frames if not _is_library(frame)), None)
    seen = CompiledSeen(
        what=f"{type(subject).__module__}.{type(subject).__qualname__}"
        if _is_module(subject)
        else f"{getattr(subject, '__module__', '')}.{getattr(subject, '__qualname__', subject)}",
        is_module=_is_module(subject),
        where=f"{os.path.basename(user.f_code.co_filename)}:{user.f_lineno}" if user else "",
        compile=CompileOptions(
            options.get("mode") or "", options.get("dynamic"), bool(options.get("fullgraph", False))
        ),
        threads=_threads[0],
    )
    chosen = options.get("options") or {}
    if _as_json(chosen) is None:
        seen.problems.append("its options hold a value that TOML has no form for")
    else:
        seen.compile.options = dict(chosen)
    if options.get("backend", "inductor") != "inductor":
        seen.problems.append(f"its backend is {options['backend']!r}, and warm compiles with inductor")
    with _lock:
        if seen.is_module:
            # What still runs has not returned the model: it is the service, or compiles the model itself.
            running = [frame.f_code for frame in frames]
            seen.candidates = [one for code, one in _built.get(subject, []) if code not in running]
        _seen[id(subject)] = seen
        _kept.append(subject)
    _write()
    return seen


def _note_call(subject: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Record a call if no equal one is; a call inside of a compiled function is part of that function."""
    torch = sys.modules["torch"]
    seen = _seen.get(id(subject))
    if seen is None or torch.compiler.is_compiling() or len(seen.calls) >= MAX_CALLS:
        return
    call = CallSeen([], {}, threads=torch.get_num_threads())
    call.args = [_argument(item, call.problems) for item in args]
    call.kwargs = {key: _argument(item, call.problems) for key, item in kwargs.items() if item is not None}
    if torch.is_inference_mode_enabled():
        call.grad = "inference_mode"
    elif not torch.is_grad_enabled():
        call.grad = "no_grad"
    call.training = bool(seen.is_module and subject.training and call.grad == "grad")
    with _lock:
        if not seen.calls and seen.is_module:
            _describe(seen, subject)
        device = seen.module.device.partition(":")[0] or "cpu"
        if torch.is_autocast_enabled(device):
            call.autocast = str(torch.get_autocast_dtype(device)).removeprefix("torch.")
        if any(_key(call) == _key(other) for other in seen.calls):
            return
        seen.calls.append(call)
    _write()


def _describe(seen: CompiledSeen, module: Any) -> None:
    from cachesvc_client.environment.model_hash import model_hash

    seen.module.digest = str(model_hash(module) or "")
    tensors = [*module.parameters(), *module.buffers()]
    dtypes = {str(item.dtype).removeprefix("torch.") for item in tensors if item.is_floating_point()}
    seen.module.dtype = dtypes.pop() if len(dtypes) == 1 else ""
    devices = {str(item.device) for item in tensors}
    seen.module.device = devices.pop() if len(devices) == 1 else ""


def _key(call: CallSeen) -> str:
    """Return what distinguishes calls: values of integer tensors do not."""

    def shapes(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: item for key, item in value.items() if key not in ("low", "high", "fill")}
        return [shapes(item) for item in value] if isinstance(value, list) else value

    how = [call.grad, call.autocast, call.training, call.threads]
    return repr([shapes(call.args), {key: shapes(item) for key, item in call.kwargs.items()}, how])


def _argument(value: Any, problems: list[str]) -> Any:
    """Return an argument as a spec writes it; what it cannot write becomes a problem."""
    torch = sys.modules["torch"]
    if isinstance(value, torch.Tensor):
        return _tensor(value, problems)
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_argument(item, problems) for item in value]
    problems.append(f"an argument is a {type(value).__name__}: give a function that makes the inputs")
    return None


def _tensor(tensor: Any, problems: list[str]) -> dict[str, Any]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    form: dict[str, Any] = {"shape": list(tensor.shape), "dtype": dtype}
    marked = {
        *getattr(tensor, "_dynamo_dynamic_indices", ()),
        *getattr(tensor, "_dynamo_weak_dynamic_indices", ()),
    }
    form |= {"dynamic": sorted(marked)} if marked else {}
    if not tensor.is_contiguous():
        problems.append(f"a {dtype} tensor of shape {list(tensor.shape)} is not contiguous")
    if tensor.requires_grad:
        problems.append(f"an input of shape {list(tensor.shape)} asks for a gradient")
    if tensor.is_floating_point() or tensor.is_complex() or not tensor.numel():
        return form
    low, high = int(tensor.min()), int(tensor.max())
    if low == high and high in (0, 1):
        form["fill"] = "ones" if high else "zeros"
    elif dtype != "bool":
        # A bound that holds for the values seen; text and images have many values, so some room is left.
        form |= {"high": max(high + 1, 2)} | ({"low": low} if low < 0 else {})
    return form


def _builders(module: Any, frame: FrameType) -> Iterator[tuple[CodeType, Candidate]]:
    """Yield what built a module: functions from the inner ones outwards, the library's function that the
    program called, at last its class."""
    own: tuple[CodeType, Candidate] | None = None
    called: tuple[CodeType, Candidate] | None = None
    inner: FrameType | None = None
    count = 0
    for one in _frames(frame):
        code = one.f_code
        if inner is not None and _is_library(inner) and not _is_library(one):
            called = called or _called(one, inner)
        if code.co_name == "<module>" or count == _MAX_CANDIDATES:
            break
        if code.co_name == "__init__" and one.f_locals.get("self") is module:
            own = code, _candidate(one, type(module).__qualname__, type(module).__module__)
        elif "." not in code.co_qualname and not code.co_name.startswith("<") and not _is_library(one):
            count += 1
            yield code, _candidate(one, code.co_name, str(one.f_globals.get("__name__", "")))
        inner = one
    yield from (one for one in (called, own) if one is not None)


def _called(program: FrameType, library: FrameType) -> tuple[CodeType, Candidate] | None:
    """Return the function of a library that a line of the program called, as the line is written."""
    try:
        call = written_call(program, library.f_code)
    except NotPlain:
        return None
    if call is None:
        return None
    module, name, values = call
    candidate = Candidate(module, name, getattr(sys.modules.get(module), "__file__", "") or "")
    _add_arguments(candidate, values)
    return library.f_code, candidate


def _candidate(frame: FrameType, name: str, module: str) -> Candidate:
    code = frame.f_code
    file = getattr(sys.modules.get(module), "__file__", "") or code.co_filename
    candidate = Candidate(module, name, file)
    if "<locals>" in name:
        candidate.problem = f"{name} is defined inside of a function"
        return candidate
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    values = {key: frame.f_locals[key] for key in names if key != "self" and key in frame.f_locals}
    if code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        candidate.problem = f"{name} takes *args or **kwargs"
    _add_arguments(candidate, values)
    return candidate


def _add_arguments(candidate: Candidate, values: dict[str, Any]) -> None:
    """Add a candidate's arguments as a spec writes them, or the problem of one that it cannot write."""
    for key, value in values.items():
        if value is None:
            continue
        written = _written(value)
        if written is None:
            candidate.problem = f"{candidate.name} has the argument {key}, a {type(value).__name__}"
        candidate.args[key] = written


def _written(value: Any) -> Any:
    """Return an argument as a spec writes it; ``None`` for what it has no form for.

    A configuration is a call of its class: a dataclass with its fields, one of Hugging Face with what differs
    from its default. A dtype or device is its name: the proof of the factory shows whether it is accepted.
    """
    torch = sys.modules["torch"]
    left_out = ("transformers_version", "model_type")
    if isinstance(value, (torch.dtype, torch.device)):
        return str(value).removeprefix("torch.")
    if isinstance(value, type) or "<locals>" in type(value).__qualname__:
        return None
    fields: dict[str, Any] | None = None
    if dataclasses.is_dataclass(value):
        fields = {one.name: getattr(value, one.name) for one in dataclasses.fields(value) if one.init}
    if callable(getattr(value, "to_diff_dict", None)):
        fields = value.to_diff_dict()
    if fields is None:
        return _as_json(value)
    made = {key: _written(item) for key, item in fields.items() if item is not None and key not in left_out}
    if any(item is None for item in made.values()):
        return None
    return {MADE_BY: f"{type(value).__module__}:{type(value).__qualname__}", **made}


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_library(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return (
        _INSTALLED.search(name) is not None
        or name.startswith((_STANDARD, "<"))
        or frame.f_globals.get("__name__") == __name__
    )


def _as_json(value: Any) -> Any:
    """Return a value as JSON gives it back, ``None`` for what JSON has no form for."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError):
        return None


def _write() -> None:
    """Write what was seen so far, whole: the program may be ended by a signal at any moment."""
    folder = Path(os.environ[VARIABLE])
    partial = folder / f"{os.getpid()}.partial"
    with _lock:
        records = [dataclasses.asdict(seen) for seen in _seen.values()]
    partial.write_text(json.dumps(records))
    partial.rename(folder / f"{os.getpid()}.json")
