"""Test the facts of a requested compile, from graphs that Dynamo traced; nothing is compiled here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from cachesvc_client.graphs.operators import RegisteredFunctions
from cachesvc_client.graphs.request import GraphRequests
from cachesvc_client.kinds.frames.record.graph_facts import uncached_graphs
from cachesvc_client.wire.compare import differences
from cachesvc_client.wire.factors import BY_NAME
from cachesvc_client.wire.facts import MAX_LISTED, MAX_TEXT
from tests.releases import TORCH

GOLDEN = Path(__file__).parents[1] / "golden" / "asked-1.json"


class Small(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.first = nn.Linear(width, 16)
        self.register_buffer("offset", torch.ones(16))

    def forward(self, x):
        return (nn.functional.gelu(self.first(x)) + self.offset).view(x.shape[0], 2, 8) * 2.5


def requested_facts(model, *inputs, patches=None, **options):
    """Return the facts of the graphs that a call of the compiled model makes."""
    requests = GraphRequests(RegisteredFunctions())

    def backend(module, example_inputs):
        requests.note(module, example_inputs, config_patches=patches)
        return module.forward

    torch._dynamo.reset()
    torch.compile(model, backend=backend, **options)(*inputs)
    assert requests.graphs and all(graph.facts for graph in requests.graphs)
    return requests.facts()


@pytest.fixture(scope="module")
def plain():
    with torch.no_grad():
        return requested_facts(Small(), torch.ones(4, 8))


def test_the_facts_match_the_golden_file(plain):
    """The golden file is append-only and for torch 2.13: later clients read the facts of an entry."""
    golden = json.loads(GOLDEN.read_text())
    plain = {name: value for name, value in plain.items() if name != "libraries"}
    assert {name: plain[name] for name in golden} == golden


def test_every_fact_is_a_row_of_the_workload(plain):
    assert {BY_NAME[name].group for name in plain} == {"workload"}
    missing = {factor.name for factor in BY_NAME.values() if factor.group == "workload"} - set(plain)
    assert missing == {"model"}, "compile() and warm alone know it"


def differing(plain, facts):
    return [one.factor for one in differences(facts, plain, ("host",))]


def test_changes_that_change_no_key_change_no_fact(plain):
    class Renamed(Small):
        def forward(self, other_name):
            hidden = nn.functional.gelu(self.first(other_name))
            return (hidden + self.offset).view(other_name.shape[0], 2, 8) * 2.5

    torch.manual_seed(5)
    with torch.no_grad():
        assert differing(plain, requested_facts(Renamed(), torch.zeros(4, 8), fullgraph=True)) == []


@pytest.mark.parametrize(
    ("call", "first"),
    [
        (lambda: requested_facts(Small(), torch.ones(6, 8)), "shapes"),
        (lambda: requested_facts(Small(), torch.ones(8, 4).t()), "strides"),
        (lambda: requested_facts(Small(), torch.ones(4, 16)[:, ::2]), "strides"),
        (lambda: requested_facts(Small(), torch.ones(4, 8), dynamic=True), "dynamic"),
        (lambda: requested_facts(Small().double(), torch.ones(4, 8).double()), "dtype"),
        (lambda: requested_facts(Small(), torch.ones(4, 8), patches={"max_autotune": True}), "options"),
        (lambda: requested_facts(nn.Sequential(Small(), nn.ReLU()), torch.ones(4, 8)), "modules"),
    ],
)
def test_the_cause_comes_first(plain, call, first):
    with torch.no_grad():
        assert differing(plain, call())[0] == first


@pytest.mark.skipif(TORCH < (2, 11), reason="there are no frames")
def test_what_cachesvc_sets_for_a_recording_is_no_fact(plain):
    """A service is told to set what differs from the entry, and can set none of that."""
    with torch.no_grad(), uncached_graphs():
        assert torch._inductor.config.unsafe_marked_cacheable_functions
        assert requested_facts(Small(), torch.ones(4, 8)) == plain


def test_grad_mode_and_autocast_are_facts(plain):
    assert differing(plain, requested_facts(Small(), torch.ones(4, 8))) == ["grad"]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert differing(plain, requested_facts(Small(), torch.ones(4, 8)))[0] == "autocast"


def test_the_facts_of_a_model_of_thousands_of_operations_are_bounded():
    class Long(nn.Module):
        def forward(self, x):
            for number in range(200):
                x = x * (number + 0.5)
            return x

    with torch.no_grad():
        facts = requested_facts(Long(), torch.ones(2))
    assert len(facts["operations"]) == MAX_LISTED
    assert all(len(text) <= MAX_TEXT for text in facts["operations"])


@pytest.mark.parametrize("arguments", [(), (None,), (object(), []), ("graph",)])
def test_an_object_that_is_no_graph_is_no_error(arguments):
    requests = GraphRequests(RegisteredFunctions())
    assert requests.note(*arguments).facts == {}
    assert requests.facts() == {}
