"""Replays a recorded frame in the place of a trace of Dynamo's.

First everything is compared that decides whether the record is of this frame: the code, the backend, the
settings of the process, and all code that was traced. Then all recorded guards must hold (`guards`). So no
guard is lost, and Dynamo checks them before each later call.
"""

from __future__ import annotations

import logging
import os
import time
import types
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ....graphs import operators
from ....graphs.operators import RegisteredFunctions
from ....graphs.released import signatures
from ...kind import Comparison
from .. import gpu_libraries, stored
from ..arguments import FrameCall
from ..deferred import read_graph, sources_of_builder
from ..describe import ambient, failed
from ..describe.backends import changed_backend, changed_setting, describe_backend
from ..describe.groups import changed_group, groups_of_job, is_of_another_rank
from ..describe.objects import changed
from ..describe.reads import changed_read
from ..eager import EagerGraph, deferred_function_of, function_of
from ..guards.live import Differs, live_guards, tensors_of
from ..guards.optimizers import bound
from ..modules import loaded_from
from ..split import joined
from ..stored import Backend, FramesFile, RecordedFrame

_log = logging.getLogger("cachesvc")
_IN_THIS_PROCESS = {"compile_threads": 1}
"""Settings with which Inductor loads a recorded graph. With more threads it first starts a pool of compile
workers, for which it hashes the sources of torch. Nothing is left for them to compile."""


class FrameReplayer:
    """Holds the frames of the files that this process may use.

    Attributes:
        used: The names of the files of which a frame was given, each once.
        given: How many frames were given.
        reasons: Why frames of the same code did not fit: text -> how often.
        seconds: What comparing and giving took.
    """

    def __init__(
        self, registered: RegisteredFunctions, comparison: Callable[[str], Comparison | None]
    ) -> None:
        """``registered``: the functions that libraries registered for their operators. ``comparison`` returns
        what the canary does with the graphs of the file of a name."""
        self._registered = registered
        self._comparison = comparison
        self.used: dict[str, None] = {}
        self.given = 0
        self.reasons: Counter[str] = Counter()
        self.seconds = 0.0
        self._files: dict[Path, _File | None] = {}
        """What was accepted; ``None`` until it is read."""

    def accept(self, path: Path) -> None:
        """Allow the frames of a file to be given. Reads nothing yet: that needs torch."""
        self._files.setdefault(path, None)

    @property
    def names(self) -> list[str]:
        """Return the names of the files whose frames may be given."""
        return [path.name for path in self._files]

    def refuse(self, names: Collection[str]) -> None:
        """Give no frame any more of the files with these names, and forget that any was given."""
        self._files = {path: file for path, file in self._files.items() if path.name not in names}
        self.used = {name: None for name in self.used if name not in names}

    def replay(self, call: FrameCall, backend: Any) -> Any:
        """Return Dynamo's result for the frame, or ``None`` if no record fits. Never raises."""
        begin = time.perf_counter()
        differences: list[str] = []
        of_another_rank = has_frames = False
        try:
            here: _Here | None = None
            for path, file in self._read().items():
                for frame in file.of(call.code):
                    has_frames = True
                    match = _Match(frame, file, self._comparison(path.name))
                    try:
                        here = here or _here(call, backend)
                        if is_of_another_rank(frame.facts.groups, here.groups):
                            of_another_rank = True
                            continue
                        answer = self._replay(match, call, backend, here)
                    except Differs as differs:
                        differences.append(f"{call.name}: {differs}")
                        continue
                    self.used[path.name] = None
                    self.given += 1
                    return answer
            if of_another_rank and not differences:
                differences.append(f"{call.name}: recorded by other ranks of the job alone")
            if not has_frames:
                differences.append(f"{call.name}: {self._why_absent(call.code)}")
        except Exception as error:  # noqa: BLE001 - a torch whose internals differ, or a file that is none
            differences.append(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
            _log.debug("recorded frames are of no use here", exc_info=True)
        finally:
            self.seconds += time.perf_counter() - begin
        self.reasons.update(differences)
        return None

    def _why_absent(self, code: types.CodeType) -> str:
        """Return why no file has a frame of a function."""
        if any(file.has_namesake(code) for file in self._files.values() if file is not None):
            return "other code, or other lines, than its frames were recorded of"
        return "no frame of it was recorded"

    def _read(self) -> Mapping[Path, _File]:
        """Return the files, which are read when they are first needed."""
        for path, file in list(self._files.items()):
            if file is None:
                try:
                    content = stored.read(path)
                    signatures.learn(content.as_released)
                    self._files[path] = _File(content)
                except Exception as error:  # noqa: BLE001 - damaged bytes raise anything
                    del self._files[path]
                    self.reasons[f"{path.name}: {type(error).__name__}: {error}"[:200]] += 1
        return {path: file for path, file in self._files.items() if file is not None}

    def _replay(self, match: _Match, call: FrameCall, backend: Any, here: _Here) -> Any:
        """Return Dynamo's result. Raises ``Differs``."""
        from torch._dynamo.types import GuardedCode, wrap_guarded_code

        frame = match.frame
        if why := changed_group(frame.facts.groups, here.groups):
            raise Differs(why)
        if why := changed_backend(frame, here.backend):
            raise Differs(why)
        if names := changed_setting(frame, here.settings):
            raise Differs(f"other settings: {names}")
        if name := changed(frame.facts.traced):
            raise Differs(f"{name} is other code")
        if why := changed_read(frame.facts.reads):
            raise Differs(why)
        if why := _changed_operator(frame, self._registered):
            raise Differs(why)
        if frame.facts.form and (failed.raises_at_breaks(call) or frame.facts.form != failed.form_of(call)):
            raise Differs("Dynamo could not trace it with arguments of another form")
        if frame.skip is not None:
            return _skip(frame)
        required = match.comparison is not None and match.comparison.required
        if required and (reason := match.file.not_comparable(frame)):
            raise Differs(f"a canary runs, and cannot compare a graph: {reason}")
        _log_structured(call.name)
        with gpu_libraries.started(frame.output.libraries):
            manager = live_guards(frame, call)
        _install_functions(match, call, backend.config)
        code = _code(frame.output.bytecode)
        match.file.note(code, call.code)
        return wrap_guarded_code(GuardedCode(code, manager, call.compile_id, "recorded frame"))


class _File:
    """The frames and the graphs of one file."""

    def __init__(self, content: FramesFile) -> None:
        self._frames = [(_code(frame.code), frame) for frame in content.frames]
        self._content = content
        self._installed: set[tuple[int, str]] = set()
        """The graphs that were installed since the last reset: the ``id`` of the globals, and the name."""
        self._last: types.CodeType | None = None
        """The code that was replayed last."""

    def of(self, code: types.CodeType) -> list[RecordedFrame]:
        """Return the frames of a function."""
        return [frame for known, frame in self._frames if known == code]

    def has_namesake(self, code: types.CodeType) -> bool:
        """Return whether there are frames of a function with the same name in a file of the same name."""
        return any(_place(known) == _place(code) for known, _ in self._frames)

    def note(self, code: types.CodeType, original: types.CodeType) -> None:
        """Tell Dynamo that it made a code object, so that it does not trace it."""
        from torch._dynamo import convert_frame
        from torch._dynamo.utils import orig_code_map

        convert_frame.output_codes.add(code)
        orig_code_map[code] = original
        self._last = code

    def to_install(self, scope: Mapping[str, Any], names: Collection[str]) -> list[str]:
        """Return which graphs of a frame are to be loaded, and count them as installed.

        A graph that was installed before stays: a frame of the same record, of another object, uses it. After
        ``torch._dynamo.reset()`` each is loaded anew, because CUDA graphs end with a reset.
        """
        from torch._dynamo import convert_frame

        if self._last is not None and self._last not in convert_frame.output_codes:
            self._installed.clear()
        new = [name for name in names if name not in scope or (id(scope), name) not in self._installed]
        self._installed.update((id(scope), name) for name in new)
        return new

    def function(self, name: str, frame: RecordedFrame, comparison: Comparison | None) -> Any:
        """Return what the bytecode of a frame calls under the name of a graph."""
        import torch

        if (parts := frame.splits.get(name)) is None:
            compiled = self._graph(name, comparison)
        else:
            graphs = {part.graph: self._graph(part.graph, comparison) for part in parts.parts}
            compiled = joined(parts, graphs)
        return torch._dynamo.disable(_as_plain(compiled) if name in frame.output.as_plain else compiled)

    def _graph(self, name: str, comparison: Comparison | None) -> Any:
        """Return a compiled graph."""
        with sources_of_builder(self._content.sources), loaded_from(self._content.compiled):
            compiled = read_graph(self._content.graphs[name]).after_deserialization()
        if comparison is not None:
            compiled = _watched(comparison, self._content.eager[name], compiled)
        return compiled

    def not_comparable(self, frame: RecordedFrame) -> str:
        """Return why the canary cannot compare a graph of the frame, or an empty text."""
        return next((why for name in frame.compiled() if (why := self._content.eager[name].refused)), "")


def _watched(comparison: Comparison, eager: EagerGraph, compiled: Any) -> Any:
    """Return a compiled graph with its first output compared. Raise only where the comparison is required."""
    if comparison.required:
        return comparison.watch(function_of(eager), compiled)
    reason = eager.refused
    if not reason:
        try:
            return comparison.watch(deferred_function_of(eager), compiled)
        except Exception as error:  # noqa: BLE001 - a canary that fails is no reason to trace
            reason = f"{type(error).__name__}: {error}"
    comparison.skipped(reason)
    return compiled


class _Match(NamedTuple):
    """A recorded frame of the code that Dynamo asks for. ``comparison``: what the canary does with its
    graphs."""

    frame: RecordedFrame
    file: _File
    comparison: Comparison | None


class _Here(NamedTuple):
    """What a record is compared with, once for all records: the backend, the settings of this process, and
    its process groups."""

    backend: Backend
    settings: Mapping[str, str]
    groups: Mapping[str, str]


def _here(call: FrameCall, backend: Any) -> _Here:
    """Return the facts of this process. Raises ``Differs`` where one has no words."""
    try:
        described = describe_backend(backend, call)
        return _Here(described, ambient.settings(backend.config), groups_of_job())
    except TypeError as error:
        raise Differs(str(error)) from None


def _code(serialized: Any) -> types.CodeType:
    from torch._dynamo.package import SerializedCode

    code: types.CodeType = SerializedCode.to_code_object(serialized)
    return code


def _place(code: types.CodeType) -> tuple[str, str]:
    return code.co_name, os.path.basename(code.co_filename)


def _changed_operator(frame: RecordedFrame, registered: RegisteredFunctions) -> str:
    """Return in words the first operator of a record that is another one here; else an empty text."""
    for name, recorded in frame.facts.operators.items():
        try:
            now = operators.describe_operator(name, registered)
        except LookupError as error:
            return str(error)
        if now != recorded:
            return f"operator {name} is other code"
    return ""


def _skip(frame: RecordedFrame) -> Any:
    """Return the result with which Dynamo runs a frame as it is."""
    from torch._dynamo.types import ConvertFrameReturn, FrameAction, FrameExecStrategy

    assert frame.skip is not None
    current, recursive, apply_to_code = frame.skip
    strategy = FrameExecStrategy(getattr(FrameAction, current), getattr(FrameAction, recursive))
    return ConvertFrameReturn(frame_exec_strategy=strategy, apply_to_code=apply_to_code)


def _log_structured(name: str) -> None:
    """Say in PyTorch's structured log (``TORCH_TRACE``) that a record is tried for this frame.

    Where nobody has asked for that log, PyTorch finds out at the first entry, and makes that entry all the
    same. The first one after this would be a text of all guards.
    """
    from torch._logging import trace_structured

    trace_structured(
        "artifact",
        metadata_fn=lambda: {"name": "cachesvc_recorded_frame", "encoding": "string"},
        payload_fn=lambda: name,
        expect_trace_id=False,
    )


def _install_functions(match: _Match, call: FrameCall, options: Mapping[str, Any]) -> None:
    """Put the compiled graphs, and the functions that go on after a graph break, into the frame's globals."""
    from torch._inductor import config

    frame = match.frame
    for name in match.file.to_install(call.globals, frame.output.graphs):
        with config.patch({**options, **_IN_THIS_PROCESS}):
            graph = match.file.function(name, frame, match.comparison)
            call.globals[name] = _with_tensors(graph, name, match.frame, call)
    for name, serialized in frame.output.resumes.items():
        if name not in call.globals:
            call.globals[name] = _resume_function(_code(serialized), name, call.globals)


def _with_tensors(graph: Any, name: str, frame: RecordedFrame, call: FrameCall) -> Any:
    """Return a graph with the tensors that it had in the builder, of this process."""
    tensors, owners = tensors_of(frame, name, call)
    return bound(graph, tensors, owners) if tensors else graph


def _as_plain(graph: Any) -> Any:
    """Return a graph that calls no ``__torch_function__``, as ``OutputGraph.compile_and_call_fx_graph`` does
    where Dynamo has traced that of a subclass (torch 2.13)."""
    import torch

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return graph(*args, **kwargs)

    return call


def _resume_function(code: types.CodeType, name: str, scope: dict[str, Any]) -> Any:
    """Return what Dynamo installs for a function that goes on after a graph break, as
    ``OutputGraph.install_resume_function_global`` does (torch 2.13)."""
    from torch._dynamo.eval_frame import skip_code

    if not code.co_freevars:
        return types.FunctionType(code, scope, name)

    def make(closure: tuple[types.CellType, ...]) -> types.FunctionType:
        return types.FunctionType(code, scope, name, None, closure)

    # The bytecode calls it under Dynamo, which would trace it.
    skip_code(make.__code__)
    return make
