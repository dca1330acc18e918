"""Run one rank of a job whose compiled functions call the other ranks, see `rank_of_job`."""

from rank_of_job import change, mesh, rank, ranks, run

# isort: split
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)


def groups():
    """Return the group of all ranks that this program makes, and that of this rank alone."""
    if change == "another_order":
        alone = [dist.new_group([number]) for number in reversed(range(ranks))][ranks - 1 - rank]
        return dist.new_group(range(ranks)), alone
    together = dist.new_group(range(ranks))
    return together, [dist.new_group([number]) for number in range(ranks)][rank]


TOGETHER, ALONE = groups()
MESH = mesh()
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


run([*FORMS, "tensor_parallel"], outputs)
