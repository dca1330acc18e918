"""Define what `cachesvc init` sees in a program: compiled callables, how they were built, and their calls.

The observed process writes these records as JSON, and `project` reads them. Standard library only: the
observed process imports this module before the program's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Candidate:
    """Names a function or class that built the model: ``module:name``, called with the keywords ``args``.

    ``file``: where it is defined. ``problem``: why a spec cannot call it, empty if it can.
    """

    module: str
    name: str
    file: str
    args: dict[str, Any] = field(default_factory=dict)
    problem: str = ""


@dataclass(slots=True)
class CallSeen:
    """Describes a call. ``args`` and ``kwargs`` are arguments as a spec writes them. ``problems``: what a
    spec cannot express."""

    args: list[Any]
    kwargs: dict[str, Any]
    grad: str = "grad"
    autocast: str = ""
    training: bool = False
    threads: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass(slots=True)
class CompileOptions:
    """Holds how ``torch.compile`` was called."""

    mode: str = ""
    dynamic: bool | None = None
    fullgraph: bool = False
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class ModuleSeen:
    """Describes a module at its first call. ``digest``: its model hash. ``dtype`` and ``device``: of all its
    tensors, empty if they differ; a dtype is that of the floating point ones."""

    digest: str = ""
    dtype: str = ""
    device: str = ""


@dataclass(slots=True)
class CompiledSeen:
    """Describes one compiled callable: a module, or a function.

    ``what``: its class or name. ``where``: the line that called ``torch.compile``. ``threads``: of torch
    when the program had just imported it.
    """

    what: str
    is_module: bool
    where: str = ""
    compile: CompileOptions = field(default_factory=CompileOptions)
    problems: list[str] = field(default_factory=list)
    module: ModuleSeen = field(default_factory=ModuleSeen)
    threads: int = 0
    candidates: list[Candidate] = field(default_factory=list)
    calls: list[CallSeen] = field(default_factory=list)
