"""Run one rank of a job whose compiled functions call the other ranks: ``frames_ranks.py [CHANGE [BUNDLE]]``,
where the change is a name that this program asks for below, or ``nothing``.

With a bundle it restores that, and prints as JSON for each form what was traced and compiled, and how far the
outputs are from eager. Without one it is a script of `cachesvc warm`. FORMS: the forms to run, if not all."""

import contextlib
import json
import os
import sys

import short_life

import cachesvc_client
from cachesvc_client.process.process import process

change, bundle = (*sys.argv[1:], "nothing", "")[:2] if len(sys.argv) < 3 else sys.argv[1:3]
if bundle:
    cachesvc_client.attach("team/ranks", bundle=bundle)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed._functional_collectives as collectives  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # noqa: E402
from torch.distributed.tensor import Shard, distribute_tensor  # noqa: E402
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
assert not bundle or cachesvc_client.wait(60), process().all_kinds.explain(())


def groups(change):
    """Return the group of all ranks that this program makes, that of this rank alone, and a mesh."""
    if change == "one_more_group":
        dist.new_group(range(ranks))
    if change == "another_order":
        alone = [dist.new_group([number]) for number in reversed(range(ranks))][ranks - 1 - rank]
        together = dist.new_group(range(ranks))
    else:
        together = dist.new_group(range(ranks))
        alone = [dist.new_group([number]) for number in range(ranks)][rank]
    if change == "turned_mesh":
        return together, alone, DeviceMesh("cpu", [*reversed(range(ranks))], mesh_dim_names=("parts",))
    names = ("halves",) if change == "another_mesh_name" else ("parts",)
    return together, alone, init_device_mesh("cpu", (ranks,), mesh_dim_names=names)


dist.init_process_group("cpu:gloo" if change == "another_backend" else "gloo")
TOGETHER, ALONE, MESH = groups(change)
NAMED = ALONE if change == "another_group" else TOGETHER


def world(x):
    return collectives.all_reduce(x.sin(), "sum", dist.group.WORLD) + 1


def world_only_read(x):
    return x * dist.group.WORLD.size() + dist.group.WORLD.rank()


def named(x):
    return collectives.all_reduce(x.cos(), "sum", NAMED) * 2


def argument(x, group):
    return collectives.all_reduce(x.tan(), "sum", group) * 3


def argument_only_read(x, group):
    return x * group.size() + 3


def by_mesh(x):
    return collectives.all_reduce(x.exp(), "sum", (MESH, 0)) * 4


def mesh_only_read(x):
    return x * MESH.size() + MESH.get_local_rank()


def numbers(x):
    return x * dist.get_world_size() + dist.get_rank() + 5


def in_place(x):
    y = x.sinh()
    dist.all_reduce(y, group=NAMED)
    return y + 6


def gathered(x):
    return collectives.all_gather_tensor(x.sigmoid(), 0, NAMED).relu() + 7


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return self.down(self.up(x).relu())


def tensor_parallel():
    model = parallelize_module(Parts(), MESH, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return lambda x: torch.compile(model)(x)


def from_parts(x):
    return x.tanh().full_tensor() + 8


def distributed(x):
    return torch.compile(from_parts)(distribute_tensor(x, MESH, [Shard(0)]))


FORMS = {
    **{one.__name__: torch.compile(one) for one in (world, world_only_read, named, by_mesh)},
    **{one.__name__: torch.compile(one) for one in (mesh_only_read, numbers, in_place, gathered)},
    "argument": lambda x: torch.compile(argument)(x, NAMED),
    "argument_only_read": lambda x: torch.compile(argument_only_read)(x, NAMED),
    "distributed": distributed,
}


def outputs(form):
    torch.manual_seed(0)
    function = tensor_parallel() if form == "tensor_parallel" else FORMS[form]
    with torch.no_grad():
        return function(torch.randn(4, 8) + rank)


def measured(form):
    before = process().output.observer.snapshot()
    try:
        output = outputs(form)
    except Exception as error:  # noqa: BLE001 - a form that this torch does not compile
        return {"error": f"{type(error).__name__}: {error}"[:300], "traces": -1}
    after = process().output.observer.snapshot()
    torch.compiler.set_stance("force_eager")
    eager = outputs(form)
    torch.compiler.set_stance("default")
    same = output.shape == eager.shape
    return {
        "traces": after.torch.traces - before.torch.traces,
        "compilations": after.compilations - before.compilations,
        "difference": float((output - eager).abs().max()) if same else float("inf"),
    }


asked = os.environ.get("FORMS", "").split() or [*FORMS, "tensor_parallel"]
with contextlib.redirect_stdout(sys.stderr):
    answer = {form: measured(form) for form in asked}
if bundle:
    line = {"rank": rank, "state": cachesvc_client.report().state, "forms": answer}
    line["explained"] = list(process().all_kinds.explain(()))
    print(json.dumps(line) + "\n", end="", flush=True)
dist.barrier()  # No rank ends while another rank still asks.
dist.destroy_process_group()
short_life.end()
