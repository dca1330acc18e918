"""Operators whose code is traced: an edit is another digest, what is not traced or only moves is none.

That the digest is in AOTAutograd's key, and that an edit compiles with the right numbers, is a row of the
matrix (tests/matrix), through real processes.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from cachesvc_client.graphs import keys, operators
from cachesvc_client.graphs.code_digest import MAX_FOLLOWED, FollowedCode

SLOPE = 2.0
numbers = itertools.count()
registered = operators.RegisteredFunctions()
operators.install_hooks(registered)


def twice(x: Any) -> Any:
    return x * SLOPE


def custom(backward: Callable[..., Any], body: Callable[..., Any] = torch.sin) -> Any:
    def function(x: torch.Tensor) -> torch.Tensor:
        return body(x)

    made = torch.library.custom_op(f"operators::op{next(numbers)}", function, mutates_args=())
    made.register_fake(torch.empty_like)
    made.register_autograd(backward)
    return made._opoverload


def triton_op(body: Callable[..., Any]) -> Any:
    def function(x: torch.Tensor) -> torch.Tensor:
        return body(x)

    return torch.library.triton_op(f"operators::op{next(numbers)}", function, mutates_args=())._opoverload


def of_library(key: str, function: Callable[..., Any]) -> Any:
    name = f"op{next(numbers)}"
    library = torch.library.Library("operators", "FRAGMENT")
    library.define(f"{name}(Tensor x) -> Tensor")
    if key == "register_autograd":
        library.impl(name, lambda x: x.sin(), "CPU")
        torch.library.register_autograd(f"operators::{name}", function, lib=library)
    else:
        library.impl(name, function, key)
    KEPT.append(library)
    return getattr(torch.ops.operators, name).default


KEPT: list[Any] = []


def code(target: Any) -> str:
    """The digest that a graph which calls the operator has for it; empty if there is none."""
    graph = torch.fx.Graph()
    graph.call_function(target, (graph.placeholder("x"),))
    found = operators.describe_operators(graph.nodes, registered)
    return found[0].partition(" code ")[2] if found else ""


@pytest.mark.parametrize(
    "make",
    [
        custom,
        triton_op,
        lambda fn: of_library("CompositeImplicitAutograd", fn),
        lambda fn: of_library("register_autograd", fn),
    ],
)
def test_an_edit_is_another_digest(make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    first = code(make(lambda *given: given[-1] * 2))
    assert first and code(make(lambda *given: given[-1] * 2)) == first
    assert code(make(lambda *given: given[-1] * 3)) != first, "a constant in it"
    assert code(make(lambda *given: given[-1] + 2)) != first, "an operation in it"
    helped = code(make(lambda *given: twice(given[-1])))
    monkeypatch.setattr(f"{__name__}.SLOPE", 3.0)
    assert code(make(lambda *given: twice(given[-1]))) != helped, "a constant that what it calls reads"


def test_what_runs_is_not_what_is_traced() -> None:
    def backward(_: Any, gradient: Any) -> Any:
        return gradient

    assert code(custom(backward, torch.sin)) == code(custom(backward, torch.cos)) != ""


def test_an_operator_that_another_one_calls() -> None:
    name = triton_op(lambda x: x * 2)._name
    program = f"lambda x: torch.ops.{name.replace('::', '.')}(x)"
    first = code(triton_op(eval(program)))
    torch._library.custom_ops.OPDEFS[name].register_autograd(lambda _, gradient: gradient * 5)
    assert first and code(triton_op(eval(program))) != first


@pytest.mark.parametrize(
    "target", [torch.ops.aten.sin.default, torch.ops.aten.sin, torch.sin, torch.ops.prims.sin.default]
)
def test_pytorchs_own_operators_are_its_versions(target: Any) -> None:
    assert code(target) == ""


def test_code_that_was_registered_unseen_meets_no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    target = of_library("CompositeImplicitAutograd", lambda x: x * 2)
    monkeypatch.setattr(registered, "by_operator", {})
    first = code(target)
    assert first.startswith("registered before cachesvc was attached") and code(target) == first
    operators.nonce.cache_clear()
    assert code(target) != first


def test_the_key_of_a_graph_without_such_operators_stays_as_it_is() -> None:
    class Details:
        def __init__(self, gm: Any, inputs: Any) -> None:
            self.inputs, self.inner = inputs, len(list(gm.modules()))

    module: Any = types.ModuleType("autograd_cache")
    module.AOTAutogradCacheDetails = Details
    keys._install(keys.AUTOGRAD_KEY, partial(operators.key_parts, registered), module)
    traced = triton_op(lambda x: x * 2)
    plain = module.AOTAutogradCacheDetails(torch.fx.symbolic_trace(lambda x: torch.sin(x)), [])
    called = module.AOTAutogradCacheDetails(torch.fx.symbolic_trace(lambda x: traced(x)), [])
    assert vars(plain) == {"inputs": [], "inner": 1}
    assert vars(called)[operators.ATTRIBUTE] == [f"{traced._name} code {code(traced)}"]


def test_what_is_followed_is_bounded_and_never_raises() -> None:
    def recursive(x: Any) -> Any:
        return recursive(x) + missing(x)  # type: ignore[name-defined]  # noqa: F821

    class Odd:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    made = [eval(f"lambda x: x + {number}") for number in range(MAX_FOLLOWED * 2)]
    assert len(FollowedCode(made).lines) < MAX_FOLLOWED * 8
    assert FollowedCode([recursive]).digest == FollowedCode([recursive]).digest
    odd = Odd()
    assert len(code(custom(lambda _, gradient: (gradient, odd)))) == 12
