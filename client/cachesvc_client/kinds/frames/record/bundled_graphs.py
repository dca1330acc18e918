"""Has AOTAutograd make the results that `warm` records: each with the compiled graphs of the entry in it."""

from __future__ import annotations

import pickle
from contextlib import AbstractContextManager
from typing import Any

from ....graphs import request
from ....hooks import counters, imports
from ..names import BUNDLE, CACHEABLE, INNER
from .graph_facts import proven_keys, uncached_graphs

_PART = "_cachesvc_part"
"""The attribute by which a part of a split graph is told from all others."""


class BundledGraphs:
    """The results of AOTAutograd in a process that is there to record.

    AOTAutograd traces each graph again, and Inductor finds the compiled ones in the entry. So graphs can be
    recorded that AOTAutograd caches nowhere.
    """

    def __init__(self) -> None:
        self._kernels = b""
        """The kernels of the graph that was read last, pickled before they were loaded."""

    def install_hooks(self) -> None:
        """Put the hooks in place."""
        INNER.install(self._compile_graph)
        BUNDLE.install(self._read_kernels)
        CACHEABLE.install(self._keep_part)

    def prepare(self) -> None:
        """Have AOTAutograd keep its results with the compiled graphs in them, from now on: a backward is
        compiled when it is first called."""
        from torch._functorch import config

        request.keep_of_program("bundled_autograd_cache", config.bundled_autograd_cache)
        config.bundled_autograd_cache = True

    def tracing(self) -> AbstractContextManager[None]:
        """Return what is around a trace."""
        return uncached_graphs()

    def begin(self, _graph: Any, _name: str) -> None:
        """Do nothing: AOTAutograd notes the name of a graph with its result."""

    def begin_part(self, graph: Any, name: str) -> None:
        """Mark a part of a split graph, so that its key is its own: Dynamo calls each part once with tensors
        without data, which a part that was found does not know."""
        setattr(graph, _PART, name)

    def _keep_part(self, call: imports.Call) -> Any:
        """Have AOTAutograd keep the result of a part, whose first call alone is with tensors without data."""
        from torch._guards import TracingContext

        context = TracingContext.try_get()
        if context is None or not hasattr(call.argument("gm"), _PART):
            return call()
        before, context.fakify_first_call = context.fakify_first_call, False
        try:
            return call()
        finally:
            context.fakify_first_call = before

    def result(self, name: str) -> Any:
        """Return the result of AOTAutograd for the graph of a name; ``None`` if there is none."""
        from torch._dynamo.precompile_context import PrecompileContext

        return PrecompileContext._backend_artifacts_by_key.get(name)

    def forget(self, name: str) -> None:
        """Do nothing: a later file of this process has the graph again."""

    def why_not_kept(self) -> str:
        """Return why AOTAutograd kept no result of a graph, with all such reasons of this process."""
        reasons = "; ".join(" ".join(reason.split())[:200] for reason in counters.bypassed[:3])
        return f"AOTAutograd does not keep the result of a graph{': ' if reasons else ''}{reasons}"

    def _compile_graph(self, call: imports.Call) -> Any:
        """Have Inductor read a graph of the entry. PyTorch compiles anew what it bundles, so that the code
        and the tuned kernels would be others than those that were proven.

        A graph that calls nothing is no graph of Inductor's unless it is bundled.
        """
        from torch._dynamo.utils import count_calls
        from torch._functorch import config

        if not config.bundled_autograd_cache or count_calls(call.argument("gm").graph) == 0:
            return call()
        self._kernels = b""
        with config.patch(bundled_autograd_cache=False), proven_keys():
            graph = call()
        if self._kernels and hasattr(graph, "_triton_bundle"):
            graph._triton_bundle = pickle.loads(self._kernels)
        return graph

    def _read_kernels(self, call: imports.Call) -> Any:
        """Keep a graph's kernels as they were read from the entry: once they are loaded, they have addresses
        of this process and cannot be pickled."""
        self._kernels = pickle.dumps(call.argument("bundle"), protocol=4)
        return call()
