"""Run one rank of a job whose models are wrapped for several ranks: ``frames_wrapped.py [CHANGE [BUNDLE]]``,
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
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # noqa: E402
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: E402
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
assert not bundle or cachesvc_client.wait(60), process().all_kinds.explain(())
dist.init_process_group("cpu:gloo" if change == "another_backend" else "gloo")
if change == "one_more_group":
    dist.new_group(range(ranks))
if change == "turned_mesh":
    MESH = DeviceMesh("cpu", [*reversed(range(ranks))], mesh_dim_names=("parts",))
else:
    names = ("halves",) if change == "another_mesh_name" else ("parts",)
    MESH = init_device_mesh("cpu", (ranks,), mesh_dim_names=names)


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


def trained(model, call=None, size=16, context=contextlib.nullcontext):
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
    context = model.no_sync if change == "no_sync" else contextlib.nullcontext
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


def measured(form):
    before = process().output.observer.snapshot()
    try:
        output = outputs(form)
    except Exception as error:  # noqa: BLE001 - a form that this torch does not compile
        return {"error": f"{type(error).__name__}: {error}"[:600], "traces": -1, "difference": 9.0}
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


asked = os.environ.get("FORMS", "").split() or [*FORMS]
with contextlib.redirect_stdout(sys.stderr):
    answer = {form: measured(form) for form in asked}
if bundle:
    line = {"rank": rank, "state": cachesvc_client.report().state, "forms": answer}
    line["explained"] = [*process().kinds["frames"]._replayer.reasons]
    print(json.dumps(line) + "\n", end="", flush=True)
dist.barrier()  # No rank ends while another rank still asks.
dist.destroy_process_group()
short_life.end()
