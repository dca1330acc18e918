"""Build the model that a job's factory makes, and its inputs; call, time and compare the model.

This module imports torch, so only `execution` imports it, once the client's hooks are in place. Everything is
seeded: two processes with one job have the same weights and inputs, unless the factory takes random numbers
from elsewhere, which the checksum shows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch._dynamo

from cachesvc_client.canary import tolerance
from cachesvc_client.canary.tolerance import Compared, Tolerance, compare, differ
from cachesvc_client.environment import model_hash

from ..spec.inputs import Argument, InputSet, TensorSpec
from ..spec.plan import Job
from .phase import GraphBreak, ModelFacts, Times
from .steady import Steady, alternate
from .user_code import UserCodeError, call_by_name, make_argument, one_line

LATER_SECONDS = 10.0
"""Seconds after which a process makes no more later calls, however many runs the spec asks for."""
INTEGER_HIGH = 2
"""Bound below which random integers lie if the spec gives no ``high``, as for the dtype bool."""

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of one call."""


class FactoryModel:
    """Holds a factory's module on its device, with its input sets.

    Errors of the user's code are raised as ``UserCodeError``.
    """

    def __init__(self, job: Job) -> None:
        self.job, self.spec = job, job.spec
        self.device = _device(self.spec.device)
        self._seed()
        self.module, self._factory_inputs = _build(job)
        self._place()
        self.dtype = job.dtype or _own_dtype(self.module)
        has_inputs = self._factory_inputs is not None
        self.input_names = tuple(self.spec.inputs) or (("default",) if has_inputs else ())
        if not self.input_names:
            hint = "declare [target.inputs.NAME], or let the factory return (module, inputs)"
            raise UserCodeError(f"{self.spec.factory} gives no inputs, and the spec has none ({hint})")

    def inputs(self, name: str) -> Arguments:
        """Return the arguments of one input set; each call makes new ones with the same values."""
        input_set = self.spec.inputs.get(name)
        self._seed()
        if input_set is None:
            return _on_device(_arguments(self._factory_inputs, self.spec.factory), self.device)
        if input_set.call:
            return _on_device(
                _arguments(call_by_name(input_set.call, {}, self.job), input_set.call), self.device
            )
        return self._build_arguments(input_set)

    def describe(self) -> ModelFacts:
        """Return the facts by which a registry finds the entry, and which show whether two processes built
        the same model."""
        module = self.module if isinstance(self.module, torch.nn.Module) else None
        sets = {name: self.inputs(name) for name in self.input_names}
        return ModelFacts(
            digest=model_hash.model_hash(module) if module is not None else None,
            inputs={name: model_hash.input_signature(*arguments) for name, arguments in sets.items()},
            dtype=self.dtype,
            weights=_checksum(module, sets),
        )

    def compile(self) -> Callable[..., Any]:
        """Return ``torch.compile`` of the module with the job's options; the first call compiles."""
        spec = self.spec
        how: dict[str, Any] = {"options": dict(spec.options)} if spec.options else {"mode": self.job.mode}
        function: Callable[..., Any] = torch.compile(
            self.module, dynamic=spec.dynamic, fullgraph=spec.fullgraph, **how
        )
        return function

    def eager(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which nothing compiles, not even parts that the model compiles itself."""
        stance: contextlib.AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
        return stance

    def first_calls(self, function: Callable[..., Any], what: str) -> dict[str, Times]:
        """Time the first call of every input set in the declared order."""
        sets = {name: self.inputs(name) for name in self.input_names}
        return {name: Times(self._time_call(function, name, sets[name], what)) for name in self.input_names}

    def later_calls(self, function: Callable[..., Any], what: str) -> None:
        """Make the calls after the first one, which may compile too: a size turns dynamic, a CUDA graph is
        recorded."""
        for name in self.input_names:
            arguments, end = self.inputs(name), time.monotonic() + LATER_SECONDS
            for _ in range(self.spec.runs):
                self._time_call(function, name, arguments, what)
                if time.monotonic() > end:
                    break

    def steady_times(self, compiled: Callable[..., Any]) -> dict[str, tuple[Steady, Steady]]:
        """Time steady calls of the compiled model and of the eager one in turn, by input set."""
        return {name: self._steady(compiled, name) for name in self.input_names}

    def outputs(self, function: Callable[..., Any], name: str, what: str, seed: int = 0) -> list[Any]:
        """Return copies on the CPU of one call's output tensors, and of the gradients of a training step."""
        arguments = self.inputs(name)
        self._seed(seed)
        result = self._call(function, name, arguments, what)
        tensors = [tensor.detach().to("cpu", copy=True) for tensor in tensors_of(result)]
        if self.spec.kind == "training" and isinstance(self.module, torch.nn.Module):
            grads = (item.grad for item in self.module.parameters() if item.grad is not None)
            tensors += [grad.detach().to("cpu", copy=True) for grad in grads]
        return tensors

    def compare(self, outputs: list[Any], reference: list[Any]) -> Compared:
        """Compare ``outputs`` with ``reference`` by the job's tolerance; other shapes differ by NaN."""
        shapes = [[tuple(item.shape) for item in items] for items in (outputs, reference)]
        if shapes[0] != shapes[1]:
            return Compared(difference=float("nan"), note="")
        allowed = tolerance_of(self.job, self.dtype)
        return compare(map(differ, outputs, reference), allowed.rtol, allowed.atol)

    def _place(self) -> None:
        """Set device, dtype and training flag of the module."""
        if not isinstance(self.module, torch.nn.Module):
            return
        dtype = getattr(torch, self.job.dtype) if self.job.dtype else None
        self.module.to(device=self.device, dtype=dtype)
        self.module.train(self.spec.kind == "training")

    def _build_arguments(self, input_set: InputSet) -> Arguments:
        generator = torch.Generator().manual_seed(self.spec.seed)
        args = tuple(self._argument(item, generator) for item in input_set.args)
        return args, {key: self._argument(item, generator) for key, item in input_set.kwargs.items()}

    def _argument(self, item: Argument, generator: torch.Generator) -> Any:
        if item.items is not None:
            return [self._argument(inner, generator) for inner in item.items]
        if item.tensor is None:
            return item.value
        tensor = _tensor(item.tensor, self.dtype, generator).to(self.device)
        for dimension in item.tensor.dynamic:
            torch._dynamo.mark_dynamic(tensor, dimension)
        return tensor

    def _steady(self, compiled: Callable[..., Any], name: str) -> tuple[Steady, Steady]:
        arguments = self.inputs(name)

        def call_compiled() -> float:
            return self._time_call(compiled, name, arguments, "the compiled model")

        def call_eager() -> float:
            with self.eager():
                return self._time_call(self.module, name, arguments, "the eager model")

        return alternate(self.spec.runs, compiled=call_compiled, eager=call_eager)

    def _time_call(self, function: Callable[..., Any], name: str, arguments: Arguments, what: str) -> float:
        self._synchronise()
        begin = time.perf_counter()
        self._call(function, name, arguments, what)
        self._synchronise()
        return time.perf_counter() - begin

    def _call(self, function: Callable[..., Any], name: str, arguments: Arguments, what: str) -> Any:
        if self.device.type == "cuda":
            torch.compiler.cudagraph_mark_step_begin()
        try:
            with self._mode(), self._autocast():
                result = function(*arguments[0], **arguments[1])
            if self.spec.kind == "training":
                self._backward(result)
            return result
        except Exception as error:
            text = f"{what} with inputs {name!r} raised {one_line(error)}"
            raise UserCodeError(text + _positional_hint(error)) from error

    def _backward(self, result: Any) -> None:
        if isinstance(self.module, torch.nn.Module):
            self.module.zero_grad(set_to_none=True)
        loss = _loss(result)
        if loss is None:
            raise TypeError("no output has a gradient: a training step needs one (return a loss)")
        torch.autograd.backward(loss)

    def _mode(self) -> contextlib.AbstractContextManager[Any]:
        modes = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode, "grad": torch.enable_grad}
        mode: contextlib.AbstractContextManager[Any] = modes[self.spec.grad]()
        return mode

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if not self.spec.autocast:
            return contextlib.nullcontext()
        cast: contextlib.AbstractContextManager[Any] = torch.autocast(
            self.device.type, dtype=getattr(torch, self.spec.autocast)
        )
        return cast

    def _synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _seed(self, more: int = 0) -> None:
        torch.manual_seed(self.spec.seed + more)


def tolerance_of(job: Job, dtype: str) -> Tolerance:
    """Return the spec's tolerance, or the default of a dtype: autocast's, the job's, else ``dtype``."""
    if job.spec.tolerance is not None:
        return Tolerance(**job.spec.tolerance)
    return tolerance.tolerance([job.spec.autocast or job.dtype or dtype])


def graph_breaks() -> tuple[GraphBreak, ...]:
    """Return where and why Dynamo cut graphs in this process; equal breaks are counted."""
    counts: dict[tuple[str, str], int] = {}
    for item in torch._dynamo.utils.graph_break_reasons:
        frame = item.user_stack[-1] if item.user_stack else None
        where = f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno}" if frame else ""
        key = (_reason(item.reason), where)
        counts[key] = counts.get(key, 0) + 1
    return tuple(GraphBreak(reason, where, count) for (reason, where), count in counts.items())


def recompiles() -> tuple[str, ...]:
    """Return ``function: the guard that failed`` for each frame that was compiled again."""
    metrics = torch._dynamo.utils.get_compilation_metrics()
    # The record of the forward has the reason, and in training that of its lazily compiled backward too.
    records = {str(item.compile_id): item for item in metrics if item.recompile_reason}
    return tuple(f"{item.co_name}: {one_line(item.recompile_reason)}" for item in records.values())


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in an output: in mappings (such as Hugging Face's), sequences and dataclasses."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_of(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_of(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_of(getattr(value, field.name))


def _reason(text: str) -> str:
    """Return Dynamo's reason and explanation, without hints, debug context and links."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    more = [line.removeprefix("Explanation: ") for line in lines[1:2] if line.startswith("Explanation")]
    return ". ".join(line.rstrip(".") for line in lines[:1] + more)[:400]


def _device(name: str) -> torch.device:
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserCodeError(f'device = "{name}": this process sees no CUDA device (or torch has no CUDA)')
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def _build(job: Job) -> tuple[Callable[..., Any], Any]:
    """Call the factory and return (module or callable, inputs or ``None``)."""
    arguments = {name: make_argument(value, job) for name, value in dict(job.spec.args).items()}  # type: ignore[arg-type]
    model = call_by_name(job.spec.factory, arguments, job)
    inputs = None
    if isinstance(model, tuple) and len(model) == 2 and callable(model[0]):
        model, inputs = model
    if not callable(model):
        what = f"{job.spec.factory} returned {type(model).__name__}"
        raise UserCodeError(f"{what}: a module or callable is expected, or (it, inputs)")
    if isinstance(model, torch._dynamo.OptimizedModule):
        raise UserCodeError(f"{job.spec.factory} returned a compiled module: return the plain one")
    return model, inputs


def _positional_hint(error: BaseException) -> str:
    """Return how inputs have an argument without a name, for a call with a name that the model lacks."""
    if isinstance(error, TypeError) and "unexpected keyword argument" in str(error):
        return ' (an argument without a name stands in the list "*" of the inputs)'
    return ""


def _arguments(inputs: Any, path: str) -> Arguments:
    """Return a call's arguments: a mapping is keywords, a tuple or list is positions, a tensor the only
    position, and (tuple, mapping) both. ``path``: the function that made the inputs."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    both = isinstance(inputs, tuple) and len(inputs) == 2 and isinstance(inputs[1], Mapping)
    if both and isinstance(inputs[0], (tuple, list)):
        return tuple(inputs[0]), dict(inputs[1])
    if isinstance(inputs, (tuple, list)):
        return tuple(inputs), {}
    if isinstance(inputs, torch.Tensor):
        return (inputs,), {}
    raise UserCodeError(f"{path} gave {type(inputs).__name__} as inputs: a dict or a tuple is expected")


def _on_device(arguments: Arguments, device: torch.device) -> Arguments:
    def move(item: Any) -> Any:
        return item.to(device) if isinstance(item, torch.Tensor) else item

    return tuple(map(move, arguments[0])), {key: move(item) for key, item in arguments[1].items()}


def _tensor(spec: TensorSpec, dtype: str, generator: torch.Generator) -> torch.Tensor:
    """Make a tensor on the CPU, so that every device gets the same values."""
    torch_dtype = getattr(torch, spec.dtype or dtype)
    if spec.fill in ("zeros", "ones"):
        return (torch.zeros if spec.fill == "zeros" else torch.ones)(spec.shape, dtype=torch_dtype)
    if spec.fill == "arange":
        return torch.arange(torch.Size(spec.shape).numel()).reshape(spec.shape).to(torch_dtype)
    if not (torch_dtype.is_floating_point or torch_dtype.is_complex):
        low, high = int(spec.low or 0), int(spec.high or INTEGER_HIGH)
        return torch.randint(low, high, spec.shape, generator=generator).to(torch_dtype)
    if spec.low is None and spec.high is None:
        return torch.randn(spec.shape, generator=generator).to(torch_dtype)
    least, bound = spec.low or 0.0, 1.0 if spec.high is None else spec.high
    return (torch.rand(spec.shape, generator=generator) * (bound - least) + least).to(torch_dtype)


def _own_dtype(module: Any) -> str:
    """Return the dtype of the first floating point parameter or buffer, else torch's default."""
    if isinstance(module, torch.nn.Module):
        for item in (*module.parameters(), *module.buffers()):
            if item.is_floating_point():
                return str(item.dtype).removeprefix("torch.")
    return str(torch.get_default_dtype()).removeprefix("torch.")


def _checksum(module: torch.nn.Module | None, sets: Mapping[str, Arguments]) -> str:
    """Return a digest of the tensors' sums, not of their bytes: quick on any device, and another seed gives
    another digest."""
    running = hashlib.sha256()
    state = dict(module.state_dict()) if module is not None else {}
    named = {**state, **{f"inputs.{name}": tensor for name, tensor in _named_inputs(sets)}}
    for name, item in named.items():
        if isinstance(item, torch.Tensor):
            flat = torch.view_as_real(item) if item.is_complex() else item
            running.update(
                f"{name} {tuple(item.shape)} {item.dtype} {flat.double().sum().item()!r}\n".encode()
            )
    return running.hexdigest()


def _named_inputs(sets: Mapping[str, Arguments]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, (args, kwargs) in sets.items():
        for number, tensor in enumerate(tensors_of([*args, *kwargs.values()])):
            yield f"{name}.{number}", tensor


def _loss(result: Any) -> torch.Tensor | None:
    """Return the output's ``loss``, else the sum of the means of the tensors that have a gradient."""
    loss = result.get("loss") if isinstance(result, Mapping) else getattr(result, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    means = [item.float().mean() for item in tensors_of(result) if item.requires_grad]
    return torch.stack(means).sum() if means else None
