"""Run one rank of a job whose models are wrapped for several ranks, see `rank_of_job`."""

from contextlib import nullcontext

from rank_of_job import change, mesh, process, rank, run

# isort: split
import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

MESH = mesh()


class Block(nn.Module):
    """A block of a transformer whose graphs call operators that Inductor does not generate, so that there is
    little to compile."""

    def __init__(self, size):
        super().__init__()
        self.mix = nn.Linear(size, 3 * size, bias=False)
        self.up, self.down = nn.Linear(size, 2 * size, bias=False), nn.Linear(2 * size, size, bias=False)

    def forward(self, x):
        query, key, value = self.mix(x).chunk(3, dim=-1)
        return self.down(self.up(nn.functional.scaled_dot_product_attention(query, key, value)))


class Transformer(nn.Module):
    def __init__(self, size=16, blocks=2):
        super().__init__()
        self.blocks = nn.ModuleList(Block(size) for _ in range(blocks))
        self.head = nn.Linear(size, 4, bias=False)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def values(size=16):
    return torch.linspace(-1, 1, 2 * 8 * size).reshape(2, 8, size) + rank


def full(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def trained(model, call=None, size=16, context=nullcontext):
    """Return the parameters after two steps of training."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        with context():
            (model if call is None else call)(values(size)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([full(one.detach()).flatten() for one in model.parameters()])


def ddp(model):
    options = {
        "unused_parameters": {"find_unused_parameters": True},
        "static_graph": {"static_graph": True},
        "views_of_buckets": {"gradient_as_bucket_view": True},
        "larger_buckets": {"bucket_cap_mb": 2},
        "no_broadcast": {"broadcast_buffers": False},
    }
    if change == "not_wrapped":
        return model
    return DistributedDataParallel(model, **{"bucket_cap_mb": 1, **options.get(change, {})})


def ddp_forward():
    model = ddp(Transformer())
    with torch.no_grad():
        return torch.compile(model)(values())


def ddp_training():
    model = ddp(Transformer())
    context = model.no_sync if change == "no_sync" else nullcontext
    return trained(model, torch.compile(model), context=context)


def ddp_inner():
    model = Transformer()
    model.compile()
    return trained(ddp(model))


def ddp_blocks():
    model = Transformer()
    for block in model.blocks:
        block.compile()
    return trained(ddp(model))


def ddp_buckets():
    model = ddp(Transformer(size=160, blocks=3))
    return trained(model, torch.compile(model), size=160)


def ddp_buckets_forward():
    model = ddp(Transformer(size=160, blocks=3))
    with torch.no_grad():
        return torch.compile(model)(values(160))


def fsdp(model):
    options = {}
    if change == "mixed_precision":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    if change == "not_resharded":
        options["reshard_after_forward"] = False
    if change == "not_wrapped":
        return model
    for block in model.blocks:
        fully_shard(block, mesh=MESH, **options)
    return fully_shard(model, mesh=MESH, **options)


def fsdp_forward():
    model = fsdp(Transformer())
    with torch.no_grad():
        return full(torch.compile(model)(values()))


def fsdp_training():
    model = fsdp(Transformer())
    return trained(model, torch.compile(model))


def fsdp_blocks():
    model = fsdp(Transformer())
    for block in model.blocks:
        block.compile()
    return trained(model)


def fsdp_inner():
    model = Transformer()
    for block in model.blocks:
        block.compile()
    return trained(fsdp(model))


def tensor_parallel():
    model = Transformer()
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    for block in model.blocks:
        parallelize_module(block, MESH, plan)
    return model


def tp_forward():
    with torch.no_grad():
        return full(torch.compile(tensor_parallel())(values()))


def tp_training():
    model = tensor_parallel()
    return trained(model, torch.compile(model))


FORMS = [
    *(ddp_forward, ddp_training, ddp_inner, ddp_blocks, ddp_buckets, ddp_buckets_forward),
    *(fsdp_forward, fsdp_training, fsdp_blocks, fsdp_inner, tp_forward, tp_training),
]
FORMS = {one.__name__: one for one in FORMS}


def outputs(form):
    torch._dynamo.reset()
    torch.manual_seed(0)
    return FORMS[form]()


run(FORMS, outputs, lambda: process().kinds["frames"]._replayer.reasons)
