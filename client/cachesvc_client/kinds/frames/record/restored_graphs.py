"""Makes the graphs of recorded frames of what PyTorch found in the entry, in a service that records itself.

PyTorch reads a result of AOTAutograd, and the compiled graphs that it names, as bytes, and notes them for
``torch.compiler.save_cache_artifacts``. They are made one result with the graphs in it when the file is
written. So PyTorch works as in every service: nothing is traced twice, no setting is changed, and no object
of a graph in use is touched. What AOTAutograd caches nowhere is not recorded here; `warm` does
that, see `bundled_graphs`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pickle
import threading
from collections.abc import Iterator
from typing import Any

from ....hooks import imports
from ..names import FOUND

_GRAPHS = ("inductor", "aot_autograd")
"""PyTorch's words for what it finds of a graph."""
_MOST_BYTES = 512 << 20
"""Bytes of graphs that are kept until they are written, at most. PyTorch keeps the same bytes."""


class RestoredGraphs:
    """The graphs that the traces of this process found."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, bytes]] = {}
        """By Dynamo's name of a graph: the keys that PyTorch searched for, and the bytes that it found."""
        self._now = ""
        """The name of the graph that is loaded now."""
        self._thread = 0
        """The thread that traces now."""
        self._bytes = 0

    def install_hooks(self) -> None:
        """Put the hook in place."""
        FOUND.install(self._note)

    def prepare(self) -> None:
        """Do nothing: PyTorch works as in every service."""

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Note what this thread finds within the block."""
        before = self._now, self._thread
        self._now, self._thread = "", threading.get_ident()
        try:
            yield
        finally:
            self._now, self._thread = before

    def begin(self, graph: Any, name: str) -> None:
        """Note that PyTorch searches for a graph now, and remove the name, which only a recorded graph has.
        PyTorch's key has the order of a graph's attributes: with the name the key would be another one."""
        self._now = name
        del graph._backend_id

    def begin_part(self, _graph: Any, _name: str) -> None:
        """Do nothing: AOTAutograd caches no part of a split graph, so the entry has none."""

    def result(self, name: str) -> Any:
        """Return the result of AOTAutograd for the graph of a name, with the compiled graphs in it; ``None``
        if it was not found whole."""
        from torch._functorch._aot_autograd import aot_autograd_result as results

        found = {key: pickle.loads(data) for key, data in self._found.get(name, {}).items()}
        [*entries] = (one for one in found.values() if type(one) is results.AOTAutogradResult)
        if len(entries) != 1:
            return None
        try:
            return _joined(name, entries[0], found)
        except KeyError:  # a compiled graph came from elsewhere
            return None

    def forget(self, name: str) -> None:
        """Forget a graph, which is in a file now."""
        self._bytes -= sum(map(len, self._found.pop(name, {}).values()))

    def why_not_kept(self) -> str:
        """Return why a graph is not recorded."""
        return "a graph of it is not in the entry with its result of AOTAutograd, which `warm` can record"

    def _note(self, call: imports.Call) -> Any:
        answer = call()
        if self._now and threading.get_ident() == self._thread:
            artifact, key, data = map(call.argument, ("artifact_type", "key", "content"))
            if artifact in _GRAPHS and self._bytes + len(data) <= _MOST_BYTES:
                self._found.setdefault(self._now, {})[key] = data
                self._bytes += len(data)
        return answer


def _joined(name: str, entry: Any, found: dict[str, Any]) -> Any:
    """Return a result that names its compiled graphs as one that has them inside. Raises ``KeyError``."""
    from torch._functorch._aot_autograd import aot_autograd_result as results

    forward, backward = entry.compiled_fw, entry.compiled_bw
    parts = {field.name: getattr(entry, field.name) for field in dataclasses.fields(entry)}
    parts["compiled_fw"] = results.BundledCompiledForward(result=found[forward.fx_graph_cache_info[0]])
    if backward is not None:
        parts["compiled_bw"] = results.BundledCompiledBackward(
            result=found[backward.fx_graph_cache_info[0]],
            backward_state_indices=backward.backward_state_indices,
            num_symints_saved_for_bw_=backward.num_symints_saved_for_bw_,
        )
    config = entry.sanitized_aot_config
    parts["sanitized_aot_config"] = dataclasses.replace(config, precompile_backend_id=None)
    whole: Any = results.BundledAOTAutogradResult(**parts)
    return results.BundledAOTAutogradCacheArtifact(name, whole)
