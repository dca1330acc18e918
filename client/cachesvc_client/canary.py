"""The canary: the first output of what was restored, against eager, once per graph.

It sits where ``compile_fx`` answers: there are the graph that Dynamo made, the function that was restored for
it and, at its first call, the real inputs. The graph has no side effects but writes into tensors, so it can
be run beside the function without the model's own Python running twice (docs/adr/0015).

Eager runs under a dispatch mode that sees each operator before it runs. What is about to be written into an
input is copied first and put back after, so the function gets the inputs that the caller gave; nothing else
is copied. Nothing is compared in training, where operators are random, where ranks communicate, and while a
CUDA graph is being captured: that is told, and the function is used.

Imports torch: for the thread that compiles alone.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any, Generic, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .numerics import Compared, compare, differ, tolerance

_log = logging.getLogger("cachesvc")

T = TypeVar("T")

_COMMUNICATING = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "symm_mem"})
"""Namespaces of operators that wait for other ranks, which may run no canary."""


class Trial(Generic[T]):
    """One graph that was compiled, or restored, until its first output is judged.

    ``suspects``: asked before the first call for what the function was restored from; nothing is compared if
    that is nothing. ``wrong(suspects, why)`` and ``skipped(why)`` are told how it ended; ``wrong`` may raise,
    which reaches the caller of the model. ``called()`` is called when the first call begins.
    """

    def __init__(
        self,
        graph: Any,
        suspects: Callable[[], Sequence[T]],
        wrong: Callable[[Sequence[T], str], None],
        skipped: Callable[[str], None],
        called: Callable[[], None] = lambda: None,
    ) -> None:
        """To be made before the compile, which takes ``graph`` (a ``torch.fx.GraphModule``) apart. Copies its
        nodes and shares its tensors."""
        self._graph: Any = torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))
        self._suspects, self._wrong, self._skipped, self._called = suspects, wrong, skipped, called
        self._lock = threading.RLock()

    def watch(self, compiled: Any) -> Any:
        """``compiled`` with its first call judged; what is no plain function (ahead-of-time products) as it
        is. After a right first output a call costs one more Python frame. After a wrong one the graph runs
        eagerly, for that call and for whoever still holds the function."""
        if not isinstance(compiled, FunctionType):
            self._skipped(f"what was compiled is no function but {type(compiled).__name__}")
            return compiled
        run: Callable[..., Any] | None = None

        @functools.wraps(compiled)
        def watched(*args: Any) -> Any:
            nonlocal run
            if run is None:
                with self._lock:  # no other thread uses it unjudged
                    if run is None:
                        run, output = self._first(compiled, args)
                        return output
            return run(*args)

        # Until torch 2.10 Dynamo follows this mark of ``compiled`` to the function that it was made around,
        # and calls that one.
        vars(watched).pop("_torchdynamo_orig_callable", None)
        return watched

    def _first(self, compiled: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Callable[..., Any], Any]:
        """(what serves from now on, the output of this call)."""
        self._called()
        try:
            suspects, graph = self._suspects(), self._graph
        except Exception as error:  # noqa: BLE001 - no comparison is no error of the model's
            return self._unjudged(error, compiled, compiled(*args))
        eager = self._eager(graph, args) if suspects else None
        output = compiled(*args)
        self._graph = None  # not before: a call that raised is no first output
        if eager is None:
            return compiled, output
        try:
            compared = eager.compared(output)
        except Exception as error:  # noqa: BLE001 - as above
            return self._unjudged(error, compiled, output)
        if compared.note:
            self._skipped(compared.note)
        if compared.passed:
            return compiled, output
        del output
        eager.put_back()
        self._wrong(
            suspects,
            f"its first output differs from eager by {compared.difference:.3g} where {compared.allowed:.3g} "
            f"is allowed (values up to {compared.scale:.3g})",
        )
        return graph, graph(*args)

    def _unjudged(self, error: Exception, compiled: Any, output: Any) -> tuple[Any, Any]:
        _log.debug("canary", exc_info=error)
        self._skipped(f"{type(error).__name__}: {error}"[:200])
        self._graph = None
        return compiled, output

    def _eager(self, graph: Any, args: tuple[Any, ...]) -> _Eager | None:
        try:
            return _Eager(graph, args)
        except _NotComparable as reason:
            self._skipped(str(reason))
        except Exception as error:  # noqa: BLE001 - no comparison is no error of the model's
            _log.debug("canary: eager", exc_info=True)
            line = (str(error).splitlines() or [""])[0][:200]
            self._skipped(f"the graph does not run eagerly: {type(error).__name__}: {line}")
        return None


class _NotComparable(Exception):
    """Why a graph is not run beside its function."""


class _Eager:
    """One eager run of a graph: its outputs, and what it wrote into inputs, which are again as they were.

    Raises ``_NotComparable`` and what the graph raises; inputs and random states are as they were then, too.
    """

    def __init__(self, graph: Any, args: tuple[Any, ...]) -> None:
        tensors = [item for item in args if isinstance(item, torch.Tensor)]
        if torch.is_grad_enabled() and any(item.requires_grad for item in tensors):
            raise _NotComparable("gradients are wanted, and only inference is compared (see torch.no_grad)")
        if any(item.is_cuda for item in tensors) and torch.cuda.is_current_stream_capturing():
            raise _NotComparable("a CUDA graph is being captured")
        self._args = args
        self._watch = watch = _Watch(args)
        devices = sorted({item.device.index for item in tensors if item.is_cuda})
        try:
            with _modes_kept(tensors), torch.random.fork_rng(devices):
                before = _random_states(devices)
                with watch:
                    outputs = graph(*args)
                if not all(map(torch.equal, before, _random_states(devices))):
                    raise _NotComparable("operators are random (dropout?)")
            # An output that is a part of an input would change when that is put back.
            self._outputs = [item.clone() if watch.wrote(item) else item for item in _tensors(outputs)]
            self._after = {index: args[index].clone() for index in watch.before}
        finally:
            self.put_back()

    def put_back(self) -> None:
        """What was written is again as the caller gave it."""
        with torch.no_grad():
            for index, saved in self._watch.before.items():
                self._args[index].copy_(saved)

    def compared(self, output: Any) -> Compared:
        """What the function gave and wrote against eager's. Whole numbers that floating ones chose (an
        argmax) may differ much where these differ little: they count only where nothing is floating."""
        mine, reference = _tensors(output), list(self._outputs)
        if [item.shape for item in mine] != [item.shape for item in reference]:
            return Compared(difference=float("nan"))
        mine += [self._args[index] for index in self._after]
        reference += self._after.values()
        pairs = list(zip(mine, reference, strict=True))
        floating = [pair for pair in pairs if _is_floating(pair[1])]
        if not floating and self._watch.floating:
            return Compared(note="only whole numbers come out, which floating ones chose")
        allowed = tolerance(self._watch.dtypes)
        values = (differ(*pair) for pair in floating or pairs)
        return compare(values, allowed.rtol, allowed.atol) if floating else compare(values, 0.0, 0.0)


class _Watch(TorchDispatchMode):  # type: ignore[misc]
    """Sees each operator before it runs. ``before``: index of an argument -> its value before it was first
    written to. ``dtypes``: in which was computed."""

    def __init__(self, args: tuple[Any, ...]) -> None:
        super().__init__()
        self.before: dict[int, Any] = {}
        self.dtypes: set[str] = set()
        self.floating = False
        self._args = args
        self._sharing: dict[int, list[int]] = defaultdict(list)
        for index, item in enumerate(args):
            if isinstance(item, torch.Tensor):
                self._sharing[_storage(item)].append(index)
                self._note(item)

    def wrote(self, tensor: Any) -> bool:
        """Whether it is a part of an argument that was written to."""
        return any(index in self.before for index in self._sharing.get(_storage(tensor), ()))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace in _COMMUNICATING:
            raise _NotComparable("ranks communicate in it")
        kwargs = kwargs or {}
        for tensor in _written(func, args, kwargs):
            for index in self._sharing.get(_storage(tensor), ()):
                if index not in self.before:
                    self.before[index] = self._args[index].detach().clone()
        made = func(*args, **kwargs)
        for tensor in _tensors(made):
            self._note(tensor)
        return made

    def _note(self, tensor: Any) -> None:
        if _is_floating(tensor):
            self.floating = True
            self.dtypes.add(str(tensor.dtype).removeprefix("torch."))


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The tensors that an operator writes into, by its schema. Those of batch norm hide it (ATen's
    ``native_functions.yaml``: running statistics without an alias annotation)."""
    named = [*zip(func._schema.arguments, args, strict=False)]
    named += [(one, kwargs[one.name]) for one in func._schema.arguments if one.name in kwargs]
    hidden = ("running_mean", "running_var") if "batch_norm" in func._schema.name else ()
    values = [
        value
        for one, value in named
        if (one.alias_info is not None and one.alias_info.is_write) or one.name in hidden
    ]
    return _tensors(values)


@contextlib.contextmanager
def _modes_kept(tensors: Sequence[Any]) -> Iterator[None]:
    """Grad mode and autocast are after it what they were, even if a graph that changes them raises."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(torch.is_grad_enabled()))
        for device in sorted({"cpu", *(item.device.type for item in tensors)} & {"cpu", "cuda"}):
            enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
            stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled))
        yield


def _random_states(devices: Sequence[int]) -> list[Any]:
    return [torch.random.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)]


def _tensors(value: Any) -> list[Any]:
    return [item for item in tree_leaves(value) if isinstance(item, torch.Tensor)]


def _storage(tensor: Any) -> int:
    pointer: int = tensor.untyped_storage()._cdata
    return pointer


def _is_floating(tensor: Any) -> bool:
    return bool(tensor.is_floating_point() or tensor.is_complex())
