"""Records what Dynamo makes of each frame; for a builder that proves entries.

PyTorch's own serialisation of guards pickles objects of the program, and refuses guards that compare
identities. Here each guard is recorded with words for its object, see `guard_words`.
"""

from __future__ import annotations

import contextlib
import itertools
import pickle
import secrets
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ....graphs.code import user_kernels
from ....graphs.keys import graph_nodes
from ....graphs.operators import RegisteredFunctions
from ....graphs.released import comparison
from ....hooks import counters, imports
from .. import eager, stored
from ..arguments import FrameCall
from ..describe import ambient, failed
from ..describe.backends import describe_backend
from ..describe.groups import groups_of_job
from ..guards import pickles
from ..guards.pickles import recording_settings
from ..guards.spoken import line_of
from ..modules import compiled_modules
from ..names import BYPASS, GRAPH, INSTALL, OPTIMIZER, PART, SERIALIZE
from ..stored import FrameFacts, FramesFile, RecordedFrame, Skip
from .bundled_graphs import BundledGraphs
from .graph_facts import check_kernels, held_tensors, note_code, note_extent, note_graph
from .package import FramePackage
from .reads_hooks import ReadsHooks
from .restored_graphs import RestoredGraphs
from .sources import compiled_graphs, drop_texts, make_lean
from .traced_reads import TracedReads

_BITS = 60
_ERRORS_OF_RECORDING = ("PackageError", "InternalTorchDynamoError", "AssertionError")
"""Names of errors with which Dynamo may end a trace because it is recorded."""


class Recorder:
    """Records frames from its construction on. ``refused``: why frames were not recorded, by function."""

    def __init__(self, registered: RegisteredFunctions, *, serving: bool = False) -> None:
        """``registered``: the functions that libraries registered for their operators. ``serving``: this
        process is a service, which records what it found in its entry and changes no setting for that."""
        self.refused: dict[str, str] = {}
        self.seconds = 0.0
        """What was spent here beside PyTorch's own work."""
        self.saved = 0
        """How many frames are in the files that were written."""
        self._registered = registered
        self.serving = serving
        self._graphs = RestoredGraphs() if serving else BundledGraphs()
        self._observer = counters.Observer()
        self._frames: list[tuple[str, RecordedFrame]] = []
        """The frames, each with the name of its function."""
        self._eager: dict[str, eager.EagerGraph] = {}
        """The graphs as Dynamo made them, by name."""
        self._now: list[FramePackage] = []
        """The packages of the frames that are traced now, the innermost last."""
        self._reads = ReadsHooks()
        self._number = secrets.randbits(_BITS)
        """Where this process begins to count the globals that Dynamo makes. A service counts from 0. Dynamo
        asserts that a name that it makes is not there yet."""
        self._counts = False
        """Whether Dynamo counts from ``_number``."""
        self._settings: dict[str, str] = {}
        self._modules: dict[str, str] = {}
        """Global names that Dynamo installed for modules, by name."""

    def is_clean(self) -> bool:
        """Return whether nothing was compiled or tuned since the recording began."""
        return self._observer.snapshot().clean

    def install_hooks(self) -> None:
        """Put the hooks in place that only a recording needs."""
        self._reads.install()
        SERIALIZE.install(self._serialize)
        INSTALL.install(self._install)
        GRAPH.install(self._graph)
        OPTIMIZER.install(self._optimizer)
        PART.install(self._part)
        BYPASS.install(self._bypass)
        self._graphs.install_hooks()

    def refuse(self, frame_call: FrameCall) -> None:
        """Note that a frame is not recorded because another backend than Inductor's compiles it."""
        compiler = getattr(frame_call.compiler, "__qualname__", type(frame_call.compiler).__qualname__)
        self.refused[frame_call.name] = f"{compiler} compiles it, not Inductor's backend itself"

    def trace(self, call: imports.Call, frame_call: FrameCall, backend: Any) -> Any:
        """Let Dynamo trace the frame, record it, and return Dynamo's result."""
        from torch._dynamo.package import SerializedCode

        try:
            described = describe_backend(backend, frame_call)
            groups = groups_of_job()
            self._graphs.prepare()
            self._count_globals()
        except TypeError as error:
            self.refused[frame_call.name] = str(error)
            return call()
        code = SerializedCode.from_code_object(frame_call.code)
        frame = RecordedFrame(code, described, FrameFacts(self._settings_now(backend), groups))
        package = FramePackage(frame, self._modules)
        before = {*frame_call.globals}
        reads = self._reads.begin(frame_call.code, frame_call.globals)
        call.kwargs = {**call.kwargs, "package": package}
        self._now.append(package)
        is_doubtful = False
        try:
            with recording_settings(), self._graphs.tracing():
                answer = call()
        except Exception as error:
            line = line_of(getattr(error, "real_stack", None))
            self.refused[frame_call.name] = f"Dynamo does not compile it{line}: {_first_line(error)}"
            self._keep_skipped(frame_call, package, reads, error)
            # Without graph breaks each error ends the program, also one that recording caused.
            is_doubtful = frame_call.one_graph or type(error).__name__ in _ERRORS_OF_RECORDING
            if not (self.serving and is_doubtful):
                raise
        finally:
            self._now.pop()
            self._reads.end()
        if is_doubtful:
            call.kwargs = {name: value for name, value in call.kwargs.items() if name != "package"}
            return call.again()
        added = {name: value for name, value in frame_call.globals.items() if name not in before}
        with self._spending():
            package.check_globals(added)
            package.note_reads(reads)
            self._keep(frame_call.name, package, answer)
        return answer

    @contextlib.contextmanager
    def _spending(self) -> Iterator[None]:
        """Count what the block needs."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - begin

    def _settings_now(self, backend: Any) -> dict[str, str]:
        """Return the settings of this process. Equal ones are one object, which a pickle holds once."""
        settings = ambient.settings(backend.config)
        if settings != self._settings:
            self._settings = settings
        return self._settings

    def _count_globals(self) -> None:
        """Have Dynamo count the globals that it makes from a number that no other process begins with. Raise
        ``TypeError`` where its counter is not known."""
        from torch._dynamo import bytecode_transformation

        if not self._counts:
            if not isinstance(getattr(bytecode_transformation, "_unique_id_counter", None), itertools.count):
                raise TypeError("the names of Dynamo's globals are made in another way on this torch")
            setattr(bytecode_transformation, "_unique_id_counter", itertools.count(self._number))  # noqa: B010
            self._counts = True

    def save(self, folder: Path) -> str:
        """Write what was recorded so far into ``folder``; return the file's name, empty if there is none.

        A service writes each frame once: a later file has what was recorded since.
        """
        with self._spending():
            return self._save(folder)

    def _save(self, folder: Path) -> str:
        frames = self._frames
        if self.serving:
            self._frames = []
        kept: list[RecordedFrame] = []
        graphs: dict[str, bytes] = {}
        names = (graph for _, frame in frames for graph in frame.compiled())
        results = {graph: self._graphs.result(graph) for graph in names}
        for name, frame in frames:
            own = frame.compiled()
            if any(results[graph] is None for graph in own):
                self.refused[name] = self._graphs.why_not_kept()
                continue
            compiled = [one for graph in own for one in compiled_graphs(results[graph])]
            if why := note_code(frame, "\n".join(one.source_code for one in compiled), self._registered):
                self.refused[name] = why
                continue
            kept.append(frame)
            graphs |= {graph: _pickled(results[graph]) for graph in own}
        if not any(frame.output.bytecode for frame in kept):
            return ""  # a frame that only skips saves nothing by itself
        unseen = eager.EagerGraph(refused="it was not seen while it was compiled")
        kept_eager = {name: self._eager.get(name, unseen) for name in graphs}
        for name in results if self.serving else ():
            self._graphs.forget(name)
            self._eager.pop(name, None)
        # After the graphs are pickled their texts are lean.
        texts = [one.source_code for name in graphs for one in compiled_graphs(results[name])]
        modules = compiled_modules(texts)
        judged = comparison.judged(alike=self.serving)
        content = FramesFile(kept, graphs, kept_eager, _sources(), judged, modules)
        self.saved += len(kept)
        return stored.write(folder, content)

    def _keep(self, name: str, package: FramePackage, answer: Any) -> None:
        frame = package.frame
        if answer.guarded_code is None:
            strategy = answer.frame_exec_strategy
            frame.skip = Skip(strategy.cur_action.name, strategy.recursive_action.name, answer.apply_to_code)
        try:
            pickle.dumps(frame, protocol=4)
        except Exception as error:  # noqa: BLE001 - a constant of the bytecode, an object of the program
            package.refused = package.refused or f"its code holds an object: {_first_line(error)}"
        if package.refused:
            self.refused[name] = package.refused
        elif frame.output.bytecode is not None or frame.skip is not None:
            self._frames.append((name, frame))

    def _keep_skipped(
        self, call: FrameCall, package: FramePackage, reads: TracedReads, error: Exception
    ) -> None:
        """Keep that Dynamo skips a function, so that a start does not trace it for that."""
        facts = package.frame.facts
        frame = RecordedFrame(
            package.frame.code, package.frame.backend, FrameFacts(facts.settings, facts.groups)
        )
        skipped = FramePackage(frame, {})
        with self._spending():
            try:
                frame.skip = failed.skip_of(error, call)
                frame.facts.form = failed.form_of(call)
                skipped.note_reads(reads)
            except Exception:  # noqa: BLE001 - a torch whose internals differ, or an argument without words
                return
        if frame.skip is not None and not skipped.refused:
            del self.refused[call.name]
            self._frames.append((call.name, frame))

    def _serialize(self, call: imports.Call) -> Any:
        """Write the guards of a frame in the place of PyTorch's own record of them."""
        manager, builder, guards, output_graph = call.args[:4]
        if not self._now:
            return call()
        package = self._now[-1]
        with self._spending():
            return self._guards_of(package, manager, builder, guards, output_graph)

    def _guards_of(
        self, package: FramePackage, manager: Any, builder: Any, guards: Any, output_graph: Any
    ) -> bytes:
        try:
            kept, package.frame.without_hooks = pickles.split_hooks(guards)
            package.note_guards(builder, guards, output_graph)
            self._reads.check_identities(builder, kept)
            check_kernels(package.kernels, builder, kept)
            reads = self._reads.now()
            unguarded = reads.unguarded(builder)
            return pickles.write(
                manager, builder, kept, output_graph, sets_read=reads.sets, unguarded=unguarded
            )
        except Exception as error:  # noqa: BLE001 - the frame is compiled all the same, and not recorded
            package.refused = f"a guard cannot be recorded: {_first_line(error)}"
            return b""

    def _graph(self, call: imports.Call) -> Any:
        """Keep a graph for the canary, record what it calls, and refuse one with code that no guard sees."""
        graph = call.args[0] if call.args else call.kwargs.get("model_")
        if self._now and hasattr(graph, "graph"):
            package, name = self._now[-1], getattr(graph, "_backend_id", None)
            if name is not None and name not in self._eager:
                # ``compile_fx`` calls itself with the same graph, which it may have changed.
                self._eager[name] = eager.keep(graph)
                note_extent(package.frame, graph)
            if name is not None:
                self._graphs.begin(graph, name)
                if tensors := held_tensors(graph):
                    package.note_tensors(name, tensors)
            has_names = name in package.frame.output.tensors
            why = note_graph(package.frame, graph, self._registered, has_names=has_names)
            package.refused = why or package.refused
            package.kernels += user_kernels.launched_kernels(graph_nodes(graph))
        return call()

    def _optimizer(self, call: imports.Call) -> Any:
        """Note an optimizer whose ``_init_group`` Dynamo is about to run."""
        arguments, variable = call(), call.args[0]
        if self._now:
            self._now[-1].note_optimizer(variable.source.name, variable.value, arguments)
        return arguments

    def _part(self, call: imports.Call) -> Any:
        """Name a part of a split graph, as Dynamo names a whole one."""
        if self._now:
            graph, name = call.argument("input_mod"), self._now[-1].note_part(call.args[0].module)
            graph._backend_id = name
            self._graphs.begin_part(graph, name)
        return call()

    def _bypass(self, call: imports.Call) -> Any:
        """Have Dynamo go on with the package where a graph has parameters; `_graph` decides."""
        of_parameters = str(call.argument("reason")).startswith("Graph contains named parameters")
        return None if self._now and of_parameters else call()

    def _install(self, call: imports.Call) -> Any:
        output, prefix, value = (call.argument(name) for name in ("self", "prefix", "value"))
        name = call.original(output, f"{prefix}_{self._number}", value)
        if isinstance(value, types.ModuleType):
            self._modules[name] = value.__name__
        return name


def _sources() -> bytes:
    """Return the hash of PyTorch's sources, by which it names Triton kernels; empty where it has none."""
    from torch._inductor import codecache

    key = codecache.torch_key() if hasattr(codecache, "torch_key") else b""
    return key if isinstance(key, bytes) else b""


def _pickled(result: Any) -> bytes:
    """Return a result of AOTAutograd as bytes, without what a start does not use."""
    drop_texts(result)
    for graph in compiled_graphs(result):
        make_lean(graph)
    return pickle.dumps(result, protocol=4)


def _first_line(error: object) -> str:
    return " ".join(str(error).split())[:200]
