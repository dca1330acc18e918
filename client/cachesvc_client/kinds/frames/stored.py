"""Defines what a file of the kind holds: recorded frames, the compiled graphs that they call, and what the
canary compares these with.

A frame is what Dynamo compiles at once: a Python function, up to a graph break. The bytes are pickles of
PyTorch's and of this module's classes, so they may be read only from a verified revision. The file's name is
the digest of its bytes, and a file of another content is not read.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .eager import EagerGraph
from .gpu_libraries import LibraryCall
from .rules import SUFFIX

if TYPE_CHECKING:
    from .split import SplitGraph

FORMAT = 15
"""The number of the format. A file of another format is not read."""


class TracedFunction(NamedTuple):
    """A function that was traced: its place, and the digest of its code.

    ``name`` is empty for code that no module has under a name: then ``digest`` is that of the module's file.
    """

    module: str
    name: str
    digest: str


class Read(NamedTuple):
    """A call whose answer became a constant: the function, by name, and the arguments."""

    module: str
    name: str
    arguments: tuple[Any, ...]


class Reads(NamedTuple):
    """What a trace read that no guard compares.

    Attributes:
        names: ``module:name`` of functions and classes -> what the name resolves to, in words.
        environment: Variables of the environment -> the digests of their values.
        answers: Calls -> their answers, as text.
        instances: Pairs of classes, as ``module:name`` -> whether the first is a subclass of the second,
            which decides that by itself.
    """

    names: Mapping[str, str] = {}
    environment: Mapping[str, str] = {}
    answers: Mapping[Read, str] = {}
    instances: Mapping[tuple[str, str], bool] = {}


class Skip(NamedTuple):
    """Says that Dynamo runs a frame as it is, and for which frames it decided that: names of
    ``torch._dynamo.types.FrameAction`` for this frame and for those that it calls."""

    current: str
    recursive: str
    apply_to_code: bool


class OptimizerStart(NamedTuple):
    """An optimizer whose ``_init_group`` Dynamo ran while it traced, see `guards.optimizers`.

    Attributes:
        before: What it was before, in words.
        calls: The arguments of each call, positional and named, and whether gradients were recorded.
    """

    before: str
    calls: tuple[tuple[tuple[Any, ...], Mapping[str, Any], bool], ...]


@dataclass(slots=True)
class FrameFacts:
    """What must be the same in a service, besides the code and the guards of a frame.

    Attributes:
        settings: The settings of the process, see `ambient.settings`.
        groups: The process groups that the process had, see `groups.groups_of_job`.
        traced: The functions that were traced.
        reads: What a trace read that no guard compares, see `record.traced_reads`.
        operators: The operators that the graphs call and that PyTorch does not define -> what a trace takes
            from each, see `graphs.operators.describe_operator`.
        classes: Classes that the bytecode or a guard reads as a global, as ``module:name`` -> their digests.
        form: The form of the arguments of a function that Dynamo could not trace, see `describe.failed`.
        markings: Names of tensors in guards -> the attributes by which a program marked their sizes.
        optimizers: Names of optimizers in guards -> what the trace did with each.
        weak: Global names of weak references -> names of the optimizers that these refer to.
    """

    settings: dict[str, str] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)
    traced: tuple[TracedFunction, ...] = ()
    reads: Reads = field(default_factory=lambda: Reads())
    operators: dict[str, str] = field(default_factory=dict)
    classes: dict[str, str] = field(default_factory=dict)
    form: str = ""
    markings: dict[str, dict[str, Any]] = field(default_factory=dict)
    optimizers: dict[str, OptimizerStart] = field(default_factory=dict)
    weak: dict[str, str] = field(default_factory=dict)


class Backend(NamedTuple):
    """What compiles the graphs of a frame.

    Attributes:
        options: Mode and options, in words.
        dynamic: The argument of ``torch.compile``.
        fullgraph: The argument of ``torch.compile``.
        split: How Dynamo splits the graphs for ``DistributedDataParallel``, in words; empty if it does not.
    """

    options: str
    dynamic: bool | None
    fullgraph: bool
    split: str = ""


@dataclass(slots=True)
class FrameOutput:
    """What Dynamo made of a frame, and the globals that this reads.

    Attributes:
        bytecode: What Dynamo made of the code; ``None`` for a frame that it skips.
        builtins: The global name under which Dynamo keeps the builtins; empty if it keeps none.
        modules: Global names that Dynamo added -> modules, and classes as ``module:name``.
        resumes: Global names of the functions that go on after a graph break -> their code.
        graphs: The names of the compiled graphs that the bytecode calls.
        as_plain: The names of the graphs that Dynamo calls without ``__torch_function__`` of subclasses of
            tensors, which it has traced.
        tensors: Names of graphs -> names of the tensors that each has itself, which are its first inputs.
        libraries: What the graphs call of the GPU's libraries.
        without_breaks: Whether one graph has all of the frame.
        of_fixed_sizes: Whether no size in a graph is a variable.
    """

    bytecode: Any = None
    builtins: str = ""
    modules: dict[str, str] = field(default_factory=dict)
    resumes: dict[str, Any] = field(default_factory=dict)
    graphs: tuple[str, ...] = ()
    as_plain: tuple[str, ...] = ()
    tensors: dict[str, tuple[str, ...]] = field(default_factory=dict)
    libraries: tuple[LibraryCall, ...] = ()
    without_breaks: bool = False
    of_fixed_sizes: bool = False


@dataclass(slots=True)
class RecordedFrame:
    """One frame as Dynamo made it.

    Attributes:
        code: The function's code, as a ``SerializedCode`` of PyTorch's.
        backend: What compiles the graphs: a frame serves for the same backend alone, see `describe.backends`.
        facts: What must be the same in a service.
        output: What Dynamo made of ``code``.
        guards: The guards with the words of their objects, and what Dynamo knows of the frame besides these
            (`guards.pickles`).
        without_hooks: Names of modules in guards -> their dictionaries of hooks that were empty.
        skip: Whether, and how, Dynamo skips the frame.
        splits: Names of graphs -> the parts into which one was split for ``DistributedDataParallel``.
    """

    code: Any
    backend: Backend
    facts: FrameFacts = field(default_factory=FrameFacts)
    output: FrameOutput = field(default_factory=FrameOutput)
    guards: bytes = b""
    without_hooks: dict[str, tuple[str, ...]] = field(default_factory=dict)
    skip: Skip | None = None
    splits: dict[str, SplitGraph] = field(default_factory=dict)

    def compiled(self) -> tuple[str, ...]:
        """Return the names of the graphs that AOTAutograd has results of: of a split one those of its
        parts."""
        groups = (
            self.splits[name].graphs() if name in self.splits else (name,) for name in self.output.graphs
        )
        return tuple(name for group in groups for name in group)


class FramesFile(NamedTuple):
    """What one file holds.

    Attributes:
        frames: The frames.
        graphs: By name, pickled results of AOTAutograd.
        eager: By the same names, what the canary compares the graphs with.
        sources: The builder's hash of PyTorch's sources (``torch_key``), by which the graphs name their
            Triton kernels.
        as_released: Signatures of the parts of torch that are as released, see `graphs.released`.
        compiled: By the digest of the text, the code that the builder's Python made of the modules that the
            graphs load, see `modules`.
    """

    frames: list[RecordedFrame]
    graphs: dict[str, bytes]
    eager: dict[str, EagerGraph]
    sources: bytes = b""
    as_released: bytes = b""
    compiled: Mapping[str, bytes] = {}


def write(folder: Path, content: FramesFile) -> str:
    """Write a file, whole, by rename; return its name."""
    data = pickle.dumps({"format": FORMAT, **content._asdict()}, protocol=4)
    name = hashlib.sha256(data).hexdigest() + SUFFIX
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{os.urandom(8).hex()}.tmp"
    try:
        partial.write_bytes(data)
        os.replace(partial, folder / name)
    finally:
        partial.unlink(missing_ok=True)
    return name


def read(path: Path) -> FramesFile:
    """Return the content of a file of a verified revision.

    Raises ``ValueError`` for a file whose content is not what its name says, or of another format, and
    whatever pickle raises.
    """
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() + SUFFIX != path.name:
        raise ValueError(f"{path.name}: its content is not what its name says")
    document = pickle.loads(data)
    number = document.pop("format", None)
    if number != FORMAT:
        raise ValueError(f"{path.name}: format {number}, this client reads {FORMAT}")
    return FramesFile(**document)
