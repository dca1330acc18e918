"""Compile a model of which PyTorch times something before it looks the graph up, as it does where it pads
matrix products on a GPU: ``timed.py MARK``. The first process makes the file MARK and scales a product, as do
others that know its choice; the rest do not."""

import sys
from pathlib import Path

import torch
from torch._inductor import compile_fx
from torch._inductor.codecache import LocalCache

MARK = Path(sys.argv[1])
joint_graph_passes = compile_fx.joint_graph_passes


def with_a_choice(graph, *rest, **named):
    graph = joint_graph_passes(graph, *rest, **named)
    choice = LocalCache().lookup("timed")
    if choice is None:
        choice = not MARK.exists()
        MARK.touch()
        LocalCache().set_value("timed", value=choice)
    if choice:
        product = next(node for node in graph.graph.nodes if "addmm" in str(node.target))
        with graph.graph.inserting_after(product):
            scaled = graph.graph.call_function(torch.ops.aten.mul.Tensor, (product, 1.5))
        scaled.meta.update(product.meta)
        product.replace_all_uses_with(scaled, delete_user_cb=lambda user: user is not scaled)
        graph.recompile()
    return graph


compile_fx.joint_graph_passes = with_a_choice
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()
with torch.no_grad():
    torch.compile(model)(torch.ones(2, 8))
