"""Train a small model in a loop that tells cachesvc of its steps, and print the report as JSON.

Arguments are the batch sizes of the steps."""

import json
import sys

import short_life
import torch

import cachesvc_client
from cachesvc_client.integrations.training import TrainingCache


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, batch):
        return self.layer(batch).cos()


torch.manual_seed(0)
cache = TrainingCache()
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
compiled = torch.compile(model, dynamic=False)
for size in map(int, sys.argv[1:]):
    compiled(torch.ones(size, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    cache.step()
cache.end()
report = cachesvc_client.report()
answer = {"state": report.state, "compilations": report.compilations, "line": report.line}
print(json.dumps({**answer, "weights": model.layer.weight.tolist()}))
short_life.end()
