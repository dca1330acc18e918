"""Test that a signature tells apart what one factory of torch's made for different operators, and what has
the name of torch's own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

_PROGRAM = """
import json, sys, torch, torch._refs, types
from torch.nn import functional
from torch._inductor import lowering
from cachesvc_client.graphs.released.signatures import signature

aten, table = torch.ops.aten, lowering.lowerings
tables = {
    "lowering": (table[aten.tanh.default], table[aten.cos.default]),
    "lowering of lists": (table[aten._foreach_add.List], table[aten._foreach_sub.List]),
    "reference": (torch._refs.sin, torch._refs.cos),
    "module": (functional._Reduction, types.ModuleType("torch.nn._reduction")),
    "class": (torch.nn.ReLU, type("ReLU", (torch.nn.Module,), {"__module__": "torch.nn.modules.activation"})),
    "function in C": (torch.sum, sum),
}
pairs = {
    f"{what}, {whole}": [signature({"x": one}, whole).hex() for one in pair]
    for what, pair in tables.items()
    for whole in (False, True)
}
print(json.dumps(pairs))
"""


def signed() -> dict[str, list[str]]:
    command = [sys.executable, "-W", "ignore", "-c", _PROGRAM]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return dict(json.loads(said.splitlines()[-1]))


@pytest.mark.compiles
def test_what_is_another_thing_has_another_signature_which_is_equal_in_each_process() -> None:
    one, other = signed(), signed()
    assert one == other
    assert {what: len(set(pair)) for what, pair in one.items()} == dict.fromkeys(one, 2)
