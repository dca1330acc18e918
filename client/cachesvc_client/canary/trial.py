"""Compares the first output of a restored function with eager's, once for each graph: the canary.

The comparison happens where ``compile_fx`` returns. There the canary has the graph that Dynamo made, the
function that was restored for it and, at its first call, the real inputs. A start without traces has all of
them where a recorded frame is given to Dynamo (docs/adr/0015). The graph has no side effects but writes into
tensors, so it can run beside the function without a second run of the model's own Python (docs/adr/0015).

Eager runs under a dispatch mode that sees each operator before it runs. Before an operator writes into an
input, the mode copies the input; afterwards the canary puts the copy back, so the function gets the inputs of
the caller. Nothing else is copied. Nothing is compared in training, where operators are random, where ranks
communicate, and while a CUDA graph is being captured. Then the report says so, and the function is used.

The module imports torch, so only the thread that compiles may import it.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any, Generic, TypeVar

import torch

from .operators import NotComparable, OperatorMode, describe_difference, tensors_in
from .tolerance import Compared

_log = logging.getLogger("cachesvc")

T = TypeVar("T")


def copy_of(graph: Any) -> Any:
    """Return a graph that the compile does not take apart: with copies of the nodes, and the same tensors. A
    graph that was recorded is a plain function, and is returned as it is."""
    if isinstance(graph, torch.fx.GraphModule):
        return torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))
    return graph


class Trial(Generic[T]):
    """Judges the first output of one graph that was compiled or restored.

    ``suspects`` returns the revisions that the function was restored from, and is called before the first
    call of the function. Without suspects nothing is compared. ``wrong(suspects, reason)`` is called for a
    wrong output; an error that it raises reaches the caller of the model. ``skipped(reason)`` is called if
    nothing was compared. ``called()`` is called when the first call begins.
    """

    def __init__(
        self,
        graph: Any,
        *,
        suspects: Callable[[], Sequence[T]],
        wrong: Callable[[Sequence[T], str], None],
        skipped: Callable[[str], None],
        called: Callable[[], None] = lambda: None,
    ) -> None:
        """Copy the graph with `copy_of`. To be called before the compile."""
        self._graph: Any = copy_of(graph)
        self._suspects, self._wrong, self._skipped, self._called = suspects, wrong, skipped, called
        self._lock = threading.RLock()
        self.watches = True
        """Whether the compiled function was one that can be watched."""

    def watch(self, compiled: Any) -> Any:
        """Returns ``compiled`` with its first call judged.

        An object that is no plain function (a product of ahead-of-time compilation) is returned as it is.
        After a right first output a call costs one more Python frame. After a wrong one the graph runs
        eagerly, at that call and at all later calls of the returned function.
        """
        if not isinstance(compiled, FunctionType):
            self.watches = False
            self._skipped(f"what was compiled is no function but {type(compiled).__name__}")
            return compiled
        run: Callable[..., Any] | None = None

        @functools.wraps(compiled)
        def watched(*args: Any) -> Any:
            nonlocal run
            if run is None:
                with self._lock:  # no other thread uses the function before it is judged
                    if run is None:
                        run, output = self._first(compiled, args)
                        return output
            return run(*args)

        # Until torch 2.10 Dynamo follows this mark of ``compiled`` to the function that it wraps, and calls
        # that one.
        vars(watched).pop("_torchdynamo_orig_callable", None)
        return watched

    def _first(self, compiled: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Callable[..., Any], Any]:
        """Makes the first call; returns the function for later calls, and the output of this one."""
        self._called()
        try:
            suspects, graph = self._suspects(), self._graph
        except Exception as error:  # noqa: BLE001 - a comparison that fails is no error of the model
            return self._unjudged(error, compiled, compiled(*args))
        eager = self._eager(graph, args) if suspects else None
        output = compiled(*args)
        self._graph = None  # not earlier: a call that raises has no first output
        if eager is None:
            return compiled, output
        try:
            comparison = eager.compare_with(output)
        except Exception as error:  # noqa: BLE001 - as above
            return self._unjudged(error, compiled, output)
        if comparison.note:
            self._skipped(comparison.note)
        if comparison.passed:
            return compiled, output
        del output
        eager.put_back()
        self._wrong(suspects, describe_difference(comparison))
        return graph, graph(*args)

    def _unjudged(self, error: Exception, compiled: Any, output: Any) -> tuple[Any, Any]:
        """Notes why the output was not compared, and lets the function serve."""
        _log.debug("canary", exc_info=error)
        self._skipped(f"{type(error).__name__}: {error}"[:200])
        self._graph = None
        return compiled, output

    def _eager(self, graph: Any, args: tuple[Any, ...]) -> _Eager | None:
        """Runs the graph eagerly; if that is not possible, notes the reason and returns ``None``."""
        try:
            return _Eager(graph, args)
        except NotComparable as reason:
            self._skipped(str(reason))
        except Exception as error:  # noqa: BLE001 - a comparison that fails is no error of the model
            _log.debug("canary: eager", exc_info=True)
            line = (str(error).splitlines() or [""])[0][:200]
            self._skipped(f"the graph does not run eagerly: {type(error).__name__}: {line}")
        return None


class _Eager:
    """Runs a graph eagerly, and has its outputs and what it wrote into inputs.

    Afterwards inputs and random states are as they were before, also if it raises: ``NotComparable`` or an
    error of the graph.
    """

    def __init__(self, graph: Any, args: tuple[Any, ...]) -> None:
        tensors = [item for item in args if isinstance(item, torch.Tensor)]
        if torch.is_grad_enabled() and any(item.requires_grad for item in tensors):
            raise NotComparable("gradients are wanted, and only inference is compared (see torch.no_grad)")
        if any(item.is_cuda for item in tensors) and torch.cuda.is_current_stream_capturing():
            raise NotComparable("a CUDA graph is being captured")
        self._args = args
        self._mode = mode = _SavingMode(args)
        devices = sorted({item.device.index for item in tensors if item.is_cuda})
        try:
            with _restored_modes(tensors), torch.random.fork_rng(devices):
                before = _random_states(devices)
                with mode:
                    outputs = graph(*args)
                if not all(map(torch.equal, before, _random_states(devices))):
                    raise NotComparable("operators are random (dropout?)")
            # An output that is a part of an input would change when the input is put back.
            self._outputs = [item.clone() if mode.wrote(item) else item for item in tensors_in(outputs)]
            self._after = {index: args[index].clone() for index in mode.before}
        finally:
            self.put_back()

    def put_back(self) -> None:
        """Writes the caller's values back into the inputs that were written to."""
        with torch.no_grad():
            for index, saved in self._mode.before.items():
                self._args[index].copy_(saved)

    def compare_with(self, output: Any) -> Compared:
        """Compare the output and the writes of the function with eager's."""
        own, reference = tensors_in(output), list(self._outputs)
        if len(own) != len(reference):
            return Compared(difference=float("nan"))
        own += [self._args[index] for index in self._after]
        return self._mode.compare(own, [*reference, *self._after.values()])


class _SavingMode(OperatorMode):
    """Copies each argument before the first write into it.

    ``before``: index of an argument -> its value before the first write into it.
    """

    def __init__(self, args: tuple[Any, ...]) -> None:
        super().__init__(args)
        self.before: dict[int, Any] = {}
        self._args = args

    def write(self, tensor: Any) -> None:
        for index in self.arguments_of(tensor):
            if index not in self.before:
                self.before[index] = self._args[index].detach().clone()

    def wrote(self, tensor: Any) -> bool:
        """Return whether a tensor is a part of an argument that was written to."""
        return any(index in self.before for index in self.arguments_of(tensor))


@contextlib.contextmanager
def _restored_modes(tensors: Sequence[Any]) -> Iterator[None]:
    """Restores grad mode and autocast after the block, even if a graph that changes them raises."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(torch.is_grad_enabled()))
        for device in sorted({"cpu", *(item.device.type for item in tensors)} & {"cpu", "cuda"}):
            enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
            stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled))
        yield


def _random_states(devices: Sequence[int]) -> list[Any]:
    return [torch.random.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)]
