"""Compile a function ahead of time, as vLLM does, and print AOTAutograd's keys. The argument ``hook``: with
cachesvc's hook."""

import json
import os
import sys
import tempfile

import short_life

os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder = tempfile.mkdtemp()

import torch

from cachesvc_client.graphs import backend_names

if sys.argv[1:] == ["hook"]:
    backend_names.install_hooks()


def function(x):
    return x.cos() * 2 + 1


batch = torch.ones(8)
with torch.no_grad(), torch._dynamo.config.patch(enable_aot_compile=True):
    compiled = torch.compile(function, fullgraph=True).aot_compile(((batch,), {}))
    difference = float((compiled(batch) - function(batch)).abs().max())
entries = os.path.join(folder, "aotautograd")
keys = sorted(os.listdir(entries)) if os.path.isdir(entries) else []
print(json.dumps({"keys": keys, "difference": difference}))
short_life.end()
