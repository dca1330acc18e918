"""Owns `ProcessOutput`: what this process compiled and used, for those who publish it or report about it.

`attach` imports this module on the application's own thread, so the module imports little at its top.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from .. import kinds
from ..graphs import key_components, operators
from ..hooks import counters
from .process_folders import ProcessFolders

if TYPE_CHECKING:
    from ..bundle.pack import SourceFile
    from ..graphs.request import GraphRequests
    from ..wire.digest import Digest
    from ..wire.factors import Facts
    from ..wire.key_components import KeyFacts
    from ..wire.names import Name, Target


class ProcessOutput(ProcessFolders):
    """The records of the hooks, and the files and facts that follow from them."""

    def __init__(self) -> None:
        super().__init__()
        self.components = key_components.Recorder()
        self.registered_functions = operators.RegisteredFunctions()
        self.observer: counters.Observer | None = None
        """Counts what the compilers do; ``None`` before the hooks were armed."""
        self.models: list[Digest] = []
        """Hashes of the models that `cachesvc_client.compile` was called with."""
        self.compiled_before = _graphs_compiled_already()
        """How many graphs were compiled before this object was made, unseen by the hooks."""
        self.seconds = {"wait": 0.0, "compile": 0.0}
        """Seconds that compiles waited for restores, and seconds inside Inductor."""
        self.publications: Counter[tuple[Name, Target]] = Counter()
        """How often this process has published under a name and target, as a rank of a job."""
        self.keeps_own = False
        """Whether what is compiled here is kept for the node's next start."""

    @functools.cached_property
    def asked(self) -> GraphRequests:
        """Return the requests for compiles that this process made; the first use makes the object."""
        from ..graphs.request import GraphRequests

        return GraphRequests(self.registered_functions)

    def capture(self, whole: bool) -> list[SourceFile]:
        """Return the files that `Session.capture` returns."""
        files: dict[tuple[str, str], SourceFile] = {}
        for number, roots in enumerate(self.folders.every_roots()):
            for file in self._capture_from(roots, whole, earlier=number > 0):
                files.setdefault((file.kind, file.path), file)
        return [files[place] for place in sorted(files)]

    def _capture_from(self, roots: Mapping[str, Path], whole: bool, earlier: bool) -> list[SourceFile]:
        """``earlier``: the roots are of a folder that this process has left."""
        from ..node.capture import capture, listing

        paths = {
            kinds.inductor.NAME: self.kernels.recorded.paths(roots[kinds.inductor.NAME], copied=not earlier),
            kinds.triton.NAME: self.triton.paths(roots[kinds.triton.NAME]),
            kinds.cuda.NAME: self.cuda.paths(self._library_kernels()),
        }
        if whole:
            paths = {kind: used | listing(roots[kind], kinds.RULES[kind]) for kind, used in paths.items()}
        return capture(paths, kinds.RULES, roots)

    def compiled_here(self) -> list[SourceFile]:
        """Return the files that `capture` returns, without those of the restored revisions."""
        revisions = self._accepted_revisions()
        restored = {(file.kind, file.path) for one in revisions for file in one.manifest.files}
        return [file for file in self.capture(whole=False) if (file.kind, file.path) not in restored]

    def made_by_libraries(self) -> int:
        """Count the kernels in the driver's folder that libraries compiled, and not the compilers."""
        return len(self.cuda.made(self._library_kernels()))

    def key_facts(self) -> KeyFacts | None:
        """Return the components of the keys that this process compiled for, as a bundle records them."""
        return self.components.facts(self.kernels.recorded.keys())

    def scopes(self) -> tuple[str, ...]:
        """Return what the code of this process is bound to.

        That is the GPU if CUDA was used, else the CPU of the host; and both where host kernels were built or
        loaded beside CUDA.
        """
        torch = sys.modules.get("torch")
        cuda = bool(torch is not None and torch.cuda.is_initialized())
        host = bool(self.kernels.recorded.kernels) or not cuda
        return (("gpu",) if cuda else ()) + (("host",) if host else ())

    def here(self) -> Facts:
        """Return the facts of this process by the factor table.

        They are those of the present environment, and of the graphs that were compiled here; of all graphs,
        if none was compiled.
        """
        from ..environment.detect import detect

        model = {"model": str(self.models[0])} if self.models else {}
        return {**detect(), **self.asked.facts(missed=True), **model}

    def activity(self) -> object:
        """Return a value that changes while this process compiles or loads; ``None`` before it did either."""
        observed = self.observer.snapshot() if self.observer else counters.Observation()
        if not self.seconds["compile"] and observed.clean and not self.triton.folders:
            return None
        return observed, dict(self.seconds), self.kernels.hits, len(self.triton.folders)


def _graphs_compiled_already() -> int:
    utils = sys.modules.get("torch._dynamo.utils")
    return int(getattr(utils, "counters", {}).get("stats", {}).get("unique_graphs", 0))
