"""Test what a trace reads that no guard of Dynamo's compares: it is recorded, or the frame is refused."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cachesvc_client.graphs import operators
from cachesvc_client.hooks import imports
from cachesvc_client.kinds.frames import stored
from cachesvc_client.kinds.frames.describe.reads import changed_read
from cachesvc_client.kinds.frames.record import graph_facts
from cachesvc_client.kinds.frames.record.package import FramePackage
from cachesvc_client.kinds.frames.record.reads_hooks import ReadsHooks
from cachesvc_client.kinds.frames.record.traced_reads import UNKNOWN, TracedReads, constant_of
from tests.releases import TORCH

pytestmark = pytest.mark.skipif(TORCH < (2, 11), reason="there are no frames")


@pytest.fixture
def hooks() -> Iterator[ReadsHooks]:
    reads = ReadsHooks()
    reads.install()
    yield reads
    imports.disarm()


def test_a_builtin_that_a_module_defines_later_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("shadowing")
    monkeypatch.setitem(sys.modules, "shadowing", module)
    exec("def program(x):\n    return abs(x)", vars(module))
    reads = TracedReads()
    reads.note_code(module.program.__code__, vars(module))
    assert changed_read(reads.recorded()) == ""
    module.abs = lambda x: x * 3
    assert changed_read(reads.recorded()) == "shadowing.abs is another one"


@pytest.mark.compiles
@pytest.mark.parametrize("name", ["_base", "is_leaf", "grad_fn"])
def test_a_fact_of_a_tensor_that_no_guard_compares_is_refused(name: str, hooks: ReadsHooks) -> None:
    torch = importlib.import_module("torch")

    def program(x: Any) -> Any:
        return x * (2 if getattr(x, name) else 3) * x.ndim

    def refused(attribute: str) -> str:
        nonlocal name
        name = attribute
        torch._dynamo.reset()
        reads = hooks.begin(program.__code__, globals())
        torch.compile(program, backend="eager")(torch.ones(2, requires_grad=True))
        hooks.end()
        return reads.refused

    assert refused(name) == f"{name} of a tensor becomes a constant, and cannot be compared"
    assert refused("requires_grad") == ""


@pytest.mark.compiles
def test_a_function_that_torch_replaces_is_read_alike_by_a_service(hooks: ReadsHooks) -> None:
    """torch 2.15 replaces ``operator.add`` by that of its own copy of the module, which no service finds."""
    torch = importlib.import_module("torch")

    def program(x: Any) -> Any:
        return sum(x * number for number in range(2))

    torch._dynamo.reset()
    reads = hooks.begin(program.__code__, globals())
    torch.compile(program, backend="eager")(torch.ones(2))
    hooks.end()
    assert (reads.refused, changed_read(reads.recorded())) == ("", "")


@pytest.mark.parametrize("module", ["output_graph", "convert_frame", "symbolic_convert"])
def test_the_package_of_a_recording_has_what_dynamo_calls(module: str) -> None:
    dynamo = importlib.import_module(f"torch._dynamo.{module}")
    called = set(re.findall(r"\bpackage\.([a-z_]+)\(", Path(dynamo.__file__ or "").read_text()))
    called -= {"rsplit", "rpartition"}  # of the name of a Python package
    assert [name for name in sorted(called) if not hasattr(FramePackage, name)] == []


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("one", "other", "refused"),
    [
        (1000, int("1000"), "int"),
        ("some text", "some text", "str"),
        (0.5, float("0.5"), "float"),
        (float("nan"), None, ""),
        (3, 3, ""),
        (None, None, ""),
        (1000, 1001, ""),
        ("a", "a", ""),
    ],
)
def test_whether_two_equal_values_are_one_object_is_refused(
    one: Any, other: Any, refused: str, hooks: ReadsHooks
) -> None:
    """A process may have two objects where another one has one, and no guard tells them apart."""
    torch = importlib.import_module("torch")

    def program(x: Any, left: Any, right: Any) -> Any:
        return x * 2 if left is right else x * 3 if left is not right else x

    torch._dynamo.reset()
    reads = hooks.begin(program.__code__, globals())
    torch.compile(program, backend="eager")(torch.ones(2), one, other)
    hooks.end()
    expected = f"whether two equal objects of {refused} are one becomes a constant" if refused else ""
    assert reads.refused == expected


TEXTS = frozenset({"alpha", "beta"})
TEXTS_IN_A_SET = {"alpha", "beta"}


@pytest.mark.compiles
@pytest.mark.parametrize("name", ["TEXTS", "TEXTS_IN_A_SET"])
@pytest.mark.parametrize(
    ("read", "is_whole"),
    [
        (lambda texts: "alpha" in texts, False),
        (lambda texts: [text for text in texts if text in texts][0], True),
        (lambda texts: "alpha" in texts and ",".join(texts), True),
        (lambda texts: "alpha" in texts and [*texts][0], True),
        (lambda texts: "alpha" in texts and next(iter(texts | {"gamma"})), True),
    ],
)
def test_a_set_of_texts_that_a_trace_goes_through_is_told_from_one_that_it_asks(
    name: str, read: Any, is_whole: bool, hooks: ReadsHooks
) -> None:
    """The order of a set of texts is another one in each process, so it counts only where it is read."""
    torch = importlib.import_module("torch")

    def program(x: Any) -> Any:
        return x * len(str(read(TEXTS if name == "TEXTS" else TEXTS_IN_A_SET)))

    torch._dynamo.reset()
    hooks.begin(program.__code__, globals())
    torch.compile(program, backend="eager", fullgraph=True)(torch.ones(2))
    assert hooks.now().sets == ({f"G['{name}']"} if is_whole else set())
    hooks.end()


def test_a_frame_that_reads_where_code_stands_is_refused() -> None:
    reads = TracedReads()
    reads.note_code((lambda: annotated.__code__.co_firstlineno).__code__, {"__name__": "program"})
    assert reads.refused == "<lambda> reads in which file and line code stands"
    reads = TracedReads()
    reads.note_code((lambda: annotated.__code__.co_varnames).__code__, {"__name__": "program"})
    assert reads.refused == ""


def annotated(_: Any) -> None:
    pass


PARAMETER = inspect.Parameter("one", inspect.Parameter.KEYWORD_ONLY, default=2.5)


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("read", "name"),
    [
        (lambda: annotated.__annotations__["_"], "G['annotated'].__annotations__['_']"),
        (lambda: PARAMETER.default, "G['PARAMETER']._default"),
    ],
)
def test_what_dynamo_takes_to_stay_as_it_is_is_compared(
    read: Any, name: str, hooks: ReadsHooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes no guards below annotations, and below what the module ``inspect`` says of a function."""
    torch = importlib.import_module("torch")
    guards: Any = importlib.import_module("torch._dynamo.guards")
    monkeypatch.setitem(annotated.__annotations__, "_", 2.5)
    compared: list[str] = []
    check = guards.CheckFunctionManager.__init__

    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        check(self, *args, **kwargs)
        compared.extend(guard.name for guard in args[1].guards)
        builder = types.SimpleNamespace(get=lambda source: eval(source.name, {"G": globals()}))
        compared.extend(guard.name for guard in hooks.now().unguarded(builder))

    monkeypatch.setattr(guards.CheckFunctionManager, "__init__", checked)

    def program(x: Any) -> Any:
        return x * read()

    torch._dynamo.reset()
    hooks.begin(program.__code__, globals())
    torch.compile(program, backend="eager", fullgraph=True)(torch.ones(2))
    hooks.end()
    assert name in {one.replace('"', "'") for one in compared}


@pytest.mark.compiles
def test_the_keys_of_a_dict_that_a_trace_unpacks_are_guarded(hooks: ReadsHooks) -> None:
    """Dynamo extends a list by a dictionary without a guard of its keys."""
    torch = importlib.import_module("torch")

    def program(x: Any, by: Any) -> Any:
        return x * [*by][0]

    torch._dynamo.reset()
    reads = hooks.begin(program.__code__, globals())
    compiled = torch.compile(program, backend="eager", fullgraph=True)
    assert [compiled(torch.ones(()), {by: 0}).item() for by in (2, 3)] == [2, 3]
    hooks.end()
    assert reads.refused == ""


def test_a_graph_that_holds_tensors_is_refused() -> None:
    """Dynamo's bytecode calls a compiled graph with its inputs alone."""
    torch = importlib.import_module("torch")
    graph = torch.fx.symbolic_trace(torch.nn.Linear(2, 2))
    frame = stored.RecordedFrame(code=None, backend="")
    why = graph_facts.note_graph(frame, graph, operators.RegisteredFunctions())
    assert why == "the graph has tensors that are no inputs of it"


def test_what_dynamo_has_not_made_of_a_value_yet_stays_so() -> None:
    """When Dynamo makes it decides the order of a graph's inputs, and so PyTorch's key."""
    from torch._dynamo.source import LocalSource
    from torch._dynamo.variables.lazy import LazyVariableTracker

    for value, constant in ((3, 3), ("text", "text"), ([3], UNKNOWN)):
        variable = LazyVariableTracker.create(value, source=LocalSource("x"))
        assert constant_of(variable) is constant or constant_of(variable) == constant
        assert not variable.is_realized()


@pytest.mark.compiles
def test_a_recorded_trace_makes_the_same_graph(hooks: ReadsHooks) -> None:
    """On torch 2.11 a tensor of a list became an input as soon as a hook read the list. The graph had
    its inputs in another order, and another key: a service that recorded compiled its optimizer's step."""
    torch = importlib.import_module("torch")
    graphs: list[str] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(re.sub("#.*", "", graph.print_readable(print_output=False)))
        return graph.forward

    def traced() -> list[str]:
        graphs.clear()
        torch._dynamo.reset()
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
        step = torch.optim.AdamW(model.parameters(), foreach=True).step
        model(torch.ones(1, 3)).sum().backward()
        torch.compile(step, backend=backend)()
        return list(graphs)

    plain = traced()
    hooks.begin(traced.__code__, globals())
    assert traced() == plain != []
    hooks.end()
