"""Test what a frame compares of an optimizer, and that one which fits gets the state that a trace makes."""

from __future__ import annotations

import gc
import importlib
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from cachesvc_client.kinds.frames.describe.instances import describe_instance, is_instance
from cachesvc_client.kinds.frames.describe.optimizers import describe_optimizer
from cachesvc_client.kinds.frames.guards import optimizers
from cachesvc_client.kinds.frames.guards.spoken import difference
from cachesvc_client.kinds.frames.stored import OptimizerStart
from tests.releases import TORCH

pytestmark = pytest.mark.skipif(TORCH < (2, 11), reason="there are no frames")
torch: Any = importlib.import_module("torch")


def made(**options: Any) -> Any:
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters(), **{"lr": 1e-2, **options})
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    return optimizer


def with_attribute(optimizer: Any) -> None:
    optimizer.note = 1


def with_hook(optimizer: Any) -> None:
    optimizer.register_step_post_hook(lambda *_: None)


def with_state(optimizer: Any) -> None:
    optimizer.step()


def with_option(optimizer: Any) -> None:
    optimizer.param_groups[0]["mine"] = 1


def in_another_order(optimizer: Any) -> None:
    group = optimizer.param_groups[0]
    group["lr"] = group.pop("lr")


def with_step_of_its_own(optimizer: Any) -> None:
    optimizer.step = lambda: None


def with_two_groups(optimizer: Any) -> None:
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})


def with_one_parameter_twice(optimizer: Any) -> None:
    parameters = optimizer.param_groups[0]["params"]
    parameters[1] = parameters[0]


def with_frozen_parameter(optimizer: Any) -> None:
    optimizer.param_groups[0]["params"][0].requires_grad_(False)


CHANGES = (with_attribute, with_hook, with_state, with_option, in_another_order, with_step_of_its_own)
CHANGES = (*CHANGES, with_two_groups, with_one_parameter_twice, with_frozen_parameter)


@pytest.mark.parametrize("change", CHANGES)
def test_an_optimizer_is_another_one_after(change: Callable[[Any], None]) -> None:
    optimizer, other = made(), made()
    assert describe_optimizer(optimizer) == describe_optimizer(other)
    change(other)
    assert describe_optimizer(optimizer) != describe_optimizer(other)


@pytest.mark.parametrize("option", [{"lr": 1}, {"betas": (0.8, 0.9)}, {"amsgrad": True}, {"foreach": True}])
def test_a_reason_names_the_option_that_differs(option: dict[str, Any]) -> None:
    [name] = option
    text = difference(describe_optimizer(made()), describe_optimizer(made(**option)))
    assert text.startswith(f"here {name}="), text


@pytest.mark.parametrize("value", [object(), {1, 2}, torch.ones(2).to_sparse()])
def test_an_optimizer_with_a_value_that_has_no_words_is_refused(value: Any) -> None:
    optimizer = made()
    optimizer.note = value
    with pytest.raises(TypeError):
        describe_optimizer(optimizer)


def start_of(optimizer: Any) -> dict[str, OptimizerStart]:
    starts: dict[str, OptimizerStart] = {}
    lists = [optimizer.param_groups[0], *([] for _ in range(6))]
    optimizers.note_start(starts, "L['self']", optimizer, (lists, {}))
    return starts


def test_an_optimizer_that_fits_gets_the_state_of_a_trace() -> None:
    starts, live = start_of(made()), made()
    assert optimizers.differing(starts, {"L['self']": live}) == ""
    assert not live.state, "a comparison changes nothing"
    optimizers.prepare(starts, {"L['self']": live})
    expected = made()
    expected._init_group(expected.param_groups[0], *([] for _ in range(6)))
    assert describe_optimizer(live) == describe_optimizer(expected)


def test_an_optimizer_that_differs_gets_no_state() -> None:
    live = made(eps=1.0)
    assert optimizers.differing(start_of(made()), {"L['self']": live}).startswith(
        "self differs: here eps=1.0"
    )
    assert (
        optimizers.differing(start_of(made()), {"L['self']": torch.nn.Linear(1, 1)}) == "self is no optimizer"
    )
    assert not live.state


def test_a_graph_keeps_no_tensor_of_an_optimizer_that_has_ended() -> None:
    optimizer = made()
    tensors = [*optimizer.param_groups[0]["params"]]
    alive = weakref.ref(tensors[0])
    call = optimizers.bound(lambda *inputs: len(inputs), tensors, [optimizer])
    assert call(1) == 3
    del optimizer, tensors
    gc.collect()
    assert alive() is None


class Settings:
    def __init__(self, **values: Any) -> None:
        vars(self).update(values)


class WithSlots:
    __slots__ = ("hidden",)


def test_an_object_is_its_class_and_all_of_its_values() -> None:
    base = describe_instance(Settings(size=1, inner=Settings(deep=[1])))
    assert base == describe_instance(Settings(size=1, inner=Settings(deep=[1])))
    others = (Settings(size=2, inner=Settings(deep=[1])), Settings(size=1, inner=Settings(deep=[2])))
    others = (*others, Settings(inner=Settings(deep=[1]), size=1), type("Mine", (Settings,), {})(size=1))
    assert base not in [describe_instance(one) for one in others]


@pytest.mark.parametrize(
    "value", [WithSlots(), Settings(inside=object()), type("Of", (list,), {})(), object()]
)
def test_an_object_that_may_have_more_than_its_values_has_no_words(value: Any) -> None:
    with pytest.raises(TypeError):
        describe_instance(value)
    assert is_instance(value) == (type(value) is Settings)
