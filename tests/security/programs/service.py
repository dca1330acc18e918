"""A service: attaches to NAME, compiles one function, prints what came of it, and lives until its standard
input ends."""

import json
import sys

import short_life

import cachesvc_client

cachesvc_client.attach(sys.argv[1])

import torch  # noqa: E402
from model import inputs  # noqa: E402


def function(x):
    return x.cos() * 2 + 1


with torch.no_grad():
    difference = float((torch.compile(function)(inputs()) - function(inputs())).abs().max())
report = cachesvc_client.report()
print(
    json.dumps(
        {
            "state": report.state,
            "compilations": report.compilations,
            "reasons": report.reasons,
            "revisions": [use.name for use in report.revisions],
            "difference": difference,
        }
    ),
    flush=True,
)
sys.stdin.read()
short_life.end()
