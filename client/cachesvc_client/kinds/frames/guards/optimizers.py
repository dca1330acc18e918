"""Prepares an optimizer for a recorded frame as Dynamo's trace does, and binds the tensors of its graphs.

Dynamo runs ``_init_group`` of an optimizer while it traces: that makes the state, which guards compare and
which the compiled graph has. A frame that is not traced does the same here, after the optimizer was
compared with what it was when the trace began. A trace that follows all the same finds the state that it
would make.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..describe.optimizers import describe_optimizer, is_optimizer
from ..stored import OptimizerStart
from .spoken import difference, object_name


class GroupCall(NamedTuple):
    """An argument of ``_init_group`` that is a group of parameters, or a new list (``None``)."""

    number: int | None


def note_start(
    starts: dict[str, OptimizerStart], name: str, optimizer: Any, arguments: tuple[Any, Mapping[str, Any]]
) -> None:
    """Note that a trace is about to call ``_init_group`` of an optimizer. The first time, note what it is.

    ``arguments``: positional and named ones, as Dynamo made them. Raises ``TypeError`` for an optimizer
    without description."""
    import torch

    given, named = arguments
    start = starts.get(name) or OptimizerStart(describe_optimizer(optimizer), ())
    call = (
        tuple(_template(optimizer, one) for one in given),
        {key: _template(optimizer, one) for key, one in named.items()},
        torch.is_grad_enabled(),
    )
    if call not in start.calls:
        start = start._replace(calls=(*start.calls, call))
    starts[name] = start


def _template(optimizer: Any, value: Any) -> Any:
    for number, group in enumerate(optimizer.param_groups):
        if value is group:
            return GroupCall(number)
    if type(value) is list and not value:
        return GroupCall(None)
    if value is not None and type(value) not in (bool, int, float, str):
        raise TypeError(f"_init_group is called with an object of {type(value).__qualname__}")
    return value


def differing(starts: Mapping[str, OptimizerStart], optimizers: Mapping[str, Any]) -> str:
    """Return in words the first optimizer that is not what it was when the trace began; else an empty text.
    Changes nothing."""
    for name, start in starts.items():
        optimizer = optimizers[name]
        if not is_optimizer(optimizer):
            return f"{object_name(name)} is no optimizer"
        try:
            now = describe_optimizer(optimizer)
        except TypeError as error:
            return f"{object_name(name)} has no description: {error}"
        if now != start.before:
            return f"{object_name(name)} differs: {difference(start.before, now)}"
    return ""


def prepare(starts: Mapping[str, OptimizerStart], optimizers: Mapping[str, Any]) -> None:
    """Do with the optimizers what a trace does: it marks their tensors, so that a later trace compares them
    by identity, and makes their state."""
    for name, start in starts.items():
        _prepare(optimizers[name], start)


def _prepare(optimizer: Any, start: OptimizerStart) -> None:
    import torch
    from torch._dynamo.decorators import mark_static_address
    from torch.utils._pytree import tree_map_only

    def mark(tensor: Any) -> None:
        mark_static_address(tensor, guard=True)

    for group in optimizer.param_groups:
        for parameter in group["params"]:
            mark(parameter)
    for parameter, state in optimizer.state.items():  # as ``OptimizerVariable.move_step_if_cpu``
        if isinstance(state.get("step"), torch.Tensor) and state["step"].is_cpu:
            state["step"] = state["step"].to(parameter.device)
    for given, named, with_gradients in start.calls:
        with torch.set_grad_enabled(with_gradients):
            optimizer._init_group(
                *(_value(optimizer, one) for one in given),
                **{key: _value(optimizer, one) for key, one in named.items()},
            )
    for state in optimizer.state.values():
        tree_map_only(torch.Tensor, mark, state)


def _value(optimizer: Any, template: Any) -> Any:
    if not isinstance(template, GroupCall):
        return template
    return [] if template.number is None else optimizer.param_groups[template.number]


def bound(graph: Any, tensors: list[Any], owners: list[Any]) -> Any:
    """Return a compiled graph with the tensors in front of its inputs that Dynamo's graph has itself. It
    lets go of them when one of the optimizers ends, as Dynamo's graph does."""
    import torch

    for owner in owners:
        weakref.finalize(owner, tensors.clear)

    def call(*inputs: Any) -> Any:
        return graph(*tensors, *inputs)

    return torch._dynamo.disable(call)
