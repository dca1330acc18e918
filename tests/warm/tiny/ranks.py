"""Run a script target as several ranks: each compiles a shared function and one of its own."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
with torch.no_grad():
    both = torch.compile(lambda x: torch.sin(x) * 2 + 1)(torch.ones(8))
    dist.all_reduce(both)
    torch.compile(lambda x: torch.cos(x) * (rank + 3))(torch.ones(8))
dist.barrier()
dist.destroy_process_group()
