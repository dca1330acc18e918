"""Run one job of several ranks: a data-parallel training step, and a tensor-parallel layer whose all-reduce
is inside the compiled graph. Print one JSON line per rank.

    torchrun --standalone --nproc-per-node 2 ranks_job.py [--out DIR] [--width 512] [--layers 2]

NCCL on GPUs, one per rank; gloo on CPU. What CACHESVC_NAME names is restored; without it everything is
compiled, and as a script target with ``nproc`` this is what `cachesvc warm` builds the entry from. Counts are
of this rank and the processes that it started. ``difference``: the largest from the same step in eager mode,
beside the largest value there.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

for variable in ("NCCL_NVLS_ENABLE=0", "TORCH_SYMM_MEM_DISABLE_MULTICAST=1"):
    # NVLink multicast needs rights on the host that a benchmark should not ask for.
    os.environ.setdefault(*variable.split("="))

import cachesvc_client  # noqa: E402
import cachesvc_client.auto  # noqa: E402
from cachesvc_client.hooks import counters  # noqa: E402

observer = counters.start(audit=True)
starting = time.perf_counter()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed._functional_collectives as collectives  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402


def main() -> None:
    options = parsed()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    imported = time.perf_counter()
    dist.init_process_group("nccl" if cuda else "gloo")
    steps, calls = {}, {"train": train, "tensor_parallel": tensor_parallel}
    for name, call in calls.items():
        begin = time.perf_counter()
        actual = call(options, device, rank, ranks, compiled=True)
        steps[name] = {"first": round(time.perf_counter() - begin, 4)}
        steps[name] |= compared(actual, call(options, device, rank, ranks, compiled=False))
    observed = observer.snapshot()
    report = cachesvc_client.report()
    answer = {
        "rank": rank,
        "ranks": ranks,
        "device": torch.cuda.get_device_name(device) if cuda else "cpu",
        "torch": torch.__version__,
        "state": report.state,
        "compilations": observed.compilations,
        "tuning_runs": observed.tuning_runs,
        "compiler_processes": observed.compiler_processes,
        "graphs_compiled": observed.torch.graphs_compiled,
        "aot_hits": observed.torch.aot_hits,
        "fx_hits": observed.torch.fx_hits,
        "missing": list(observed.missing),
        "bytes_moved": report.bytes_moved,
        "files": sum(revision.files for revision in report.revisions),
        "reasons": list(report.reasons),
        "seconds": {**report.seconds, "import": round(imported - starting, 4)},
        "steps": steps,
        "max_difference": max(step["difference"] for step in steps.values()),
    }
    line = json.dumps(answer)
    if options.out:
        Path(options.out).mkdir(parents=True, exist_ok=True)
        Path(options.out, f"rank-{rank}.json").write_text(line + "\n")
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=2)
    return parser.parse_args()


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def train(options, device, rank, ranks, compiled: bool) -> list[torch.Tensor]:
    """Run one step under DDP: forward, backward with its all-reduce of gradients, optimizer. Return the
    parameters."""
    del ranks
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(options.width) for _ in range(options.layers))).to(device)
    parallel = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    call = torch.compile(parallel) if compiled else parallel
    torch.manual_seed(1 + rank)
    batch = torch.randn(16, options.width).to(device)
    call(batch).square().mean().backward()
    optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def tensor_parallel(options, device, rank, ranks, compiled: bool) -> list[torch.Tensor]:
    """Run a feed-forward layer of which each rank holds a part of the inner width; every rank gets their
    sum."""
    torch.manual_seed(2)
    width, inner = options.width, 4 * options.width
    up, down = torch.randn(inner, width) / width**0.5, torch.randn(width, inner) / inner**0.5
    batch = torch.randn(16, width).to(device)
    mine = slice(rank * inner // ranks, (rank + 1) * inner // ranks)
    up, down = up[mine].clone().to(device), down[:, mine].clone().to(device)

    def layer(x: torch.Tensor) -> torch.Tensor:
        partly = nn.functional.gelu(x @ up.T) @ down.T
        return torch.tanh(collectives.all_reduce(partly, "sum", dist.group.WORLD)) + x

    with torch.no_grad():
        return [(torch.compile(layer, fullgraph=True) if compiled else layer)(batch)]


def compared(mine: list[torch.Tensor], eager: list[torch.Tensor]) -> dict[str, float]:
    return {
        "difference": max(float((a - b).abs().max()) for a, b in zip(mine, eager, strict=True)),
        "scale": max(float(b.abs().max()) for b in eager),
    }


if __name__ == "__main__":
    main()
