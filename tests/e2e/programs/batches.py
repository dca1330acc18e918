"""Run a service that configures no logging: attach to NAME, then run a batch of as many rows as each line of
stdin says, and answer with a line.

The service ends by ``os._exit``, so no exit function runs."""

import os
import sys

import cachesvc_client

cachesvc_client.attach(sys.argv[1])

import torch  # noqa: E402
from model import inputs  # noqa: E402

compiled = torch.compile(lambda x: x.cos() * 2 + 1, dynamic=False)
for line in sys.stdin:
    with torch.no_grad():
        print(len(compiled(inputs(int(line)))), flush=True)
os._exit(0)
