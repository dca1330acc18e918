"""One rank of a job that trains a step: what all ranks compile, and what this one alone does. One JSON line.

Under torchrun it is told its rank at its start; run plainly it is the parent of two ranks of
`torch.multiprocessing` that learn theirs when they join the group. Arguments: NAME=VALUE. ``name``: attach
to it, else nothing is attached here; ``publish``: afterwards, on every rank; ``folders``: each rank's own
cache folder below it; ``small``: one function,
nothing is trained.
"""

import json
import os
import sys

options = dict(argument.split("=", 1) for argument in sys.argv[1:])


def prepare(rank: int) -> None:
    """What differs by rank, before torch is imported."""
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
    dist.barrier()  # nobody ends while another one still asks
    dist.destroy_process_group()


def tell(rank: int, difference: float) -> None:
    import cachesvc_client
    from cachesvc_client.session.process import process

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
        done = cachesvc_client.publish()
        answer |= {"revision": str(done.revision), "entry": str(done.entry)}
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
