"""Runs a kept call eagerly on a thread of cachesvc, and leaves everything of the service as it is.

The thread takes over the modes of the call. Operators that draw random numbers, that PyTorch does not define,
or that write into a tensor of the service are not run: the graph is not comparable then. On a GPU the thread
has a stream of its own, and tells the driver that it takes no part in captures of other threads.

The module imports torch, so only a process that compiles may import it.
"""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .kept import DEVICES, CallModes, KeptCall
from .operators import NotComparable, OperatorMode, storage_of, tensors_in
from .tolerance import Compared

MOST_INTERMEDIATE = 1 << 30
"""Bytes of intermediate results that eager may hold, at most."""
_NAMESPACES = frozenset({"aten", "prims", "prim"})
"""Operators that are run: those that PyTorch defines, of which the schema says all effects."""
_RELAXED = 2
"""``CU_STREAM_CAPTURE_MODE_RELAXED`` of the CUDA driver's API."""


def compare_kept(
    graph: Callable[..., Any],
    call: KeptCall,
    *,
    check: Callable[[], None],
    gate: contextlib.AbstractContextManager[Any],
) -> Compared:
    """Run ``graph`` on the inputs of a call and compare its outputs and writes with those of the call.

    ``check`` is called before each operator, and may raise. ``gate`` is held while an operator runs. Raise
    ``NotComparable`` where the call cannot be compared, and what the graph raises.
    """
    with _streams(call), _modes(call.modes):
        mode = _SideMode(graph, call, check, gate)
        with mode:
            reference = tensors_in(graph(*call.args))
        if mode.written - call.after.keys():
            raise NotComparable("it writes into an input, and the function was not seen to do so")
        with gate:
            check()
            own = [*call.outputs, *call.after.values()]
            if len(reference) != len(call.outputs):
                return Compared(difference=float("nan"))
            comparison = mode.compare(own, [*reference, *(call.args[place] for place in call.after)])
            if not comparison.passed and not call.is_unchanged():
                raise NotComparable("a parameter or a large input was changed before it was compared")
            return comparison


class _SideMode(OperatorMode):
    """Runs operators that have no effect outside of this run. ``written``: the places of copies that were
    written to."""

    def __init__(self, graph: Any, call: KeptCall, check: Callable[[], None], gate: Any) -> None:
        super().__init__(call.args)
        self.written: set[int] = set()
        self._call, self._check, self._gate = call, check, gate
        self._of_graph = {storage_of(tensor) for tensor in _tensors_of(graph)}
        self._held = 0
        self._storages: Counter[int] = Counter()
        """For each memory of intermediate results, how many tensors have it."""

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._check()
        if func.namespace not in _NAMESPACES:
            raise NotComparable(f"it calls {func.namespace}.{func.__name__}, which PyTorch does not define")
        if torch.Tag.nondeterministic_seeded in func.tags and not _is_without_dropout(func, args, kwargs):
            raise NotComparable("operators are random (dropout?)")
        if self._held > MOST_INTERMEDIATE:
            raise NotComparable(f"eager needs more than {MOST_INTERMEDIATE >> 20} MiB for it")
        with self._gate:
            return func(*args, **kwargs)

    def write(self, tensor: Any) -> None:
        places = set(self.arguments_of(tensor))
        if places & self._call.referenced or storage_of(tensor) in self._of_graph:
            raise NotComparable("it writes into a parameter, or into an input too large to be copied")
        if places & self._call.shared:
            raise NotComparable("it writes into inputs that share memory")
        self.written |= places

    def made(self, tensor: Any) -> None:
        storage, size = storage_of(tensor), tensor.untyped_storage().nbytes()
        if self.arguments_of(tensor) or storage in self._of_graph:
            return
        self._held += size if not self._storages[storage] else 0
        self._storages[storage] += 1
        weakref.finalize(tensor, self._free, storage, size).atexit = False

    def _free(self, storage: int, size: int) -> None:
        self._storages[storage] -= 1
        self._held -= size if not self._storages[storage] else 0


def _tensors_of(graph: Any) -> Iterator[Any]:
    """Yield the tensors that a graph holds itself."""
    for module in graph.modules() if isinstance(graph, torch.nn.Module) else ():
        held = (*module.parameters(False), *module.buffers(False), *vars(module).values())
        yield from (item for item in held if isinstance(item, torch.Tensor))


def _is_without_dropout(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether an operator that may drop values out, such as an attention, drops none."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            given = args[place] if place < len(args) else kwargs.get("dropout_p", argument.default_value)
            return bool(given == 0.0)
    return False


@contextlib.contextmanager
def _modes(modes: CallModes) -> Iterator[None]:
    """Take over the modes of a call on this thread."""
    with torch.inference_mode(modes.inference), torch.set_grad_enabled(modes.grad and not modes.inference):
        # No context of autocast: its end empties the cache of casts, which all threads have in common.
        torch.autocast_increment_nesting()
        torch.set_autocast_cache_enabled(False)
        for device in DEVICES:  # an earlier graph may have left it as it wanted
            torch.set_autocast_enabled(device, device in modes.autocast)
        for device, dtype in modes.autocast.items():
            torch.set_autocast_dtype(device, dtype)
        yield


@contextlib.contextmanager
def _streams(call: KeptCall) -> Iterator[None]:
    """Run the block on streams of its own, after the call, and wait for them at its end."""
    if not call.events:
        yield
        return
    _leave_captures()
    streams = [torch.cuda.Stream(device) for device in call.events]
    with contextlib.ExitStack() as stack:
        for stream, event in zip(streams, call.events.values(), strict=True):
            stream.wait_event(event)
            stack.enter_context(torch.cuda.stream(stream))
        stack.enter_context(torch.cuda.device(call.modes.device))
        try:
            yield
        finally:
            for stream in streams:
                stream.synchronize()


def _leave_captures() -> None:
    """Tell the driver that this thread's calls belong to no capture of another thread, which an allocation
    would end otherwise. Raise ``NotComparable`` where the driver cannot be told."""
    try:
        mode = ctypes.c_int(_RELAXED)
        failed = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    except (OSError, AttributeError) as error:
        raise NotComparable(f"captures of CUDA graphs cannot be kept apart: {error}") from None
    if failed:
        raise NotComparable(f"captures of CUDA graphs cannot be kept apart: error {failed} of the driver")
