"""Test that a graph's key holds all that the graph depends on, and nothing on a torch as it was released."""

from __future__ import annotations

import functools
import importlib
import json
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import regex
import torch

from cachesvc_client.graphs import door, keys
from cachesvc_client.graphs.code import targets
from cachesvc_client.graphs.code.followed import FollowedCode
from cachesvc_client.graphs.released import comparison
from tests.e2e.harness import SCALAR, environment
from tests.releases import TORCH

PROGRAM = str(Path(__file__).with_name("door_program.py"))
IN_BOTH_KEYS = (
    *("decomposition", "a decomposition taken out", "lowering", "pattern"),
    "a pattern taken out",
    *("a pass with the same uuid", "functional.silu"),
)


AS_RELEASED = ("functional.silu", "torch.relu", "Linear.forward", "Tensor.__getitem__", "Tensor.mT")


def looked_for(
    place: Path, how: str, version: int, seed: str, chosen: tuple[str, ...] = ()
) -> dict[str, list[str]]:
    """Return the keys of each situation, or of some, that a fresh process looks for."""
    folders = {"TORCHINDUCTOR_CACHE_DIR": str(place / "cache"), "PYTHONHASHSEED": seed}
    result = subprocess.run(
        [sys.executable, PROGRAM, how, str(version), *chosen],
        env={**environment(place), **SCALAR, **folders},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    answer = json.loads(result.stdout.splitlines()[-1])
    assert answer["errors"] == {}
    return dict(answer["keys"])


@pytest.mark.compiles
@pytest.mark.skipif(TORCH < (2, 13), reason="the program is of 2.13; tests/versions has the other releases")
def test_each_change_is_another_key_and_an_equal_change_the_same(tmp_path: Path) -> None:
    """AOTAutograd's key is the first that each situation looks for, and Inductor's the second."""
    plain = looked_for(tmp_path, "plain", 0, "1", AS_RELEASED)
    stock, first, again, other = (
        looked_for(tmp_path, "armed", version, seed)
        for version, seed in ((0, "1"), (1, "2"), (1, "3"), (2, "4"))
    )
    # Code that asks for a hash has the seed of hashes in its digest.
    differ = {name for name in first if first[name] != again[name]}
    assert differ == {"a hash"}, "a service that has the builder's change finds what the builder compiled"
    for name, of_stock in stock.items():
        assert len({of_stock[0], first[name][0], other[name][0]}) == 3, name
        if name in IN_BOTH_KEYS:
            assert len({of_stock[1], first[name][1], other[name][1]}) == 3, name
    for name in AS_RELEASED:
        assert stock[name] == plain[name], f"{name}: torch as released has the key that PyTorch gives it"


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    before = set(comparison.changes().described)
    yield
    assert set(comparison.changes().described) == before


def one_change(monkeypatch: pytest.MonkeyPatch, holder: Any, name: str, value: Any) -> list[str]:
    """Return the places that are found once a name of torch leads to another value."""
    before = set(comparison.changes().described)
    with monkeypatch.context() as patch:
        patch.setattr(holder, name, value)
        return sorted(set(comparison.changes().described) - before)


def own(*arguments: Any, **_: Any) -> Any:
    return arguments[0]


FUNCTIONAL = torch.nn.functional


@pytest.mark.parametrize(
    ("holder", "name", "value"),
    [
        (FUNCTIONAL, "silu", own),
        (FUNCTIONAL, "silu", FUNCTIONAL.relu),
        (FUNCTIONAL, "silu", functools.partial(FUNCTIONAL.leaky_relu, negative_slope=0.3)),
        (FUNCTIONAL, "silu", functools.wraps(FUNCTIONAL.silu)(lambda x, **_: x)),
        (FUNCTIONAL, "gelu", torch.tanh),
        (FUNCTIONAL, "layer_norm", torch.layer_norm),
        (FUNCTIONAL, "scaled_dot_product_attention", own),
        (torch, "relu", torch.sigmoid),
        (torch, "softmax", FUNCTIONAL.softmax),
        (torch, "sin", torch.ops.aten.cos),
        (torch._C._nn, "gelu", own),
        (torch.functional, "norm", own),
        (torch.nn, "ReLU", torch.nn.GELU),
        (torch.nn.ReLU, "forward", torch.nn.GELU.forward),
        (torch.nn.Dropout, "forward", torch.nn.Identity.forward),
        (torch.nn.Linear, "__call__", own),
        (torch.nn.Module, "__call__", own),
        (torch.Tensor, "__getitem__", own),
        (torch.Tensor, "__matmul__", torch.Tensor.__mul__),
        (torch.Tensor, "__rsub__", torch.Tensor.__rdiv__),
        (torch.Tensor, "__neg__", own),
        (torch.Tensor, "sigmoid", torch.Tensor.tanh),
        (torch.Tensor, "mT", property(own)),
        (torch.utils.checkpoint, "checkpoint", own),
    ],
)
def test_what_stands_in_the_place_of_torchs_own_is_found(
    holder: Any, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = one_change(monkeypatch, holder, name, value)
    assert len(found) == 1 and found[0].endswith(f".{name}"), found


def test_what_torch_puts_into_its_own_classes_while_it_runs_is_no_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``DistributedDataParallel`` keeps the module that runs in an attribute of the class."""
    wrapped = torch.nn.parallel.DistributedDataParallel
    assert comparison.changes().described == {}
    for value in (torch.nn.ReLU(), None, torch.nn.GELU()):
        monkeypatch.setattr(wrapped, "_active_ddp_module", value)
        assert comparison.changes().described == {}, value


def test_a_pattern_of_torchs_that_is_taken_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the pattern stays for calls of another operator, and where a pass is replaced."""
    post_grad: Any = importlib.import_module("torch._inductor.fx_passes.post_grad")
    passes = post_grad.pass_patterns[1]
    place = "torch._inductor.fx_passes.post_grad.pass_patterns[1]"
    assert comparison.changes().described == {}
    found = []
    for several in [one for one in passes.patterns.values() if one][:2]:
        taken = several.pop(0)
        found += comparison.changes().described
        several.insert(0, taken)
        assert comparison.changes().described == {}
    assert len(set(found)) == 2 and all(one.startswith(f"{place}, pattern ") for one in found)
    with monkeypatch.context() as patch:
        first, _, last = post_grad.pass_patterns
        patch.setattr(post_grad, "pass_patterns", [first, type(passes)(), last])
        assert place in comparison.changes().described


def test_patterns_of_torchs_in_another_order_are_found() -> None:
    """Inductor takes the first pattern that fits."""
    post_grad: Any = importlib.import_module("torch._inductor.fx_passes.post_grad")
    passes = enumerate(post_grad.pass_patterns)
    all_patterns = ((number, each) for number, one in passes for each in one.patterns.values())
    number, several = next(pair for pair in all_patterns if len(pair[1]) > 1)
    assert comparison.changes().described == {}
    several.reverse()
    found = comparison.changes()
    several.reverse()
    place = f"torch._inductor.fx_passes.post_grad.pass_patterns[{number}], in another order"
    assert [*found.described] == [place] and found.unknown == ""


def test_an_effect_that_an_operator_of_torchs_gets_or_loses_is_found() -> None:
    effects: Any = importlib.import_module("torch._higher_order_ops.effects")
    before = set(comparison.changes().described)
    for name, effect, other in (
        ("aten::sin", effects._EffectType.ORDERED, None),
        ("aten::_print", None, effects._EffectType.ORDERED),
    ):
        operator = getattr(torch.ops.aten, name.partition("::")[2]).default
        effects._register_effectful_op(operator, effect)
        try:
            found = set(comparison.changes().described) - before
        finally:
            effects._register_effectful_op(operator, other)
        assert found == {f"the effect of {name}"}
        assert set(comparison.changes().described) == before


def test_a_name_that_a_reason_shows_says_place_and_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FUNCTIONAL, "silu", own)
    [text] = door.of_torch(None, None)[door.REPLACED]
    assert text.startswith(f"torch.nn.functional.silu was replaced by the program: {__name__}.own code ")
    monkeypatch.setattr(FUNCTIONAL, "silu", lambda x: own(x, OPEN))
    parts = door.of_torch(None, None)
    assert parts[door.UNKNOWN].startswith(
        "torch.nn.functional.silu was replaced by the program, which reads an"
    )
    keys.nonce.cache_clear()
    assert door.of_torch(None, None)[door.UNKNOWN] != parts[door.UNKNOWN]
    monkeypatch.undo()


OPEN = iter([1])


class Holder:
    def __init__(self) -> None:
        self.factor, self.functions = 2, {"f": [lambda x: x * 2]}

    def scaled(self, x: Any) -> Any:
        return x * self.factor


def deep(number: int) -> Any:
    value: Any = number
    for _ in range(9):
        value = [value]
    return value


def reads(value: Any) -> Any:
    def function(x: Any) -> Any:
        return value(x) if callable(value) else value

    return function


class Changed(Holder):
    def scaled(self, x: Any) -> Any:
        return x + self.factor


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Holder(), Changed()),
        (Holder().scaled, Changed().scaled),
        ({"f": lambda x: x * 2}, {"f": lambda x: x * 3}),
        ([lambda x: x * 2], [lambda x: x * 3]),
        (torch.sin, torch.cos),
        (FUNCTIONAL.silu, FUNCTIONAL.relu),
        (functools.partial(torch.mul, other=2), functools.partial(torch.mul, other=3)),
        (functools.partial(lambda x, y: x * y, 2), functools.partial(lambda x, y: x + y, 2)),
        (property(len), property(own)),
        (functools.lru_cache(lambda x: x * 2), functools.lru_cache(lambda x: x * 3)),
        (deep(1), deep(2)),
        (torch.ones(3), torch.zeros(3)),
        ({1: 2, 3: 4}, {3: 4, 1: 2}),
        (types.MappingProxyType({"a": 1}), types.MappingProxyType({"a": 2})),
        (range(3), range(4)),
        (regex.compile("a"), regex.compile("b")),
        (regex.compile(r"\L<a>", a=["x"]), regex.compile(r"\L<a>", a=["y"])),
    ],
)
def test_what_code_reaches_is_in_the_digest(one: Any, other: Any) -> None:
    first, second = FollowedCode([reads(one)]), FollowedCode([reads(other)])
    assert first.unknown == second.unknown == ""
    assert first.digest != second.digest and first.digest == FollowedCode([reads(one)]).digest


@pytest.mark.parametrize(
    "value", [iter([1]), (one for one in ()), memoryview(b"1"), torch.empty(2, device="meta")]
)
def test_a_value_of_a_kind_that_is_not_known_makes_the_digest_unknown(value: Any) -> None:
    assert FollowedCode([reads(value)]).unknown


def test_code_that_runs_a_text_is_unknown() -> None:
    assert FollowedCode([lambda: eval("x")]).unknown == "code that calls eval"


def test_what_a_graph_calls_is_described_and_what_cannot_be_named() -> None:
    def described(target: Any, *arguments: Any) -> tuple[list[str], str]:
        graph = torch.fx.Graph()
        graph.output(graph.call_function(target, (graph.placeholder("x"), *arguments)))
        return targets.describe(torch.fx.GraphModule({}, graph), ())

    assert described(torch.sin) == described(FUNCTIONAL.silu) == described(torch.add, 2) == ([], "")
    [text], unknown = described(own)
    assert text.startswith(f"{__name__}.own code ") and not unknown
    assert described(reads(OPEN))[1].startswith(
        f"the graph depends on {__name__}.reads.<locals>.function, which"
    )


def test_a_subclass_is_described_by_what_its_methods_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sub(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            return super().__torch_function__(func, kinds, args, {**(kwargs or {}), **HELD})

    graph = torch.fx.symbolic_trace(lambda x: torch.sin(x))
    first, unknown = targets.describe(graph, [torch.ones(2).as_subclass(Sub)])
    assert len(first) == 1 and not unknown
    monkeypatch.setitem(HELD, "alpha", 2)
    assert targets.describe(graph, [torch.ones(2).as_subclass(Sub)])[0] != first
    assert targets.describe(graph, [torch.ones(2), torch.nn.Parameter(torch.ones(2))]) == ([], "")


HELD: dict[str, int] = {}
