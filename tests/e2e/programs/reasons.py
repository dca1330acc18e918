"""Compile where a restored entry cannot serve, and print the report as JSON: ``reasons.py HOW BUNDLE``."""

import glob
import json
import os
import sys

import short_life

import cachesvc_client

how, bundle = sys.argv[1:]
session = cachesvc_client.attach(bundle=bundle)
import torch  # noqa: E402
import torch._inductor.config as config  # noqa: E402
from model import inputs  # noqa: E402


def function(x):
    return x.cos() * 2 + 1


def call():
    with torch.no_grad():
        return float((torch.compile(function)(inputs()) - function(inputs())).abs().max())


def damage(pattern, flip=False):
    session.wait(60)
    for path in glob.glob(f"{os.environ['TORCHINDUCTOR_CACHE_DIR']}/{pattern}", recursive=True):
        if os.path.isfile(path):
            os.chmod(path, 0o644)
            with open(path, "r+b") as file:
                file.write(b"damaged") if flip else file.truncate(20)


def under(capability):
    """Compile under a variable that the program sets after the restore."""
    session.wait(60)
    os.environ["ATEN_CPU_CAPABILITY"] = capability
    return call()


HOW = {
    "other threads": lambda: (session.wait(60), torch.set_num_threads(1), call())[2],
    "capability default": lambda: under("default"),
    "capability avx2": lambda: under("avx2"),
    "cut kernel": lambda: (damage("**/*.so"), call())[1],
    "cut kernel, other threads": lambda: (damage("**/*.so"), torch.set_num_threads(1), call())[2],
    "cut graph": lambda: (damage("fxgraph/**/*"), call())[1],
    "overwritten graph": lambda: (damage("fxgraph/**/*", flip=True), call())[1],
    "overwritten trace": lambda: (damage("aotautograd/**/*", flip=True), call())[1],
    "cut trace": lambda: (damage("aotautograd/**/*"), call())[1],
    "switched off": lambda: (setattr(config, "fx_graph_cache", False), call())[1],
}


difference = HOW[how]()
report = cachesvc_client.report()
print(
    json.dumps(
        {
            "difference": difference,
            "state": report.state,
            "reasons": report.reasons,
            "compilations": report.compilations,
            "differences": [one.factor for one in report.compared.differences],
        }
    )
)
short_life.end()
