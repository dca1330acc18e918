"""Compile a model with a number of layers: ``layers.py compile|serve BUNDLE KEY MODEL LAYERS``.

``serve`` prints the report's outcome and reasons as JSON."""

import json
import sys

import recorded_session
import short_life

import cachesvc_client

what, bundle, key, name, layers = sys.argv[1:]
session = recorded_session.begin(what, bundle)

import torch  # noqa: E402
from torch import nn  # noqa: E402

TINY = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(x).relu() @ x.T @ x


def own(count):
    return nn.Sequential(*(Block() for _ in range(count))), torch.ones(4, 8)


def llama(count):
    from transformers import LlamaConfig, LlamaModel

    return LlamaModel(LlamaConfig(num_hidden_layers=count, **TINY)), torch.ones(1, 8, dtype=torch.int64)


def bert(count):
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(num_hidden_layers=count, **TINY)), torch.ones(1, 8, dtype=torch.int64)


model, x = {"own": own, "llama": llama, "bert": bert}[name](int(layers))
assert what == "compile" or cachesvc_client.wait(60)
with torch.no_grad():
    torch.compile(model.eval())(x)
if what == "compile":
    recorded_session.publish(session, bundle, key, whole=False)
    print(json.dumps({}))
else:
    report = cachesvc_client.report()
    print(json.dumps({"state": report.state, "reasons": report.reasons}))
short_life.end()
