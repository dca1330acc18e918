"""Test the digest of operators whose code is traced: an edit changes the digest; untraced code and a move do
not.

A row of the matrix (tests/matrix) shows with real processes that the digest is in AOTAutograd's key, and that
an edit compiles with the right numbers."""

from __future__ import annotations

import itertools
import traceback
import types
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch._higher_order_ops import effects
from torch._subclasses.fake_tensor import FakeTensorMode

from cachesvc_client.graphs import keys, operators
from cachesvc_client.graphs.code.followed import MAX_FOLLOWED, FollowedCode

SLOPE = 2.0
numbers = itertools.count()
registered = operators.RegisteredFunctions()


@pytest.fixture(autouse=True, scope="module")
def hooked() -> None:
    """Put the hooks in place now: a test of another file in this process may have taken all hooks out since
    this file was imported."""
    operators.install_hooks(registered)


def twice(x: Any) -> Any:
    return x * SLOPE


def custom(backward: Callable[..., Any], body: Callable[..., Any] = torch.sin) -> Any:
    def function(x: torch.Tensor) -> torch.Tensor:
        return body(x)

    operator = torch.library.custom_op(f"operators::op{next(numbers)}", function, mutates_args=())
    operator.register_fake(torch.empty_like)
    operator.register_autograd(backward)
    return operator._opoverload


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
    """Return the operator's digest in a graph that calls it; empty if there is none."""
    graph = torch.fx.Graph()
    graph.call_function(target, (graph.placeholder("x"),))
    description = operators.describe_operators(graph.nodes, registered)
    return description[0].partition(" code ")[2] if description else ""


@pytest.mark.parametrize(
    "make",
    [
        custom,
        triton_op,
        lambda fn: of_library("CompositeImplicitAutograd", fn),
        lambda fn: of_library("register_autograd", fn),
    ],
)
def test_an_edit_changes_the_digest(make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    first = code(make(lambda *arguments: arguments[-1] * 2))
    assert first and code(make(lambda *arguments: arguments[-1] * 2)) == first
    assert code(make(lambda *arguments: arguments[-1] * 3)) != first, "a constant of the operator"
    assert code(make(lambda *arguments: arguments[-1] + 2)) != first, "an operation of the operator"
    with_helper = code(make(lambda *arguments: twice(arguments[-1])))
    monkeypatch.setattr(f"{__name__}.SLOPE", 3.0)
    assert code(make(lambda *arguments: twice(arguments[-1]))) != with_helper, (
        "a constant that a called function reads"
    )


def test_code_that_runs_without_being_traced_does_not_count() -> None:
    def backward(_: Any, gradient: Any) -> Any:
        return gradient

    assert code(custom(backward, torch.sin)) == code(custom(backward, torch.cos)) != ""


def test_what_an_operator_writes_into_counts_with_its_tags_and_effects() -> None:
    def declared(text: str, **more: Any) -> str:
        library, name = torch.library.Library("operators", "FRAGMENT"), f"op{next(numbers)}"
        library.define(f"{name}{text}", **more)
        library.impl(name, torch.clone, "CPU")
        KEPT.append(library)
        return code(getattr(torch.ops.operators, name))

    plain = declared("(Tensor x) -> Tensor")
    assert plain and plain == declared("(Tensor x) -> Tensor")
    assert plain != declared("(Tensor(a!) x) -> Tensor")
    assert plain != declared("(Tensor x) -> Tensor", tags=(torch.Tag.needs_fixed_stride_order,))
    target = of_library("CPU", torch.clone)
    assert code(target) == plain
    in_frames = operators.describe_operator(target._name, registered)
    effects._register_effectful_op(target, effects._EffectType.ORDERED)
    assert code(target) != plain
    assert operators.describe_operator(target._name, registered) != in_frames


def test_an_operator_that_another_operator_calls_counts() -> None:
    name = triton_op(lambda x: x * 2)._name
    program = f"lambda x: torch.ops.{name.replace('::', '.')}(x)"
    first = code(triton_op(eval(program)))
    torch._library.custom_ops.OPDEFS[name].register_autograd(lambda _, gradient: gradient * 5)
    assert first and code(triton_op(eval(program))) != first


@pytest.mark.parametrize(
    "target", [torch.ops.aten.sin.default, torch.ops.aten.sin, torch.sin, torch.ops.prims.sin.default]
)
def test_pytorchs_own_operators_depend_on_its_version(target: Any) -> None:
    assert code(target) == ""


def test_code_registered_before_the_hook_makes_a_key_of_this_process_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = of_library("CompositeImplicitAutograd", lambda x: x * 2)
    monkeypatch.setattr(registered, "by_operator", {})
    first = code(target)
    assert first.startswith("registered before cachesvc was attached") and code(target) == first
    operators.nonce.cache_clear()
    assert code(target) != first


def test_the_description_of_an_operator_has_its_schema_and_the_functions_that_a_trace_runs() -> None:
    def described(target: Any) -> str:
        return operators.describe_operator(target._name, registered).replace(target._name, "op")

    def shape(x: torch.Tensor) -> torch.Tensor:
        return x.new_empty(3)

    first = described(custom(lambda _, gradient: gradient * 2))
    assert first == described(custom(lambda _, gradient: gradient * 2))
    assert first != described(custom(lambda _, gradient: gradient * 3))
    cast = custom(lambda _, gradient: gradient * 2)
    torch._library.custom_ops.OPDEFS[cast._name].register_autocast("cpu", torch.bfloat16)
    assert described(cast) != first
    meta = described(of_library("Meta", torch.empty_like))
    assert meta != described(of_library("Meta", shape)) and "(Tensor x) -> Tensor" in meta
    assert operators.describe_operator("aten::sin", registered) == ""


@pytest.mark.parametrize("key", ["CompositeImplicitAutograd", "Meta"])
def test_an_operator_whose_code_nobody_can_name_has_no_description(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = of_library(key, lambda x: x * 2)
    assert operators.describe_operator(target._name, registered)
    monkeypatch.setattr(registered, "by_operator", {})
    with pytest.raises(LookupError, match="before cachesvc was attached"):
        operators.describe_operator(target._name, registered)
    with pytest.raises(LookupError, match="operator operators::missing is not registered"):
        operators.describe_operator("operators::missing", registered)


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


def test_the_search_through_calls_is_bounded_and_never_raises() -> None:
    def recursive(x: Any) -> Any:
        return recursive(x) + missing(x)  # type: ignore[name-defined]  # noqa: F821

    class Odd:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    functions = [eval(f"lambda x: x + {number}") for number in range(MAX_FOLLOWED * 2)]
    assert len(FollowedCode(functions).lines) < MAX_FOLLOWED * 8
    assert FollowedCode([recursive]).digest == FollowedCode([recursive]).digest
    odd = Odd()
    assert len(code(custom(lambda _, gradient: (gradient, odd)))) == 12


class Settings:
    factor = 1

    def scaled(self, x: Any) -> Any:
        return x * self.factor


class Slotted:
    __slots__ = ("factor",)

    def __init__(self) -> None:
        self.factor = 1


@pytest.mark.parametrize(
    ("read", "change"),
    [
        (types.SimpleNamespace(factor=1), lambda read: setattr(read, "factor", 2)),
        (types.SimpleNamespace(factor=torch.float16), lambda read: setattr(read, "factor", torch.float32)),
        (types.SimpleNamespace(factor=[1, {"a": 1}]), lambda read: read.factor[1].update(a=2)),
        (Settings(), lambda read: setattr(read, "factor", 2)),
        (Slotted(), lambda read: setattr(read, "factor", 2)),
        ({"factor": 1}, lambda read: read.update(factor=2)),
        ([1, 2], lambda read: read.append(3)),
        ({1, 2}, lambda read: read.add(3)),
    ],
)
def test_what_code_reads_of_an_object_is_in_the_digest(read: Any, change: Callable[[Any], Any]) -> None:
    def function(x: Any) -> Any:
        return x * (read.factor if hasattr(read, "factor") else read)

    before = FollowedCode([function]).digest
    assert FollowedCode([function]).digest == before
    change(read)
    assert FollowedCode([function]).digest != before


def test_what_code_does_not_read_of_an_object_is_not_in_the_digest() -> None:
    read = types.SimpleNamespace(factor=1, calls=0)
    before = FollowedCode([lambda x: x * read.factor]).digest
    read.calls += 1
    assert FollowedCode([lambda x: x * read.factor]).digest == before


def test_what_a_method_reads_of_its_object_is_in_the_digest() -> None:
    settings = Settings()
    before = FollowedCode([settings.scaled]).digest
    settings.factor = 2
    assert FollowedCode([settings.scaled]).digest != before


def test_the_methods_of_an_applications_dict_do_not_run_for_a_digest() -> None:
    class Loud(dict):
        def items(self) -> Any:
            raise AssertionError("called")

        __len__ = __iter__ = items

    read = Loud(factor=1)
    before = FollowedCode([lambda x: x * read["factor"]]).digest
    dict.__setitem__(read, "factor", 2)
    assert FollowedCode([lambda x: x * read["factor"]]).digest != before


def test_an_object_that_holds_itself_ends_the_digest() -> None:
    read = types.SimpleNamespace(factor=1)
    read.factor = read
    assert FollowedCode([lambda x: x * read.factor]).digest


class Registered:
    """Keeps from where it was made, as the operators of vLLM's IR do."""

    def __init__(self, told: list[str], slope: float) -> None:
        self.told, self.slope = told, slope

    def shape(self, x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x) if self.told or self.slope else x


def registered_below(depth: int, slope: float = 2.0) -> Registered:
    if depth:
        return registered_below(depth - 1, slope)
    return Registered(traceback.format_stack(), slope)


def test_from_where_an_operator_was_registered_does_not_count() -> None:
    """The stack and the line differ between `warm` and a service; the rest of the object counts."""

    def digest(holder: Registered) -> str:
        library = torch.library.Library("operators", "FRAGMENT")
        KEPT.append(library)
        name = f"op{next(numbers)}"
        library.define(f"{name}(Tensor x) -> Tensor")
        library._register_fake(name, holder.shape)
        target = getattr(torch.ops.operators, name).default
        functions, unknown = operators._functions(f"operators::{name}", target, registered)
        followed = FollowedCode(functions)
        assert not unknown and not followed.unknown
        return followed.digest_without(f"operators::{name}")

    first = digest(registered_below(0))
    assert digest(registered_below(3)) == first
    assert digest(registered_below(0, slope=3.0)) != first
    assert digest(Registered(["no stack"], 2.0)) != first


def test_that_a_fake_ran_already_does_not_count() -> None:
    """A start that restores a trace asks for a key before any call of a fake; the builder asks after one."""
    name = f"op{next(numbers)}"
    torch.library.define(f"operators::{name}", "(Tensor x) -> Tensor")
    torch.library.impl(f"operators::{name}", "CPU", torch.sin)
    torch.library.register_fake(f"operators::{name}", empty_like)
    described = f"operators::{name}"
    before = operators.describe_operator(described, registered)
    with FakeTensorMode():
        getattr(torch.ops.operators, name)(torch.empty(2))
    assert operators.describe_operator(described, registered) == before


def empty_like(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)
