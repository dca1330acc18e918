"""Compile once in this process and pack the files that it produced: OUT KEY NAME [small|other].

``small``: a function instead of the model. ``other``: another function with the same signature."""

import sys
from pathlib import Path

import short_life

import cachesvc_client
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.config import Config
from cachesvc_client.publication.build_bundle import Draft, build_bundle
from cachesvc_client.session.process import process
from cachesvc_client.session.sessions import open_local
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Name, Target
from cachesvc_client.wire.records import Workload

out, key, name = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
config = Config.read()
session = open_local(config)

import torch  # noqa: E402
from model import inputs, make  # noqa: E402

functions = {"small": lambda x: x.cos() * 2 + 1, "other": lambda x: x.cos() * 2 + 3}
model = functions[sys.argv[4]] if sys.argv[4:] else make()
with torch.no_grad():
    output = torch.compile(model)(inputs())
torch.save(output, out.with_suffix(".pt"))
_, fingerprint = process().prepare(config, session.result)
draft = Draft(
    name=Name.parse(name),
    target=Target("small/float32/default"),
    fingerprint=fingerprint,
    workload=Workload(script=Digest.of(b"small"), dtype="float32"),
    scopes=process().scopes(),
    measured={"first_call": 10.0},
    keys=process().key_facts(),
    asked=process().asked.facts(),
)
build_bundle(session.capture(), draft, SigningKey.load(key), out)
print(cachesvc_client.report().line)
short_life.end()
