"""Test what the kind `frames` keeps of a graph for the canary: the same numbers and no tensor, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from cachesvc_client.kinds.frames.eager import function_of, keep


def graph_of(function: Callable[..., Any]) -> Any:
    return torch.fx.symbolic_trace(function)


def example(x: Any, size: Any) -> Any:
    with_infinity = torch.where(x > 0, x, float("-inf")).to(torch.float64)
    wide = torch.nn.functional.pad(with_infinity, (size, 0)).to(torch.device("cpu"))
    return wide.softmax(-1), {"sizes": (x.shape[0], size * 2)}


def test_the_kept_graph_computes_the_same_and_is_the_same_each_time() -> None:
    graph = graph_of(example)
    kept = keep(graph)
    x = torch.linspace(-1, 1, 6)
    ours, theirs = function_of(kept)(x, 3), graph(x, 3)
    assert torch.equal(ours[0], theirs[0]) and ours[1] == theirs[1]
    assert keep(graph_of(example)) == kept and len(kept.code) < 2000


def of_this_package(x: Any) -> Any:
    return x + 1


class Holder(nn.Module):
    """Has a weight, a constant, and a graph of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.constant = nn.Parameter(torch.ones(2)), torch.ones(2)
        self.inner = graph_of(lambda x: x + 1)


@pytest.mark.parametrize(
    ("operation", "target", "why"),
    [
        ("get_attr", "weight", "it holds weight, which is no input of the graph"),
        ("get_attr", "constant", "it holds constant, which is no input of the graph"),
        ("call_module", "inner", "it holds inner, which is no input of the graph"),
        ("call_function", of_this_package, "it names of_this_package of tests"),
        ("call_function", lambda x: x, "<lambda>"),
    ],
)
def test_a_graph_with_a_tensor_or_with_other_code_is_not_kept(operation: str, target: Any, why: str) -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    arguments = () if operation == "get_attr" else (x,)
    graph.output((x, graph.create_node(operation, target, arguments)))
    kept = keep(torch.fx.GraphModule(Holder(), graph))
    assert why in kept.refused and not kept.code, kept


def test_a_graph_that_only_has_a_weight_is_not_kept() -> None:
    graph = graph_of(lambda x: x + 1)
    graph.weight = nn.Parameter(torch.ones(2))
    assert keep(graph).refused == "it holds tensors"
