"""Run one rank of a job that trains a step: what all ranks compile, and what this rank alone compiles. Print
one JSON line per rank.

Under torchrun the process knows its rank at its start. Run plainly, it is the parent of two ranks of
`torch.multiprocessing`, which learn their ranks when they join the group. Arguments are NAME=VALUE. ``name``:
attach to this name; without it nothing is attached here. ``publish``: publish afterwards, on every rank.
``folders``: the folder below which each rank has its own cache folder. ``small``: compile one function and
train nothing. ``stay``: seconds to go on after that."""

import json
import os
import sys
import time

import short_life

options = dict(argument.split("=", 1) for argument in sys.argv[1:])


def prepare(rank: int) -> None:
    """Set what differs by rank, before torch is imported."""
    if "folders" in options:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(options["folders"], str(rank))
    if "name" in options:
        import cachesvc_client

        cachesvc_client.attach(options["name"])


def step(rank: int, ranks: int) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn

    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": options["port"]}
        dist.init_process_group("gloo", rank=rank, world_size=ranks)
    batch = torch.full((2, 8), rank + 1.0)
    if "small" not in options:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
        torch.compile(model)(batch).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
    with torch.no_grad():
        own = torch.compile(lambda x: x.cos() * (rank + 2))(batch)
    difference = float((own - batch.cos() * (rank + 2)).abs().max())
    tell(rank, difference)
    time.sleep(float(options.get("stay", 0)))
    dist.barrier()  # No rank ends while another rank still asks.
    dist.destroy_process_group()


def tell(rank: int, difference: float) -> None:
    import cachesvc_client
    from cachesvc_client.process.process import process

    report = cachesvc_client.report()
    answer = {
        "rank": rank,
        "state": report.state,
        "compilations": report.compilations,
        "moved": report.bytes_moved,
        "files": sum(revision.files for revision in report.revisions),
        "waited": report.seconds["wait"],
        "reasons": list(report.reasons),
        "difference": difference,
        "folder": str(process().folders.roots().get("inductor", "")),
    }
    if "publish" in options:
        publication = cachesvc_client.publish()
        answer |= {"revision": str(publication.revision), "entry": str(publication.entry)}
    print(json.dumps(answer) + "\n", end="", flush=True)


def spawned(rank: int, ranks: int) -> None:
    prepare(rank)
    step(rank, ranks)


if __name__ == "__main__":
    if "RANK" in os.environ:
        prepare(int(os.environ["RANK"]))
        step(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    else:
        import torch.multiprocessing

        torch.multiprocessing.spawn(spawned, args=(2,), nprocs=2)
    short_life.end()
