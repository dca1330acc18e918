"""Compile a model of which PyTorch times something before it looks the graph up, as it does where it pads
matrix products on a GPU: ``timed.py MARK``. The first process makes the file MARK and scales a product, as do
others that know its choice; the rest do not."""

import sys
from pathlib import Path

import torch
from torch._inductor import config
from torch._inductor.codecache import LocalCache
from torch._inductor.custom_graph_pass import CustomGraphPass

MARK = Path(sys.argv[1])


class Times(CustomGraphPass):
    """A pass that says what it is: that it reads a file as well is between it and PyTorch."""

    def __call__(self, graph):
        choice = LocalCache().lookup("timed")
        if choice is None:
            choice = not MARK.exists()
            MARK.touch()
            LocalCache().set_value("timed", value=choice)
        if choice:
            product = next(node for node in graph.nodes if "addmm" in str(node.target))
            with graph.inserting_after(product):
                scaled = graph.call_function(torch.ops.aten.mul.Tensor, (product, 1.5))
            scaled.meta.update(product.meta)
            product.replace_all_uses_with(scaled, delete_user_cb=lambda user: user is not scaled)

    def uuid(self):
        return "timed"


config.joint_custom_post_pass = Times()
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()
with torch.no_grad():
    torch.compile(model)(torch.ones(2, 8))
