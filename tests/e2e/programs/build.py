"""Compile once in this process and pack the files that it produced: OUT KEY NAME [small|other].

``small``: a function instead of the model. ``other``: another function with the same signature."""

import sys
from pathlib import Path

import sealed
import short_life

import cachesvc_client

out, key, name = sys.argv[1:4]
session = sealed.open_session()

import torch  # noqa: E402
from model import inputs, make  # noqa: E402

functions = {"small": lambda x: x.cos() * 2 + 1, "other": lambda x: x.cos() * 2 + 3}
model = functions[sys.argv[4]] if sys.argv[4:] else make()
with torch.no_grad():
    output = torch.compile(model)(inputs())
torch.save(output, Path(out).with_suffix(".pt"))
sealed.seal(session, out, key, name)
print(cachesvc_client.report().line)
short_life.end()
