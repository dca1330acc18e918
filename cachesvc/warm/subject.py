"""The thing that is compiled: builds it and its inputs from a job, calls it, times it, compares it.

Imports torch, so only `worker` imports this, once the client's hooks are in place. Everything is
seeded: two processes with one job have the same weights and inputs, unless the factory draws from
somewhere else, which the checksum tells.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch._dynamo

from cachesvc_client.canary.tolerance import Compared, compare, differ
from cachesvc_client.environment import model_hash

from .plan import Job
from .results import GraphBreak, Model, Times
from .spec import Argument, InputSet, TensorSpec

STEADY_SECONDS = 10.0
"""The steady measurement ends after this, however many runs are asked for."""
INTEGER_HIGH = 2

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class SubjectError(Exception):
    """What the user's code did wrong, in one line."""


class Subject:
    """A factory's module on its device, with its input sets. Raises ``SubjectError``."""

    def __init__(self, job: Job) -> None:
        self.job, self.spec = job, job.spec
        self.device = _device(self.spec.device)
        self._seed()
        made = _build(job)
        self.module, self._given = made
        self._place()
        self.dtype = job.dtype or _own_dtype(self.module)
        self.names = tuple(self.spec.inputs) or (("default",) if self._given is not None else ())
        if not self.names:
            hint = "declare [target.inputs.NAME], or let the factory return (module, inputs)"
            raise SubjectError(f"{self.spec.factory} gives no inputs, and the spec has none ({hint})")

    def inputs(self, name: str) -> Arguments:
        """The arguments of one set, made anew and alike at each call."""
        declared = self.spec.inputs.get(name)
        self._seed()
        if declared is None:
            return _on_device(_arguments(self._given, self.spec.factory), self.device)
        if declared.call:
            return _on_device(_arguments(_call(declared.call, {}, self.job), declared.call), self.device)
        return self._declared(declared)

    def describe(self) -> Model:
        """The facts that route and that tell whether two processes built the same."""
        module = self.module if isinstance(self.module, torch.nn.Module) else None
        sets = {name: self.inputs(name) for name in self.names}
        return Model(
            digest=model_hash.model_hash(module) if module is not None else None,
            inputs={name: model_hash.input_signature(*arguments) for name, arguments in sets.items()},
            dtype=self.dtype,
            device=self.device.type,
            weights=_checksum(module, sets),
            parameters=sum(item.numel() for item in module.parameters()) if module is not None else 0,
        )

    def compiled(self) -> Callable[..., Any]:
        """``torch.compile`` with the job's options; nothing is compiled before the first call."""
        spec = self.spec
        chosen: dict[str, Any] = {"options": dict(spec.options)} if spec.options else {"mode": self.job.mode}
        made: Callable[..., Any] = torch.compile(
            self.module, dynamic=spec.dynamic, fullgraph=spec.fullgraph, **chosen
        )
        return made

    def eager(self) -> contextlib.AbstractContextManager[Any]:
        """While open, nothing compiles, not even parts that the model compiles itself."""
        stance: contextlib.AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
        return stance

    def times(self, function: Callable[..., Any], what: str) -> dict[str, Times]:
        """The first call of every set in the declared order, then the steady ones."""
        sets = {name: self.inputs(name) for name in self.names}
        first = {name: self._timed(function, name, sets[name], what) for name in self.names}
        return {
            name: Times(first[name], self._steady(function, name, sets[name], what)) for name in self.names
        }

    def outputs(self, function: Callable[..., Any], name: str, what: str, seed: int = 0) -> list[Any]:
        """The tensors of one call (with the gradients of a training step), copied to the CPU."""
        arguments = self.inputs(name)
        self._seed(seed)
        result = self._call(function, name, arguments, what)
        found = [tensor.detach().to("cpu", copy=True) for tensor in tensors_of(result)]
        if self.spec.kind == "training" and isinstance(self.module, torch.nn.Module):
            grads = (item.grad for item in self.module.parameters() if item.grad is not None)
            found += [grad.detach().to("cpu", copy=True) for grad in grads]
        return found

    def compared(self, mine: list[Any], reference: list[Any]) -> Compared:
        """``mine`` against ``reference``, by the job's tolerance."""
        shapes = [[tuple(item.shape) for item in items] for items in (mine, reference)]
        if shapes[0] != shapes[1]:
            return Compared(difference=float("nan"), note="")
        allowed = self.job.tolerance(self.dtype)
        return compare(map(differ, mine, reference), allowed.rtol, allowed.atol)

    def _place(self) -> None:
        """Device, dtype and training flag of the module."""
        if not isinstance(self.module, torch.nn.Module):
            return
        dtype = getattr(torch, self.job.dtype) if self.job.dtype else None
        self.module.to(device=self.device, dtype=dtype)
        self.module.train(self.spec.kind == "training")

    def _declared(self, declared: InputSet) -> Arguments:
        generator = torch.Generator().manual_seed(self.spec.seed)
        args = tuple(self._argument(item, generator) for item in declared.args)
        return args, {key: self._argument(item, generator) for key, item in declared.kwargs.items()}

    def _argument(self, item: Argument, generator: torch.Generator) -> Any:
        if item.items is not None:
            return [self._argument(inner, generator) for inner in item.items]
        if item.tensor is None:
            return item.value
        tensor = _tensor(item.tensor, self.dtype, generator).to(self.device)
        for dimension in item.tensor.dynamic:
            torch._dynamo.mark_dynamic(tensor, dimension)
        return tensor

    def _steady(self, function: Callable[..., Any], name: str, arguments: Arguments, what: str) -> float:
        end = time.monotonic() + STEADY_SECONDS
        taken = [self._timed(function, name, arguments, what)]
        while len(taken) < self.spec.runs and time.monotonic() < end:
            taken.append(self._timed(function, name, arguments, what))
        return statistics.median(taken)

    def _timed(self, function: Callable[..., Any], name: str, arguments: Arguments, what: str) -> float:
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
            raise SubjectError(f"{what} with inputs {name!r} raised {one_line(error)}") from error

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


def graph_breaks() -> tuple[GraphBreak, ...]:
    """Where and why Dynamo cut graphs in this process, equal ones counted."""
    found: dict[tuple[str, str], int] = {}
    for item in torch._dynamo.utils.graph_break_reasons:
        frame = item.user_stack[-1] if item.user_stack else None
        where = f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno}" if frame else ""
        key = (_reason(item.reason), where)
        found[key] = found.get(key, 0) + 1
    return tuple(GraphBreak(reason, where, count) for (reason, where), count in found.items())


def recompiles() -> tuple[str, ...]:
    """``function: the guard that failed`` for each frame that was compiled again."""
    metrics = torch._dynamo.utils.get_compilation_metrics()
    # The reason is told by the forward's record and, in training, by its lazily compiled backward too.
    told = {str(item.compile_id): item for item in metrics if item.recompile_reason}
    return tuple(f"{item.co_name}: {one_line(item.recompile_reason)}" for item in told.values())


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in an output: of mappings (Hugging Face's outputs are), sequences and dataclasses."""
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


def one_line(error: object) -> str:
    """The type and the first line of an error that says something; other things as their first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0][:300] if lines else ""
    return f"{type(error).__name__}: {text}" if isinstance(error, BaseException) else text


def _reason(text: str) -> str:
    """Dynamo's reason and explanation, without hints, debug context and links."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    explained = [line.removeprefix("Explanation: ") for line in lines[1:2] if line.startswith("Explanation")]
    return ". ".join(line.rstrip(".") for line in lines[:1] + explained)[:400]


def _device(wanted: str) -> torch.device:
    if wanted.startswith("cuda") and not torch.cuda.is_available():
        raise SubjectError(f'device = "{wanted}": this process sees no CUDA device (or torch has no CUDA)')
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(wanted)


def _build(job: Job) -> tuple[Callable[..., Any], Any]:
    """The factory's answer: (module or callable, inputs or None)."""
    made = _call(job.spec.factory, dict(job.spec.args), job)  # type: ignore[arg-type]
    inputs = None
    if isinstance(made, tuple) and len(made) == 2 and callable(made[0]):
        made, inputs = made
    if not callable(made):
        what = f"{job.spec.factory} returned {type(made).__name__}"
        raise SubjectError(f"{what}: a module or callable is expected, or (it, inputs)")
    if isinstance(made, torch._dynamo.OptimizedModule):
        raise SubjectError(f"{job.spec.factory} returned a compiled module: return the plain one")
    return made, inputs


def _call(path: str, arguments: dict[str, Any], job: Job) -> Any:
    """Imports ``module:function`` and calls it."""
    module_name, _, names = path.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        looked = ", ".join([job.folder, *job.spec.paths])
        raise SubjectError(
            f"{path}: cannot import {module_name} (from {looked}): {one_line(error)}"
        ) from error
    for name in names.split("."):
        found = getattr(found, name, None)
    if not callable(found):
        raise SubjectError(f"{path}: {module_name} has no function {names}")
    try:
        return found(**arguments)
    except Exception as error:
        raise SubjectError(f"{path} raised {one_line(error)}{_missing_hint(error, job)}") from error


def _missing_hint(error: Exception, job: Job) -> str:
    if isinstance(error, FileNotFoundError) and not job.spec.cwd:
        return '; targets run in an empty folder: set cwd = "." to run in the spec\'s'
    return ""


def _arguments(given: Any, path: str) -> Arguments:
    """A mapping is keywords, a tuple or list positions, a tensor the only position, (tuple, mapping) both."""
    if isinstance(given, Mapping):
        return (), dict(given)
    both = isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Mapping)
    if both and isinstance(given[0], (tuple, list)):
        return tuple(given[0]), dict(given[1])
    if isinstance(given, (tuple, list)):
        return tuple(given), {}
    if isinstance(given, torch.Tensor):
        return (given,), {}
    raise SubjectError(f"{path} gave {type(given).__name__} as inputs: a dict or a tuple is expected")


def _on_device(arguments: Arguments, device: torch.device) -> Arguments:
    def moved(item: Any) -> Any:
        return item.to(device) if isinstance(item, torch.Tensor) else item

    return tuple(map(moved, arguments[0])), {key: moved(item) for key, item in arguments[1].items()}


def _tensor(spec: TensorSpec, dtype: str, generator: torch.Generator) -> torch.Tensor:
    """Made on the CPU, so that every device gets the same values."""
    kind = getattr(torch, spec.dtype or dtype)
    if spec.fill in ("zeros", "ones"):
        return (torch.zeros if spec.fill == "zeros" else torch.ones)(spec.shape, dtype=kind)
    if spec.fill == "arange":
        return torch.arange(torch.Size(spec.shape).numel()).reshape(spec.shape).to(kind)
    if not (kind.is_floating_point or kind.is_complex):
        low, high = int(spec.low or 0), int(spec.high or INTEGER_HIGH)
        return torch.randint(low, high, spec.shape, generator=generator).to(kind)
    if spec.low is None and spec.high is None:
        return torch.randn(spec.shape, generator=generator).to(kind)
    low_, high_ = spec.low or 0.0, 1.0 if spec.high is None else spec.high
    return (torch.rand(spec.shape, generator=generator) * (high_ - low_) + low_).to(kind)


def _own_dtype(module: Any) -> str:
    """The dtype of the first floating point parameter, else torch's default."""
    if isinstance(module, torch.nn.Module):
        for item in (*module.parameters(), *module.buffers()):
            if item.is_floating_point():
                return str(item.dtype).removeprefix("torch.")
    return str(torch.get_default_dtype()).removeprefix("torch.")


def _checksum(module: torch.nn.Module | None, sets: Mapping[str, Arguments]) -> str:
    """Sums, not bytes: quick where the tensors are, and enough to tell one seed from another."""
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
    """The output's ``loss``, else the sum of the means of what has a gradient."""
    loss = result.get("loss") if isinstance(result, Mapping) else getattr(result, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    means = [item.float().mean() for item in tensors_of(result) if item.requires_grad]
    return torch.stack(means).sum() if means else None


def import_paths(job: Job) -> None:
    """Where factories are imported from: declared folders, then the spec's."""
    for folder in reversed([*job.spec.paths, job.folder]):
        if folder not in sys.path:
            sys.path.insert(0, folder)
